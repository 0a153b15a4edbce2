"""Evaluations in several processes, and what signals and deaths leave of them."""

from __future__ import annotations

import io
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
from allrounder.evaluation import runner
from allrounder.evaluation.store import RESULTS_FOLDER, ResultStore
from allrounder.report.outcome import NATURAL, OUTCOME_FILE
from allrounder.system import processes as pool
from allrounder.system.progress import ProgressEvent
from allrounder.types import Images, Labels
from tests.support.evaluations import (
    PROBES,
    Fatal,
    Slow,
    command,
    images,
    read_outcome_bytes,
    reference_outcome_bytes,
    run_evaluation,
    run_kill_at_random,
    trained_network,
    with_workers,
)
from tests.support.paths import PROJECT

ROOT = PROJECT


def fatal() -> nn.Module:
    """Ends the worker that has the second image, and does nothing in this process."""
    model = trained_network(Fatal)
    assert isinstance(model, Fatal)
    model.image = images().fetch(torch.tensor([1]))[0]
    return model


def shard_bytes(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (folder / RESULTS_FOLDER).rglob("*.safetensors")}


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
def test_error_names_a_dead_worker_and_results_are_kept(tmp_path: Path):
    events = list[ProgressEvent]()
    with pytest.raises(RunError) as failed:
        run_evaluation(tmp_path / "eval", model=fatal(), workers=2, progress=events.append)
    assert "1 of 2" in str(failed.value) and "worker 2: its process ended with code 7" in str(failed.value)
    assert "worker 1:" not in str(failed.value)
    assert not (tmp_path / "eval" / OUTCOME_FILE).exists()
    natural = ResultStore(24, tmp_path / "eval").results(NATURAL)
    assert bool(natural.done.all())  # both had come so far, and the first came to its end
    done = {note.stage for note in events if note.name == "worker 1" and note.done == note.total}
    assert str(PROBES[-1]) in done
    before = shard_bytes(tmp_path / "eval")
    run_evaluation(tmp_path / "eval", model=fatal())  # a process of one's own is not harmed
    run_evaluation(tmp_path / "whole", model=fatal())
    assert read_outcome_bytes(tmp_path / "eval") == read_outcome_bytes(tmp_path / "whole")
    assert before.items() <= shard_bytes(tmp_path / "eval").items()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("start")
