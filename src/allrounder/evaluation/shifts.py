"""Measuring a network on images that were changed without an adversary: corruptions and perturbations.

What is asked for is written "c" (the fifteen standard corruptions at all severities), "c:5" (at one), "p"
(the ten perturbations), or for one of them "fog@c", "fog@c:5", "rotate@p"; corruptions beyond the fifteen are
asked for by name. All images are measured, also those that the network gets wrong as they are.
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

from allrounder.config.fields import nearest
from allrounder.data.base import Split
from allrounder.data.corruptions import CORRUPTIONS
from allrounder.data.corruptions.base import SEVERITIES
from allrounder.data.corruptions.datasets import ShiftedSet, find_set
from allrounder.data.corruptions.generate import Kind, at_once
from allrounder.data.corruptions.perturbations import PERTURBATIONS
from allrounder.errors import Interrupted
from allrounder.evaluation import runner as assessment
from allrounder.evaluation.assemble import check_whole
from allrounder.evaluation.runner import Assessor, Tick
from allrounder.evaluation.store import Ledger
from allrounder.nn.modes import modes_restored
from allrounder.report.corruption_metrics import AVERAGED, View
from allrounder.report.outcome import IntArray
from allrounder.types import Images, Labels, device_of

WRITTEN = re.compile(r"(?:(\w+)@)?([cp])(?::(\d+))?")
AT_ONCE = 512
"""Changed images in memory; fewer where they are large."""


@final
@dataclass(frozen=True)
class Shift:
    """A corruption at a severity, or a perturbation with all its frames."""

    kind: Kind
    name: str
    severity: int | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.kind}" + ("" if self.severity is None else f":{self.severity}")


def shifts_of(asked: str | Sequence[str]) -> tuple[Shift, ...]:
    """What is meant, each once and in the order of the tables; several are a list, or have commas."""
    words = [word.strip() for word in (asked.split(",") if isinstance(asked, str) else asked)]
    meant = {shift for word in words if word for shift in _read(word)}
    order = {"c": list(CORRUPTIONS), "p": list(PERTURBATIONS)}
    return tuple(
        sorted(meant, key=lambda one: (one.kind, order[one.kind].index(one.name), one.severity or 0))
    )


def _read(word: str) -> list[Shift]:
    written = WRITTEN.fullmatch(word)
    if written is None or (written[2] == "p" and written[3] is not None):
        raise ValueError(f"ood: got {word!r}, expected c, c:5, p, or one of them such as fog@c:5 or rotate@p")
    kind = cast(Kind, written[2])
    known = CORRUPTIONS if kind == "c" else PERTURBATIONS
    names = AVERAGED[kind] if written[1] is None else (written[1],)
    if names[0] not in known:
        raise ValueError(f"ood: got {word!r}, expected one of {', '.join(known)}{nearest(names[0], known)}")
    if kind == "p":
        return [Shift(kind, name) for name in names]
    severities = SEVERITIES if written[3] is None else (int(written[3]),)
    if severities[0] not in SEVERITIES:
        raise ValueError(f"ood: got {word!r}, expected a severity of 1 to 5")
    return [Shift(kind, name, severity) for name in names for severity in severities]


@final
@dataclass(frozen=True, eq=False)
class Shifted:
    """The changed images that an evaluation asks for."""

    shifts: tuple[Shift, ...] = ()
    sets: Mapping[Kind, ShiftedSet] = field(default_factory=dict[Kind, ShiftedSet])

    @classmethod
    def of(cls, asked: str | Sequence[str], split: Split, folder: str | Path | None = None) -> Shifted:
        """Find or make the sets of a split; `folder` has them, or else the cache may."""
        shifts = shifts_of(asked)
        if folder is not None and not shifts:
            raise ValueError(f"ood_data: got {folder}, but ood asks for nothing; give ood as well, such as c")
        named: dict[Kind, list[str]] = {}
        for shift in shifts:
            named.setdefault(shift.kind, []).append(shift.name)
        sets: dict[Kind, ShiftedSet] = {
            kind: find_set(split, kind, list(dict.fromkeys(of)), folder) for kind, of in named.items()
        }
        return cls(shifts, sets)

    def facts(self) -> dict[str, Any]:
        """Which sets they are, if any."""
        told = {f"{kind}-{one.source}": one.about for kind, one in self.sets.items()}
        told |= {f"{kind}-unusable": one.instead_of for kind, one in self.sets.items() if one.instead_of}
        return {"ood": told} if told else {}

    def probes(self, shift: Shift) -> list[str]:
        """The names of what is predicted: of one severity, or of every frame."""
        of = self.sets[shift.kind]
        numbers = range(of.frames(shift.name)) if shift.severity is None else (shift.severity,)
        return [str(View(shift.name, shift.kind, of.source, number)) for number in numbers]

    def keys(self, shift: Shift) -> dict[str, str]:
        """What the lines of every probe are filed under: lines of another set are others."""
        known = self.sets[shift.kind].known_by(shift.name)
        return {probe: f"{probe} of {known}" for probe in self.probes(shift)}

    def settle(self, assessor: Assessor, rows: Labels) -> None:
        """Ask the network about all of them, at these rows; what is in the ledger is not asked again."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            if isinstance(assessor.model, nn.Module):
                stack.enter_context(modes_restored(assessor.model))
                assessor.model.eval()
            for shift in self.shifts:
                keys = list(self.keys(shift).values())
                settled = torch.stack([assessor.ledger.lines(key).settled[rows] for key in keys]).all(0)
                if not settled.all():
                    _Sheet(assessor, keys, rows[~settled]).fill(shift, self.sets[shift.kind])

    def predicted(self, ledger: Ledger, rows: Labels) -> dict[str, IntArray]:
        """What the ledger says of these rows, probe by probe."""
        found: dict[str, IntArray] = {}
        for shift in self.shifts:
            for probe, key in self.keys(shift).items():
                check_whole(probe, ledger.lines(key), rows)
                found[probe] = ledger.lines(key).predicted[rows].numpy()
        return found


