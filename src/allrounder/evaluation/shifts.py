"""Evaluates a network on images that were changed without an adversary: corruptions and perturbations.

A request is "c" (the fifteen standard corruptions at all severities), "c:5" (at one severity), "p" (the ten
standard perturbations), or a single one: "fog@c", "fog@c:5", "rotate@p". Corruptions beyond the fifteen and
perturbations beyond the ten are requested by name. All images are evaluated, also those that the network
misclassifies without a change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from torch import nn

from allrounder.config.fields import did_you_mean
from allrounder.data.base import Split
from allrounder.data.corruptions import CORRUPTIONS
from allrounder.data.corruptions.base import SEVERITIES
from allrounder.data.corruptions.datasets import ShiftedSet, find_set
from allrounder.data.corruptions.generate import ShiftKind, batch_size_for
from allrounder.data.corruptions.perturbations import PERTURBATIONS
from allrounder.errors import InputError, Interrupted
from allrounder.evaluation import runner as attack_runner
from allrounder.evaluation.assemble import check_complete
from allrounder.evaluation.runner import AttackProgress, AttackRunner
from allrounder.evaluation.store import ResultStore
from allrounder.nn.modes import preserve_mode
from allrounder.report.corruption_metrics import STANDARD_SHIFTS, ShiftId
from allrounder.report.outcome import IntArray
from allrounder.rng import Rng
from allrounder.types import Images, Labels, device_and_dtype

SHIFT_PATTERN = re.compile(r"(?:(\w+)@)?([cp])(?::(\d+))?")
MAX_IMAGES_IN_MEMORY = 512
"""Changed images in memory at once; fewer if images are large."""


@final
@dataclass(frozen=True)
class Shift:
    """A corruption at one severity, or a perturbation with all its frames."""

    kind: ShiftKind
    name: str
    severity: int | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.kind}" + ("" if self.severity is None else f":{self.severity}")


def parse_shifts(requests: str | Sequence[str]) -> tuple[Shift, ...]:
    """Parse requests, given as a list or separated by commas: each shift once, in the order of the tables."""
    words = [word.strip() for word in (requests.split(",") if isinstance(requests, str) else requests)]
    shifts = {shift for word in words if word for shift in _parse_word(word)}
    order = {"c": list(CORRUPTIONS), "p": list(PERTURBATIONS)}
    return tuple(sorted(shifts, key=lambda s: (s.kind, order[s.kind].index(s.name), s.severity or 0)))


def _parse_word(word: str) -> list[Shift]:
    match = SHIFT_PATTERN.fullmatch(word)
    if match is None or (match[2] == "p" and match[3] is not None):
        raise InputError(f"ood: got {word!r}, expected c, c:5, p, or one of them such as fog@c:5 or rotate@p")
    kind = cast(ShiftKind, match[2])
    choices = CORRUPTIONS if kind == "c" else PERTURBATIONS
    names = STANDARD_SHIFTS[kind] if match[1] is None else (match[1],)
    if names[0] not in choices:
        hint = did_you_mean(names[0], choices)
        raise InputError(f"ood: got {word!r}, expected one of {', '.join(choices)}{hint}")
    if kind == "p":
        return [Shift(kind, name) for name in names]
    severities = SEVERITIES if match[3] is None else (int(match[3]),)
    if severities[0] not in SEVERITIES:
        raise InputError(f"ood: got {word!r}, expected a severity of 1 to 5")
    return [Shift(kind, name, severity) for name in names for severity in severities]


@final
@dataclass(frozen=True, eq=False)
class CorruptionEval:
    """The corruptions and perturbations of an evaluation, and the image sets they come from."""

    shifts: tuple[Shift, ...] = ()
    sets: Mapping[ShiftKind, ShiftedSet] = field(default_factory=dict[ShiftKind, ShiftedSet])

    @classmethod
    def prepare(
        cls, requests: str | Sequence[str], split: Split, folder: str | Path | None = None
    ) -> CorruptionEval:
        """Find the image sets of a split, in `folder` or in the cache; what is missing is generated."""
        shifts = parse_shifts(requests)
        if folder is not None and not shifts:
            raise InputError(f"ood_data: got {folder}, but ood is empty; give ood as well, such as c")
        sets: dict[ShiftKind, ShiftedSet] = {}
        kinds: set[ShiftKind] = {shift.kind for shift in shifts}
        for kind in sorted(kinds):
            names = dict.fromkeys(shift.name for shift in shifts if shift.kind == kind)
            sets[kind] = find_set(split, kind, list(names), folder)
        return cls(shifts, sets)

    def facts(self) -> dict[str, Any]:
        """Which image sets are used, for the facts of an outcome; empty without shifts."""
        sets = {f"{kind}-{images.source}": images.description for kind, images in self.sets.items()}
        for kind, images in self.sets.items():
            if images.fallback_reason:
                sets[f"{kind}-unusable"] = images.fallback_reason
        return {"ood": sets} if sets else {}

    def store_keys(self, *shifts: Shift) -> dict[str, str]:
        """The store keys of some shifts, by probe: a severity is one probe, and so is every frame.

        A key names the image set, so results of different sets stay apart.
        """
        keys: dict[str, str] = {}
        for shift in shifts:
            images = self.sets[shift.kind]
            content_id = images.content_id(shift.name)
            numbers = range(images.num_frames(shift.name)) if shift.severity is None else (shift.severity,)
            probes = [str(ShiftId(shift.name, shift.kind, images.source, number)) for number in numbers]
            keys |= {probe: f"{probe} of {content_id}" for probe in probes}
        return keys

    def run(self, runner: AttackRunner, rows: Labels) -> None:
        """Classify the changed images at `rows`, except those that the store already has."""
        with ExitStack() as stack, torch.inference_mode(False), torch.no_grad():
            if isinstance(runner.model, nn.Module):
                stack.enter_context(preserve_mode(runner.model))
                runner.model.eval()
            for shift in self.shifts:
                keys = [*self.store_keys(shift).values()]
                done = torch.stack([runner.store.results(key).done[rows] for key in keys]).all(0)
                if not done.all():
                    PredictionBuffer(runner, keys, rows[~done]).run(shift, self.sets[shift.kind])

    def predictions(self, store: ResultStore, rows: Labels) -> dict[str, IntArray]:
        """The stored predictions at `rows`, by probe."""
        predicted: dict[str, IntArray] = {}
        for probe, key in self.store_keys(*self.shifts).items():
            check_complete(probe, store.results(key), rows)
            predicted[probe] = store.results(key).predicted[rows].numpy()
        return predicted


@final
@dataclass(eq=False)
class PredictionBuffer:
    """Predictions, one for each row and each store key, written to the store from time to time."""

    runner: AttackRunner
    keys: Sequence[str]
    rows: Labels

    def __post_init__(self) -> None:
        self.predicted = torch.full((len(self.rows), len(self.keys)), -1)
        self.num_written = self.num_done = 0
        self.saved_at = time.monotonic()

    def run(self, shift: Shift, images: ShiftedSet) -> None:
        """Classify the copies of all rows; an interruption loses no prediction."""
        size = batch_size_for(self.runner.split, MAX_IMAGES_IN_MEMORY, len(self.keys))
        total = len(self.rows)
        try:
            for start in range(0, total, size):
                batch = self.rows[start : start + size]
                x = self._to_images(images.fetch(shift.name, shift.severity, batch))
                # A network that draws random numbers in evaluation mode gets seeded ones.
                with Rng(self.runner.seed).fold_in("evaluate", str(shift), int(batch[0])).seed_global():
                    predicted = self.runner.logits(x).argmax(1).cpu()
                self.predicted[start : start + len(batch)] = predicted.view(len(batch), -1)
                self.num_done = start + len(batch)
                if self.num_done == total or time.monotonic() - self.saved_at > attack_runner.SAVE_INTERVAL:
                    self.flush()
                labels = self.runner.split.labels[self.rows[: self.num_done], None]
                wrong = int((self.predicted[: self.num_done] != labels).any(1).sum())
                self.runner.report(AttackProgress(str(shift), self.num_done, total, wrong))
        except (Interrupted, KeyboardInterrupt):
            self.flush()
            raise

    def _to_images(self, views: np.ndarray[Any, np.dtype[np.uint8]]) -> Images:
        """Bytes (n, views, h, w, c) as a batch of images in [0, 1]."""
        x = torch.from_numpy(np.ascontiguousarray(views)).flatten(0, 1).permute(0, 3, 1, 2).contiguous()
        return x.float().div_(255).to(*device_and_dtype(self.runner.model))

    def flush(self) -> None:
        """Write all new predictions: one shard for every key."""
        new = slice(self.num_written, self.num_done)
        for column, key in enumerate(self.keys):
            distance = torch.full((self.num_done - self.num_written,), float("nan"), dtype=torch.float64)
            self.runner.store.add(key, self.rows[new], self.predicted[new, column], distance)
        self.num_written = self.num_done
        self.saved_at = time.monotonic()
