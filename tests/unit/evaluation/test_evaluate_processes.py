"""Evaluations in several processes, and what signals and deaths leave of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from allrounder.errors import Interrupted, RunError, WorldError
from allrounder.evaluation import evaluate as evaluation
from allrounder.evaluation import runner as assessment
from allrounder.evaluation.evaluate import OUTCOME
from allrounder.evaluation.store import LINES, Ledger
from allrounder.report.outcome import NATURAL
from allrounder.system import processes as pool
from allrounder.system.processes import Note
from allrounder.types import Images, Labels
from tests.support.evaluations import (
    PROBES,
    Fatal,
    Slow,
    command,
    images,
    measured,
    perished,
    saved,
    taught,
    whole,
    with_workers,
)
from tests.support.paths import PROJECT

ROOT = PROJECT


def fatal() -> nn.Module:
    """Ends the worker that has the second image, and does nothing in this process."""
    model = taught(Fatal)
    assert isinstance(model, Fatal)
    model.image = images().fetch(torch.tensor([1]))[0]
    return model


def pages(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (folder / LINES).rglob("*.safetensors")}


@pytest.fixture(params=["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How workers begin: spawned, as they are; or as copies of this process, which takes no time."""
    kind: str = request.param
    context = multiprocessing.get_context(kind)
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
    return kind


# Later versions of Python warn of forks, because of threads; nothing here has any.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("start")
def test_a_worker_that_dies_is_named_and_what_was_settled_is_kept(tmp_path: Path):
    told = list[Note]()
    with pytest.raises(RunError) as failed:
        measured(tmp_path / "eval", model=fatal(), workers=2, progress=told.append)
    assert "1 of 2" in str(failed.value) and "worker 2: its process ended with code 7" in str(failed.value)
    assert "worker 1:" not in str(failed.value)
    assert not (tmp_path / "eval" / OUTCOME).exists()
    natural = Ledger(24, tmp_path / "eval").lines(NATURAL)
    assert bool(natural.settled.all())  # both had come so far, and the first came to its end
    done = {note.what for note in told if note.name == "worker 1" and note.done == note.total}
    assert str(PROBES[-1]) in done
    before = pages(tmp_path / "eval")
    measured(tmp_path / "eval", model=fatal())  # a process of one's own is not harmed
    measured(tmp_path / "whole", model=fatal())
    assert saved(tmp_path / "eval") == saved(tmp_path / "whole")
    assert before.items() <= pages(tmp_path / "eval").items()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("start")
