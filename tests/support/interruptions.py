"""Deaths at chosen moments of a training, in a process of its own or as an exception in this one.

Run as a module, it trains a scenario once for every point and lets each training be killed there.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn

from allrounder.cli import main as cli
from allrounder.recipe.recipe import Recipe
from tests.support.networks import broad, tiny
from tests.support.paths import PROJECT
from tests.support.trainings import PAIR, SOLO, forgetful, go, recipe


class Killed(BaseException):
    """Stands for a kill where many are tried in one process."""


@dataclass(frozen=True)
class Point:
    """The n-th call of something, counting only calls whose arguments mention a word."""

    target: str
    """module:name, below the package or in the standard library."""
    call: int = 1
    after: bool = False
    mentions: str = ""


POINTS = {
    "before the format appears": Point("pathlib:Path.replace", mentions=".format.json.tmp"),
    "before the recipe appears": Point("pathlib:Path.replace", mentions=".recipe.toml.tmp"),
    "before the sessions appear": Point("pathlib:Path.replace", mentions=".env.json.tmp"),
    "before the first step": Point("allrounder.training.learner:Learner.step"),
    "between two learners": Point("allrounder.training.learner:Learner.step", 9, after=True),
    "inside an epoch": Point("allrounder.training.learner:Learner.step", 10, after=True),
    "at the end of an epoch": Point("allrounder.training.run:Run.log", 3, after=True),
    "between the receivers of an exchange": Point(
        "allrounder.training.learner:Learner.load_global_weights", 3, after=True
    ),
    "right after an exchange": Point(
        "allrounder.training.learner:Learner.load_global_weights", 4, after=True
    ),
    "while an event is written": Point("allrounder.training.run:append_line", 3),
    "before a manifest appears": Point("pathlib:Path.replace", 2, mentions=".manifest.json.tmp"),
    "at a validation": Point("allrounder.training.model_selection:ModelSelector.measure", 2),
    "after a first tensor file": Point(
        "allrounder.system.tensor_folders:save_file", 3, True, mentions=".step-"
    ),
    "before a manifest": Point("allrounder.system.tensor_folders:write_json", 2, mentions=".step-"),
    "before a checkpoint appears": Point("pathlib:Path.rename", 3, mentions=".step-"),
    "before an older checkpoint goes": Point("allrounder.training.run:prune_folders", 2, mentions="'step'"),
    "while an older checkpoint goes": Point("shutil:rmtree", 1, mentions=".step-00000002.tmp'"),
    "inside best weights": Point("allrounder.system.tensor_folders:save_file", 2, True, mentions=".best-"),
    "between best weights and the log": Point("allrounder.training.run:Run.save_weights", 1, True, "'best'"),
    "between best weights and a checkpoint": Point("allrounder.training.run:Run.save_checkpoint", 2),
    "before older best weights go": Point("allrounder.training.run:Run.prune_best", 4),
    "before the final weights": Point("allrounder.training.trainer:Trainer.finish"),
    "inside the final weights": Point(
        "allrounder.system.tensor_folders:save_file", 1, True, mentions=".last-"
    ),
    "before the final weights appear": Point("pathlib:Path.rename", 1, mentions=".last-"),
}

RESETS = "exchange = { start = 1, every = 1, momentum = 'reset', averages = 'reset' }"
EVERY_STEP = "exchange = { start = 1, every = 1, when = 'every-step' }"
EXCHANGE, LINF_END = "exchange = { start = 1, every = 1 }", "steps = 2 } }\nlr = 0.05"
FAST = "fast convolutions"
HARDEST = "momentum, averages, resets"
SCENARIOS: dict[str, tuple[Recipe, Callable[[], nn.Module]]] = {
    HARDEST: (
        recipe(
            PAIR,
            (EXCHANGE, RESETS),
            (
                "lr = 0.05",
                "lr = 0.05\naverage = { kind = 'warmup' }\noptimizer = { kind = 'sgd', nesterov = true }",
            ),
            ("to = [0.1, 0.02] }", "to = [0.1, 0.02] }\naverage = 0.7"),
        ),
        tiny,
    ),
    "Adam, recalibrated, train_frozen": (
        recipe(
            PAIR,
            (EXCHANGE, f"{EXCHANGE}\nbuffers = 'recalibrate'"),
            (
                LINF_END,
                "steps = 2 }, norm_layers = 'train_frozen' }\nlr = 0.01\noptimizer = { kind = 'adam' }",
            ),
        ),
        tiny,
    ),
    "AdamW, dropout, train": (
        recipe(
            PAIR,
            (LINF_END, "steps = 2 }, norm_layers = 'train' }\nlr = 0.01\noptimizer = { kind = 'adamw' }"),
            ("decay = 0.8", "decay = { kind = 'warmup' }"),
        ),
        forgetful,
    ),
    "every-step exchanges, averages kept": (
        recipe(
            PAIR,
            (EXCHANGE, EVERY_STEP),
            ("lr = 0.05", "lr = 0.05\naverage = 0.7"),
            ("seed", "pace = 'step'\nseed"),
        ),
        tiny,
    ),
    FAST: (recipe(PAIR, ("seed", "compute = { fast_conv = true }\nseed")), broad),
    "solo": (recipe(SOLO), tiny),
}


@contextmanager
def struck(point: Point, strike: Callable[[], object]) -> Generator[None]:
    """Call `strike` at a point."""
    module, _, path = point.target.partition(":")
    *owners, name = path.split(".")
    place: Any = importlib.import_module(module)
    for owner in owners:
        place = getattr(place, owner)
    original, seen = getattr(place, name), 0

    @wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += point.mentions in f"{args}{kwargs}"
        due = seen == point.call and point.mentions in f"{args}{kwargs}"
        if due and not point.after:
            strike()
        answer = original(*args, **kwargs)
        if due and point.after:
            strike()
        return answer

    setattr(place, name, counted)
    try:
        yield
    finally:
        setattr(place, name, original)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def perished(out: Path) -> dict[str, int]:
    """Have another process kill trainings below a folder; how each of them ended, by name."""
    words = [sys.executable, "-m", "tests.support.interruptions", str(out)]
    root = PROJECT
    subprocess.run(words, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    return json.loads((out / "codes.json").read_text())


def give_up() -> None:
    raise Killed


def forked(body: Callable[[], int]) -> int:
    """Run something in a copy of this process; its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest may not listen
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            os._exit(body())
        except BaseException:
            traceback.print_exc()
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_everywhere(out: Path) -> dict[str, int]:
    """Train the hardest scenario whole, then once for every point."""
    value, model = SCENARIOS[HARDEST]
    go(value, out / "whole", model=model)  # what torch loads at first use is shared by all copies

    def victim(name: str) -> int:
        with struck(POINTS[name], die):
            go(value, out / name, model=model)
        return 0

    return {name: forked(partial(victim, name)) for name in POINTS}