@final
class _Sheet:
    """Predictions on the changed copies of some images, which are written into the ledger now and then."""

    def __init__(self, assessor: Assessor, keys: Sequence[str], rows: Labels):
        """A line for each row, with a prediction for each key."""
        self.assessor, self.keys, self.rows = assessor, keys, rows
        self.predicted = torch.full((len(rows), len(keys)), -1)
        self.written = self.done = 0
        self.saved = time.monotonic()

    def fill(self, shift: Shift, images: ShiftedSet) -> None:
        """Ask about all rows; an interruption loses nothing that was answered."""
        size, total = at_once(self.assessor.split, AT_ONCE, len(self.keys)), len(self.rows)
        try:
            for start in range(0, total, size):
                some = self.rows[start : start + size]
                x = self._floats(images.images(shift.name, shift.severity, some))
                # A network that draws random numbers even now gets the seed's.
                with self.assessor.draws.at("evaluate", str(shift), int(some[0])).ambient():
                    answers = self.assessor.logits(x).argmax(1).cpu()
                self.predicted[start : start + len(some)] = answers.view(len(some), -1)
                self.done = start + len(some)
                if self.done == total or time.monotonic() - self.saved > assessment.SAVE_AFTER:
                    self.write()
                labels = self.assessor.labels[self.rows[: self.done], None]
                wrong = int((self.predicted[: self.done] != labels).any(1).sum())
                self.assessor.report(Tick(str(shift), self.done, total, wrong))
        except (Interrupted, KeyboardInterrupt):
            self.write()
            raise

    def _floats(self, views: np.ndarray[Any, np.dtype[np.uint8]]) -> Images:
        """Bytes (n, views, h, w, c) as a batch of images, like those a split gives."""
        x = torch.from_numpy(np.ascontiguousarray(views)).flatten(0, 1).permute(0, 3, 1, 2).contiguous()
        return x.float().div_(255).to(*device_of(self.assessor.model))

    def write(self) -> None:
        """A page for every key, of all lines that are new."""
        new = slice(self.written, self.done)
        for column, key in enumerate(self.keys):
            nowhere = torch.full((self.done - self.written,), float("nan"), dtype=torch.float64)
            self.assessor.ledger.add(key, self.rows[new], self.predicted[new, column], nowhere)
        self.written, self.saved = self.done, time.monotonic()
