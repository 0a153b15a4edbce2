"""How worker processes wait for each other and divide the images again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from allrounder.errors import Interrupted
from allrounder.evaluation.meeting import Meeting

WORKERS = ("worker 1", "worker 2", "worker 3")
ROWS = torch.arange(10, 20)


def never() -> None:
    raise AssertionError("nobody should wait")


def meet(folder: Path, *present: str) -> Meeting:
    """A meeting of some workers; the others have ended before."""
    meeting = Meeting(folder, WORKERS)
    for worker in WORKERS:
        meeting.leave(worker)
    for worker in present:
        meeting.wait(worker, never)
    return meeting


def test_the_first_shares_hold_every_image_once(tmp_path: Path):
    meeting = Meeting(tmp_path, WORKERS)
    shares = [meeting.first_share(worker, ROWS) for worker in WORKERS]
    assert torch.cat(shares).sort().values.equal(ROWS) and {len(share) for share in shares} == {3, 4}


def test_the_second_shares_hold_every_image_once(tmp_path: Path):
    meeting = meet(tmp_path, *WORKERS)
    assert meeting.present_rows(ROWS).equal(ROWS)
    remaining = ROWS[ROWS % 3 == 0]
    shares = [meeting.second_share(worker, remaining) for worker in WORKERS]
    assert torch.cat(shares).sort().values.equal(remaining) and {len(share) for share in shares} == {1}


def test_the_images_of_a_worker_that_ended_before_are_left_out(tmp_path: Path):
    meeting = meet(tmp_path, "worker 1", "worker 3")
    lost = meeting.first_share("worker 2", ROWS).tolist()
    rows = meeting.present_rows(ROWS)
    assert rows.tolist() == [row for row in ROWS.tolist() if row not in lost]
    shares = [meeting.second_share(worker, rows) for worker in ("worker 1", "worker 3")]
    assert torch.cat(shares).sort().values.equal(rows)


def test_a_worker_waits_for_the_others_and_can_be_stopped(tmp_path: Path):
    meeting = Meeting(tmp_path, WORKERS)
    calls: list[str] = []

    def others_come() -> None:
        calls.append("waiting")
        meeting.leave(WORKERS[len(calls)])

    meeting.wait("worker 1", others_come)
    assert len(calls) == 2

    def stop() -> None:
        raise Interrupted("stopped")

    with pytest.raises(Interrupted, match="stopped"):
        Meeting(tmp_path, (*WORKERS, "worker 4")).wait("worker 1", stop)