@pytest.mark.parametrize("workers", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_any_number_of_workers_gives_the_same_bytes(workers: int, tmp_path: Path):
    run_evaluation(tmp_path, n=2, probes=[], workers=40)  # two have work
    run_evaluation(tmp_path, workers=workers)
    assert read_outcome_bytes(tmp_path) == reference_outcome_bytes()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("start")
def test_workers_without_out_use_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    run_evaluation(workers=2).save(tmp_path / OUTCOME_FILE)
    assert read_outcome_bytes(tmp_path) == reference_outcome_bytes()
    assert not list((tmp_path / "tmp").glob("allrounder-*"))


def test_job_can_be_pickled(tmp_path: Path):
    job = evaluation.EvaluationJob(trained_network(), images(), PROBES, 0, 8, False, tmp_path)
    work = pickle.loads(pickle.dumps(partial(job.run_rows, rows=torch.arange(3))))
    work("worker 1", lambda note: None)
    assert ResultStore(24, tmp_path).results(NATURAL).done.sum() == 3


class Local(nn.Module):
    """Holds something that cannot be handed on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = trained_network(), lambda x: 2 * x

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


def test_error_names_what_cannot_be_pickled(tmp_path: Path):
    same = r"cannot be sent to other processes \(.*(lambda|lock).*\); define it at the top .* workers=1"
    for model, name in ((lambda x: trained_network()(x), "function"), (Local(), "Local")):
        with pytest.raises(WorldError, match=rf"workers: the network: {name} {same}"):
            run_evaluation(tmp_path / "eval", model=model, workers=2)
    with pytest.raises(WorldError, match=rf"workers: the data: Stuck {same}"):
        run_evaluation(split=Stuck(), workers=2)
    assert not list(tmp_path.iterdir())
    assert run_evaluation(tmp_path / "local", model=Local()).accuracy() > 0.5


def test_pickle_check_does_not_copy_tensors():
    class Refusing(Tensor):
        def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
            raise AssertionError("it was copied")

    model = trained_network()
    model.register_buffer("big", torch.zeros(3).as_subclass(Refusing))
    pool._PickleCheck(io.BytesIO()).dump(model)
    with pytest.raises(AssertionError, match="copied"):
        pickle.dumps(model)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_results_and_the_message_says_how_to_continue(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "REPORT_INTERVAL", -1.0)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def strike(note: ProgressEvent) -> None:
        if 0 < note.done < note.total:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match=f"{number.name}: stopped, call again to continue"):
        run_evaluation(tmp_path / "eval", progress=strike)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert len(list((tmp_path / "eval" / RESULTS_FOLDER).iterdir())) > 1  # natural, and a part of an attack
    with pytest.raises(Interrupted, match=f"^{number.name}: stopped, nothing was saved: give out=...$"):
        run_evaluation(progress=strike)
    run_evaluation(tmp_path / "eval")
    assert read_outcome_bytes(tmp_path / "eval") == reference_outcome_bytes()


def test_a_second_interrupt_stops_at_once_and_still_saves(tmp_path: Path):
    def strike(note: ProgressEvent) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_evaluation(tmp_path / "eval", progress=strike)
    assert bool(ResultStore(24, tmp_path / "eval").results(NATURAL).done.all())


def test_a_worker_saves_and_ends_when_its_parent_is_gone(tmp_path: Path):
    job = evaluation.EvaluationJob(trained_network(), images(), PROBES, 0, 8, False, tmp_path)
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    here.close()  # nobody listens
    child = os.fork()
    if child == 0:
        try:
            pool._run_job(partial(job.run_rows, rows=torch.arange(24)), "worker 1", there)
        except SystemExit as ended:
            os._exit(cast(int, ended.code))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == pool.EXIT_RESUMABLE
    assert bool(ResultStore(24, tmp_path).results(NATURAL).done.any())
    assert not ResultStore(24, tmp_path).results(str(PROBES[-1])).done.all()


@pytest.mark.slow
def test_kill_at_any_moment_gives_identical_bytes(tmp_path: Path):
    ends = run_kill_at_random(tmp_path)
    assert {code for codes in ends.values() for code in codes} <= {0, -signal.SIGKILL}
    assert sum(codes[0] == -signal.SIGKILL for codes in ends.values()) > len(ends) / 2
    run_evaluation(tmp_path / "here", model=trained_network(Slow))
    assert read_outcome_bytes(tmp_path / "here") == read_outcome_bytes(tmp_path / "whole")
    for name in ends:
        run_evaluation(tmp_path / name, model=trained_network(Slow))
        assert read_outcome_bytes(tmp_path / name) == read_outcome_bytes(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3])
def test_workers_do_not_outlive_a_parent_that_was_killed(delay: float, tmp_path: Path):
    with subprocess.Popen(command("work", tmp_path / "eval"), cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        workers = json.loads(parent.stdout.readline())
        time.sleep(delay)
        parent.kill()
    # On a busy machine, one worker may end before the other begins.
    assert workers and parent.returncode == -signal.SIGKILL
    end = time.monotonic() + 20
    while any(alive(number) for number in workers):
        assert time.monotonic() < end, "a worker goes on for nobody"
        time.sleep(0.05)
    assert not (tmp_path / "eval" / OUTCOME_FILE).exists()
    with_workers(tmp_path / "eval")
    run_evaluation(tmp_path / "whole", model=trained_network(Slow))
    assert read_outcome_bytes(tmp_path / "eval") == read_outcome_bytes(tmp_path / "whole")


def alive(number: int) -> bool:
    """Whether a process runs; one that has ended may still be listed."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