SMALL = ("train", "embedded/nt", *(word for text in (
    "epochs=2", "batch_size=790", "model.width=4", "validation.images=50", "validation.train_images=0",
    "validation.every=1", "validation.threats=[]",
) for word in ("--set", text)))  # fmt: skip
"""Five steps an epoch, ten in all."""
STEP = "allrounder.training.learner:Learner.step"
SIGNALS = {
    "SIGINT": (Point(STEP, 3), [signal.SIGINT]),
    "SIGTERM": (Point(STEP, 7, after=True), [signal.SIGTERM]),
    "SIGINT twice": (Point(STEP, 7), [signal.SIGINT, signal.SIGINT]),
    "SIGTERM twice": (Point(STEP, 7), [signal.SIGTERM, signal.SIGTERM]),
    "SIGINT, SIGTERM": (Point(STEP, 7), [signal.SIGINT, signal.SIGTERM]),
}


def command(*words: str) -> int:
    """The exit code of a command that comes to its end."""
    sys.argv = ["allrounder", *words]
    try:
        cli.main()
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


def signal_everywhere(out: Path) -> dict[str, int]:
    """Give the command whole, then once for every way to stop it, each in a copy of this process."""
    torch.optim.SGD([torch.zeros(1)])  # torch loads much at its first use, which all copies then share

    def stopped(name: str) -> int:
        point, numbers = SIGNALS[name]
        with struck(point, lambda: [os.kill(os.getpid(), number) for number in numbers]):
            return command(*SMALL, "--out", str(out / name))

    codes = {"whole": forked(partial(command, *SMALL, "--out", str(out / "whole")))}
    return codes | {name: forked(partial(stopped, name)) for name in SIGNALS}


if __name__ == "__main__":
    torch.set_num_threads(1)
    below = Path(sys.argv[1])
    (below / "codes.json").write_text(json.dumps(kill_everywhere(below)))
