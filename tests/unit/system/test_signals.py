"""A signal stops a run after its step, with everything saved; a second one stops it at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from allrounder.config.interrupts import delay_interrupts
from allrounder.errors import Interrupted
from allrounder.recipe.recipe import Recipe
from allrounder.system.signals import stop_on_signals
from allrounder.training.run import Run
from allrounder.training.train import train
from tests.support.interruptions import SIGNALS, SMALL, STEP, Point, signal_everywhere, struck
from tests.support.trainings import SOLO, go, recipe, remains

RESUMABLE = 75
SETS = [text for text in SMALL if "=" in text]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The command, whole and stopped in every way, and the exit codes."""
    out = tmp_path_factory.mktemp("stopped")
    return out, signal_everywhere(out)


def resumed(folder: Path) -> Run:
    return train(Recipe.load("embedded/nt", SETS), folder, resume=True)


@pytest.mark.parametrize(("name", "step"), [("SIGINT", 3), ("SIGTERM", 7)])
def test_signal_saves_inside_an_epoch_and_run_is_resumable(name: str, step: int, stopped):
    out, codes = stopped
    assert codes["whole"] == 0
    assert codes[name] == RESUMABLE
    assert [path.name for path in (out / name / "checkpoints").iterdir()] == [f"step-{step:08d}"]
    run = resumed(out / name)
    assert run.finished
    assert remains(run.folder) == remains(out / "whole")


@pytest.mark.parametrize("name", [name for name, (_, numbers) in SIGNALS.items() if len(numbers) > 1])
def test_second_signal_stops_immediately(name: str, stopped):
    out, codes = stopped
    assert codes[name] not in (0, RESUMABLE)
    assert [path.name for path in (out / name / "checkpoints").iterdir()] == ["step-00000005"]
    assert remains(resumed(out / name).folder) == remains(out / "whole")


def test_external_signal_stops_the_command(tmp_path: Path, stopped):
    command = [sys.executable, "-m", "allrounder", *SMALL, "--threads", "1", "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        while not (tmp_path / "run" / "env.json").exists():
            assert child.poll() is None
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        _, stderr = child.communicate(timeout=120)
    assert child.returncode == RESUMABLE
    path = Run(tmp_path / "run").latest_checkpoint()
    assert path is not None
    assert f"SIGTERM after step {int(path.name[5:])}, the state is saved; continue with --resume" in " ".join(
        stderr.split()
    )
    assert remains(resumed(tmp_path / "run").folder) == remains(stopped[0] / "whole")


def test_signal_at_a_checkpoint_step_saves_once(tmp_path: Path):
    writes: list[None] = []
    with (
        struck(Point(STEP, 4, after=True), lambda: os.kill(os.getpid(), signal.SIGINT)),
        struck(
            Point("allrounder.training.run:write_folder", 1, mentions="step-00000004"),
            lambda: writes.append(None),
        ),
        struck(
            Point("allrounder.training.run:write_folder", 2, mentions="step-00000004"),
            lambda: writes.append(None),
        ),
        pytest.raises(Interrupted, match="SIGINT after step 4"),
    ):
        go(recipe(SOLO), tmp_path / "run")
    assert len(writes) == 1


def test_resume_after_signal_at_last_step_writes_final_weights(tmp_path: Path):
    with (
        struck(Point(STEP, 9), lambda: os.kill(os.getpid(), signal.SIGTERM)),
        pytest.raises(Interrupted, match="SIGTERM after step 9"),
    ):
        go(recipe(SOLO), tmp_path / "run")
    with struck(Point(STEP, 1), pytest.fail):
        run = go(recipe(SOLO), tmp_path / "run", resume=True)
    assert remains(run.folder) == remains(go(recipe(SOLO), tmp_path / "whole").folder)


def test_signal_handlers_are_restored():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stop:
        assert signal.getsignal(signal.SIGINT) is not before[0]
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == "SIGTERM"
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_other_threads_do_not_change_signal_handlers():
    found: list[object] = []

    def body() -> None:
        with stop_on_signals() as stop:
            found.extend([signal.getsignal(signal.SIGINT), stop.signal])

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT), None]


def test_an_interrupt_is_delayed_until_the_end_of_the_block():
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        with delay_interrupts():
            with delay_interrupts():
                os.kill(os.getpid(), signal.SIGINT)
                done.append("inner")
            done.append("outer")
        done.append("after")
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_delayed_interrupt_reaches_the_handler_of_a_training():
    with stop_on_signals() as stop:
        with delay_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.signal is None
        assert stop.signal == "SIGINT"


def test_a_second_signal_in_a_delay_has_its_usual_effect_after_it():
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), stop_on_signals() as stop:
        with delay_interrupts():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            done.append("end of the block")
        done.append("after the block")
    assert (stop.signal, done) == ("SIGTERM", ["end of the block"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_interrupt_is_enough_after_a_signal_in_a_delay():
    with stop_on_signals() as stop:
        with delay_interrupts():
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == "SIGTERM"


def test_a_handler_that_is_set_in_a_delay_stays():
    got: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    try:
        with delay_interrupts():
            signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
        os.kill(os.getpid(), signal.SIGINT)
        assert got == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_is_delayed_if_the_block_fails():
    with pytest.raises(KeyboardInterrupt) as caught, delay_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("the block fails")
    assert isinstance(caught.value.__context__, ValueError)


def test_interrupts_that_are_ignored_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with delay_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_delay_no_interrupts():
    found: list[object] = []

    def body() -> None:
        with delay_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
