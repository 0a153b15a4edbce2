"""Two processes that work on one folder at the same time: one does the work, as if it were alone, and the
other ends with one clear error, or reads what is there."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from allrounder.cli.run_report import run_report
from allrounder.errors import AllrounderError
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from tests.support.networks import blobs, tiny
from tests.support.trainings import PAIR, contents, go, recipe, remains

FORK = multiprocessing.get_context("fork")
LIMIT = 60
Wait = Callable[[], None]


class WaitsAtStep:
    """A listener that calls a function after a step of a training."""

    def __init__(self, t: int, wait: Wait) -> None:
        self.t = t
        self.wait = wait

    def begin(self, total: int, done: int) -> None: ...

    def step(self, t: int) -> None:
        if t == self.t:
            self.wait()

    def log(self, text: str) -> None: ...


def race(work: Callable[[Wait], object]) -> list[str]:
    """Start the same work twice at the same time; return "finished" or the error of each, sorted.

    The process that works calls the function that it gets, which waits until the other process has ended.
    """
    start, ended, results = FORK.Barrier(2), FORK.Event(), FORK.SimpleQueue()

    def wait() -> None:
        assert ended.wait(LIMIT), "the other process did not end"

    def run() -> None:
        start.wait(LIMIT)
        try:
            work(wait)
            result = "finished"
        except AllrounderError as error:
            result = str(error)
        except BaseException as error:
            result = f"not an error of ours: {error!r}"
        ended.set()
        results.put(result)

    processes = [FORK.Process(target=run) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(2 * LIMIT)
    assert [process.exitcode for process in processes] == [0, 0]
    return sorted(str(results.get()) for _ in processes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nothing disturbed."""
    return go(recipe(PAIR), tmp_path_factory.mktemp("alone") / "run").folder


@pytest.mark.parametrize("first_wait", [1, 5])
def test_of_two_trainings_one_trains_and_the_other_is_refused(first_wait: int, alone: Path, tmp_path: Path):
    def work(wait: Wait) -> None:
        go(recipe(PAIR), tmp_path / "run", progress=WaitsAtStep(first_wait, wait))

    refused, finished = race(work)
    assert finished == "finished"
    assert refused == f"{tmp_path / 'run'}: another process is training here; wait for it or stop it"
    assert remains(tmp_path / "run") == remains(alone)


def test_a_training_in_a_folder_in_which_another_saved_a_checkpoint_is_refused(alone: Path, tmp_path: Path):
    errors: list[str] = []

    def try_again() -> None:
        for resume in (False, True):
            with pytest.raises(AllrounderError) as caught:
                go(recipe(PAIR), tmp_path / "run", resume=resume)
            errors.append(str(caught.value))

    go(recipe(PAIR), tmp_path / "run", progress=WaitsAtStep(5, try_again))
    message = f"{tmp_path / 'run'}: another process is training here; wait for it or stop it"
    assert errors == [message, message]
    assert remains(tmp_path / "run") == remains(alone)


def test_of_two_evaluations_one_evaluates_and_the_other_is_refused(tmp_path: Path):
    data, network = blobs(12), tiny().eval()

    def run(out: Path, wait: Wait) -> None:
        options = EvalOptions(check="skip")
        probes = ["pgd-1@Linf:0.1", "pgd-2@Linf:0.1"]
        evaluate(network, data, probes=probes, out=out, progress=lambda event: wait(), options=options)

    run(tmp_path / "alone", lambda: None)
    refused, finished = race(lambda wait: run(tmp_path / "eval", wait))
    assert finished == "finished"
    assert refused == f"{tmp_path / 'eval'}: another process is evaluating here; wait for it or stop it"
    assert contents(tmp_path / "eval") == contents(tmp_path / "alone")


def test_a_report_during_a_training_shows_its_state_and_changes_nothing(alone: Path, tmp_path: Path):
    reached, reported = FORK.Event(), FORK.Event()

    def wait() -> None:
        reached.set()
        reported.wait(LIMIT)

    def train() -> None:
        go(recipe(PAIR), tmp_path / "run", progress=WaitsAtStep(5, wait))

    training = FORK.Process(target=train)
    training.start()
    try:
        assert reached.wait(LIMIT)
        before = contents(tmp_path / "run")
        run_report([str(tmp_path / "run")], tmp_path / "report.html", None, has_gallery=False)
        assert contents(tmp_path / "run") == before
        page = (tmp_path / "report.html").read_text(encoding="utf-8")
        assert "running, epoch 1 of 3 done; wait for its end" in page
    finally:
        reported.set()
        training.join()
    assert training.exitcode == 0 and remains(tmp_path / "run") == remains(alone)
