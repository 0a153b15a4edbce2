"""What the files of a run folder say about its training, readable without torch."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

from pydantic import ValidationError

from allrounder.config.decode import Table, is_table
from allrounder.config.fields import adapter
from allrounder.config.time import Clock
from allrounder.errors import RecipeError, RunError
from allrounder.recipe.exchange import Exchange
from allrounder.recipe.library import parse_toml
from allrounder.system.files import is_locked, newest_folder

FORMAT_VERSION = 2
"""Of run folders, checkpoints and saved weights; increased by every incompatible change of them."""
FORMAT_FILE = "format.json"
RECIPE_FILE = "recipe.toml"
METRICS_FILE = "metrics.jsonl"
Event = dict[str, Any]


@final
@dataclass(frozen=True)
class RunRecord:
    """The recipe of a run as a raw table, its log, and whether the training is finished or running."""

    folder: Path
    recipe: Table
    events: tuple[Event, ...]
    finished: bool
    running: bool

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Read a run folder; raise RunError if it is none or is damaged."""
        file = folder / RECIPE_FILE
        if not file.is_file():
            raise RunError(f"{folder}: not a run folder, it has no {RECIPE_FILE}")
        check_format(folder, read_format(folder))
        try:
            recipe = parse_toml(file.read_text(encoding="utf-8"), str(file))
        except RecipeError as error:
            raise RunError(f"{error}; restore it") from None
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{file}: cannot be read ({error}); restore it") from None
        if not isinstance(recipe.get("epochs"), int) or not isinstance(recipe.get("task"), list):
            raise RunError(f"{file}: got no epochs or no tasks, expected a recipe; restore it")
        try:
            events = read_metrics(folder / METRICS_FILE)
        except (OSError, ValueError) as error:
            raise RunError(f"{folder / METRICS_FILE}: cannot be read ({error}); restore it") from None
        return cls(folder, recipe, tuple(events), is_finished(folder), is_locked(folder))

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return str(self.recipe.get("name", ""))

    @property
    def learners(self) -> list[str]:
        """The names of the learners, in their order."""
        return [str(task["name"]) for task in cast(list[Table], self.recipe["task"])]

    @property
    def epochs(self) -> int:
        """The number of epochs of the whole training."""
        return cast(int, self.recipe["epochs"])

    @property
    def epoch(self) -> int:
        """The last epoch that was logged; 0 if none was."""
        return max((event["epoch"] for event in self.events if event["event"] == "epoch"), default=0)

    @property
    def state(self) -> str:
        """Finished, running, interrupted, or not started."""
        if self.finished and not self.running:
            return "finished"
        at = f"epoch {self.epoch} of {self.epochs}"
        if self.running:
            return f"running, {at} done"
        return f"interrupted, {at} done" if self.events else "interrupted before the first epoch"

    def best_validation(self) -> Event | None:
        """Return the validation of the selected weights: the first one with the highest score."""
        validations = [event for event in self.events if event["event"] == "validation"]
        return max(validations, key=lambda event: event["score"], default=None)

    def count_exchanges(self) -> Counter[int]:
        """Return the number of exchanges of every logged epoch."""
        steps = {event["epoch"]: event["t"] for event in self.events if event["event"] == "epoch"}
        mix = self.recipe.get("mix")
        raw = mix.get("exchange") if is_table(mix) else None
        counts = Counter[int]()
        if not raw or not steps:
            return counts
        try:
            exchange = cast(Exchange, adapter(Exchange).validate_python(raw))
        except ValidationError as error:
            problem = f"mix.exchange cannot be read ({error.errors()[0]['msg']}); restore it"
            raise RunError(f"{self.folder / RECIPE_FILE}: {problem}") from None
        epoch, t = next(iter(steps.items()))
        clock = Clock(self.epochs, t // epoch)
        last = min(max(steps.values()), clock.total_steps - 1)  # no exchange follows the last step
        counts.update(clock.epoch(t) for t in range(1, last + 1) if exchange.is_due(t, clock))
        return counts


def is_finished(folder: Path) -> bool:
    """Whether the training of a run folder is finished."""
    return newest_folder(folder / "weights", "last") is not None


def read_metrics(file: Path) -> list[Event]:
    """Read all events; a last line without its end is still being written and is left out."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def read_format(folder: Path) -> object:
    """Read the format version of a run folder, None if it has none."""
    path = folder / FORMAT_FILE
    if not path.is_file():
        return None
    try:
        facts: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error}); restore it") from None
    return cast(dict[str, Any], facts).get("format") if isinstance(facts, dict) else None


def check_format(path: Path, version: object) -> None:
    """Raise RunError unless a folder has the format version that this version reads and writes."""
    if version != FORMAT_VERSION:
        got = "no format version" if version is None else f"format version {version}"
        raise RunError(
            f"{path}: got {got}, expected format version {FORMAT_VERSION}; use the version of allrounder "
            "that wrote it, or train it again in another folder"
        )