@pytest.mark.parametrize("workers", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_any_number_of_workers_gives_the_same_bytes(workers: int, tmp_path: Path):
    measured(tmp_path, n=2, probes=[], workers=40)  # two have work
    measured(tmp_path, workers=workers)
    assert saved(tmp_path) == whole()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("start")
def test_workers_need_no_folder_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    measured(workers=2).save(tmp_path / OUTCOME)
    assert saved(tmp_path) == whole()
    assert not list((tmp_path / "tmp").glob("allrounder-*"))


def test_a_share_of_the_work_can_be_handed_over(tmp_path: Path):
    job = evaluation.Job(taught(), images(), PROBES, 0, 8, False, tmp_path)
    work = pickle.loads(pickle.dumps(partial(job.settle, rows=torch.arange(3))))
    work("worker 1", lambda note: None)
    assert Ledger(24, tmp_path).lines(NATURAL).settled.sum() == 3


class Local(nn.Module):
    """Holds something that cannot be handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = taught(), lambda x: 2 * x

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(self.inner(x))


class Stuck:
    """A split that cannot be handed on."""

    def __init__(self) -> None:
        self.labels, self.lock = images().labels, threading.Lock()

    def __len__(self) -> int:
        return 24

    def fetch(self, index: Labels) -> Images:
        return images().fetch(index)


def test_what_cannot_be_handed_to_workers_is_said_so(tmp_path: Path):
    same = r"cannot be handed to other processes \(.*(lambda|lock).*\); define it at the top .* workers=1"
    for model, name in ((lambda x: taught()(x), "function"), (Local(), "Local")):
        with pytest.raises(WorldError, match=rf"workers: the network: {name} {same}"):
            measured(tmp_path / "eval", model=model, workers=2)
    with pytest.raises(WorldError, match=rf"workers: the data: Stuck {same}"):
        measured(split=Stuck(), workers=2)
    assert not list(tmp_path.iterdir())
    assert measured(tmp_path / "local", model=Local()).accuracy() > 0.5


def test_parts_are_weighed_without_their_tensors():
    class Refusing(Tensor):
        def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
            raise AssertionError("it was copied")

    model = taught()
    model.register_buffer("big", torch.zeros(3).as_subclass(Refusing))
    pool._Weigher().dump(model)
    with pytest.raises(AssertionError, match="copied"):
        pickle.dumps(model)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(assessment, "TELL_AFTER", -1.0)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def strike(note: Note) -> None:
        if 0 < note.done < note.total:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match=f"{number.name}: stopped, call again to continue"):
        measured(tmp_path / "eval", progress=strike)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert len(list((tmp_path / "eval" / LINES).iterdir())) > 1  # natural, and a part of an attack
    with pytest.raises(Interrupted, match=f"^{number.name}: stopped, nothing was saved: give out=...$"):
        measured(progress=strike)
    measured(tmp_path / "eval")
    assert saved(tmp_path / "eval") == whole()


def test_a_second_interrupt_stops_at_once_and_still_saves(tmp_path: Path):
    def strike(note: Note) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path / "eval", progress=strike)
    assert bool(Ledger(24, tmp_path / "eval").lines(NATURAL).settled.all())


def test_a_worker_saves_and_ends_when_its_parent_is_gone(tmp_path: Path):
    job = evaluation.Job(taught(), images(), PROBES, 0, 8, False, tmp_path)
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    here.close()  # nobody listens
    child = os.fork()
    if child == 0:
        try:
            pool._work(partial(job.settle, rows=torch.arange(24)), "worker 1", there)
        except SystemExit as ended:
            os._exit(cast(int, ended.code))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == pool.SAVED
    assert bool(Ledger(24, tmp_path).lines(NATURAL).settled.any())
    assert not Ledger(24, tmp_path).lines(str(PROBES[-1])).settled.all()


@pytest.mark.slow
def test_it_may_be_killed_at_any_moment(tmp_path: Path):
    ends = perished(tmp_path)
    assert {code for codes in ends.values() for code in codes} <= {0, -signal.SIGKILL}
    assert sum(codes[0] == -signal.SIGKILL for codes in ends.values()) > len(ends) / 2
    measured(tmp_path / "here", model=taught(Slow))
    assert saved(tmp_path / "here") == saved(tmp_path / "whole")
    for name in ends:
        measured(tmp_path / name, model=taught(Slow))
        assert saved(tmp_path / name) == saved(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3])
def test_workers_do_not_outlive_a_parent_that_was_killed(delay: float, tmp_path: Path):
    with subprocess.Popen(command("work", tmp_path / "eval"), cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        workers = json.loads(parent.stdout.readline())
        time.sleep(delay)
        parent.kill()
    assert len(workers) == 2 and parent.returncode == -signal.SIGKILL
    end = time.monotonic() + 20
    while any(alive(number) for number in workers):
        assert time.monotonic() < end, "a worker goes on for nobody"
        time.sleep(0.05)
    assert not (tmp_path / "eval" / OUTCOME).exists()
    with_workers(tmp_path / "eval")
    measured(tmp_path / "whole", model=taught(Slow))
    assert saved(tmp_path / "eval") == saved(tmp_path / "whole")


def alive(number: int) -> bool:
    """Whether a process runs; one that has ended may still be listed."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
