"""What the files of a run folder say about its training, readable without torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

from pydantic import ValidationError

from allrounder.config.decode import Table, is_table
from allrounder.config.fields import adapter
from allrounder.config.time import Clock
from allrounder.config.toml import parse_toml, read_limited
from allrounder.errors import RecipeError, RunError
from allrounder.recipe.exchange import Exchange
from allrounder.system.checked_files import (
    ADVICE,
    CHANGED,
    check_version,
    damage_error,
    parse_json_lines,
    read_json,
    read_manifest,
    read_toml_text,
)
from allrounder.system.field_checks import check_fields
from allrounder.system.files import check_location, is_locked, newest_folder
from allrounder.training.record_fields import EVENT_FIELDS, EVENTS, RECIPE_FIELDS

FORMAT_VERSION = 3
"""Of run folders, checkpoints and saved weights; increased by every incompatible change of them."""
FORMAT_FILE = "format.json"
RECIPE_FILE = "recipe.toml"
METRICS_FILE = "metrics.jsonl"
MAX_METRICS_BYTES = 2**28
"""Size of METRICS_FILE; a learner writes about 200 bytes an epoch."""
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
        try:
            recipe = parse_toml(read_recipe_text(folder), str(file))
        except RecipeError as error:
            raise RunError(f"{error}; restore it") from None
        try:
            check_fields(recipe, RECIPE_FIELDS)
        except ValueError as error:
            raise RunError(f"{file}: {error}, expected a recipe; restore it") from None
        events = read_metrics(folder)
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
        if not raw or not steps:
            return Counter()
        try:
            exchange = cast(Exchange, adapter(Exchange).validate_python(raw))
        except ValidationError as error:
            problem = f"mix.exchange cannot be read ({error.errors()[0]['msg']}); restore it"
            raise RunError(f"{self.folder / RECIPE_FILE}: {problem}") from None
        epoch, t = next(iter(steps.items()))
        return exchange.count_by_epoch(Clock(self.epochs, t // epoch), max(steps.values()))


def is_finished(folder: Path) -> bool:
    """Whether the training of a run folder is finished."""
    return newest_folder(folder / "weights", "last") is not None


def read_recipe_text(folder: Path) -> str:
    """Read the resolved recipe of a run folder; raise RunError if it is none, is damaged, or has another
    format version."""
    check_location(folder)
    file = folder / RECIPE_FILE
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; name the folder of a run (see: allrounder ls)")
    if not file.is_file():
        raise RunError(f"{folder}: not a run folder, it has no {RECIPE_FILE}")
    if not (folder / FORMAT_FILE).is_file():
        check_version(folder, None, FORMAT_VERSION, ADVICE)
    read_json(folder / FORMAT_FILE, ADVICE, FORMAT_VERSION)
    return read_toml_text(file, ADVICE)


def read_metrics(folder: Path) -> list[Event]:
    """Read all events of a run; a last line without its end is still being written and is left out."""
    file = folder / METRICS_FILE
    last = newest_folder(folder / "weights", "last")
    content = read_metrics_bytes(
        file, 0 if last is None else read_manifest(last, "metrics_bytes")["metrics_bytes"]
    )
    events = parse_json_lines(file, content, ADVICE)
    for number, event in enumerate(events, start=1):
        try:
            check_fields(event, EVENT_FIELDS)
            check_fields(event, EVENTS.get(event["event"], {}))
        except ValueError as error:
            raise damage_error(file, f"line {number}: {error}", ADVICE) from None
    return events


def read_metrics_bytes(file: Path, expected_bytes: int) -> bytes:
    """Read a file of metrics; raise RunError unless a line ends after the bytes that a manifest expects."""
    try:
        content = read_limited(file, MAX_METRICS_BYTES) if file.exists() else b""
    except (OSError, ValueError) as error:
        raise damage_error(file, error, ADVICE) from None
    if expected_bytes and content[expected_bytes - 1 : expected_bytes] != b"\n":
        reason = f"got {len(content)} bytes, expected a line that ends after {expected_bytes}: {CHANGED}"
        raise damage_error(file, reason, ADVICE)
    return content
