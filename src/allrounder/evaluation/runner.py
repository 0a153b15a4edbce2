"""Settling attacks on the images of a split, line by line: the work of an evaluation.

Whatever the network sees has the lane's width, and randomness is addressed per example and attack, so a line
does not depend on the images it is settled with, on what ran before, or on the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

import torch
from torch import Tensor

from allrounder.attacks import label_of
from allrounder.attacks.autoattack import stages_of
from allrounder.attacks.base import Attack, perturb, verify
from allrounder.attacks.search.base import Search
from allrounder.attacks.search.driver import Hunted, Lane, Points
from allrounder.data.base import Split
from allrounder.errors import Interrupted
from allrounder.evaluation.probes import Probe
from allrounder.evaluation.store import Ledger
from allrounder.inference.attack_view import lend
from allrounder.inference.fold import Folded
from allrounder.inference.quick import quickened
from allrounder.recipe.compute import plain
from allrounder.report.outcome import NATURAL
from allrounder.rng import Draws
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Logits, Passes, PerExampleBool, device_of

CHUNK, CHUNK_BYTES = 1024, 1 << 26
"""The most images, and bytes of them, that are held in memory at once."""
SMALL = 1024
"""Numbers in an image up to which a pass costs little more than what is done around it."""
SAVE_AFTER, TELL_AFTER = 20.0, 0.1
"""Seconds between two pages, and two reports, of an attack that takes long."""


@final
@dataclass(frozen=True)
class Tick:
    """How far an attack is: points settled of those it was given, how many of them are broken, passes."""

    what: str
    done: int
    total: int
    broken: int = 0
    passes: Passes = field(default_factory=Passes)


Report: TypeAlias = Callable[[Tick], None]


@final
class Assessor:
    """A network and the images it is asked about; a module is put into evaluation mode meanwhile."""

    def __init__(
        self,
        model: Classifier,
        split: Split,
        ledger: Ledger,
        *,
        seed: int,
        width: int,
        keep: bool = False,
        report: Report = lambda tick: None,
    ):
        """`keep` keeps the images that attacks make; `report` is called often, and may raise to stop."""
        self.model, self.split, self.ledger = model, split, ledger
        self.draws, self.width, self.keep, self.report = Draws(seed), width, keep, report
        self.labels = split.labels

    def assess(self, rows: Labels, probes: Sequence[Probe]) -> None:
        """Settle all probes on the images at these positions of the split."""
        first = self.split.fetch(rows[:1])
        size = max(self.width, min(CHUNK, CHUNK_BYTES // max(first.nbytes, 1)))
        with torch.inference_mode(False), torch.no_grad(), plain(device_of(self.model)[0]):
            for start in range(0, len(rows), size):
                chunk = rows[start : start + size]
                if any(True for _ in self._missing(chunk, probes)):
                    # A network that draws random numbers even now gets the seed's.
                    with self.draws.at("evaluate", int(chunk[0])).ambient():
                        self._settle(chunk, probes)

    def _missing(self, rows: Labels, probes: Sequence[Probe]) -> Iterator[PerExampleBool]:
        """For every attack with work left: which of the rows wait for it, as far as is known."""
        natural = self.ledger.lines(NATURAL)
        if not natural.settled[rows].all():
            yield ~natural.settled[rows]
        for probe in probes:
            left = natural.predicted[rows] == self.labels[rows]
            for stage, attack in enumerate(stages_of(probe.attack, probe.threat)):
                lines = self.ledger.lines(key_of(probe, attack, stage))
                if (left & ~lines.settled[rows]).any():
                    yield left & ~lines.settled[rows]
                left = left & (lines.predicted[rows] == self.labels[rows])

    def _settle(self, rows: Labels, probes: Sequence[Probe]) -> None:
        device, dtype = device_of(self.model)
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"the network is in {dtype}, expected float32 or float64; convert it")
        x = self.split.fetch(rows).to(device, dtype)
        with lend(self.model, x, "eval") as lent:
            network = quickened(lent, x.new_empty(2, *x.shape[1:])) if isinstance(lent, Folded) else lent
            points = Points(x, self.labels[rows].to(device), self.logits(x), rows)
            self._check_labels(rows, points.natural)
            predicted = points.natural.argmax(1).cpu()
            far = torch.where(predicted == self.labels[rows], float("nan"), 0.0).double()
            self.ledger.add(NATURAL, rows, predicted, far)
            # A random network may have answered otherwise before; what was written first counts.
            predicted = self.ledger.lines(NATURAL).predicted[rows]
            self.report(Tick(NATURAL, len(rows), len(rows), int((predicted != self.labels[rows]).sum())))
            for probe in probes:
                left = predicted == self.labels[rows]
                for stage, attack in enumerate(stages_of(probe.attack, probe.threat)):
                    lines = self.ledger.lines(key_of(probe, attack, stage))
                    self._run(probe, attack, stage, points.some(_where(left & ~lines.settled[rows])), network)
                    left = left & (lines.predicted[rows] == self.labels[rows])

    def _run(self, probe: Probe, attack: Attack, stage: int, some: Points, network: Classifier) -> None:
        """Settle one attack on some points, and write pages while it goes on."""
        if len(some) == 0:
            return
        book = Book(self.ledger, key_of(probe, attack, stage), some, probe.threat, self.keep)
        name = str(probe) if attack is probe.attack else f"{label_of(attack)}@{probe.threat}"

        def told(hunted: Hunted) -> None:
            book.last, settled = hunted, hunted.settled
            if not settled.all() and time.monotonic() - book.told < TELL_AFTER:
                return
            if settled.all() or time.monotonic() - book.saved > SAVE_AFTER:
                book.write()
            book.told = time.monotonic()
            broken = int((hunted.predicted != book.labels)[settled].sum())
            self.report(Tick(name, int(settled.sum()), len(some), broken, hunted.passes))

        draws = draws_of(self.draws, probe, attack, stage)
        try:
            if isinstance(attack, Search):
                width = width_of(attack, some.natural.shape[1], some.x[0].numel(), self.width)
                Lane(attack, network, self.model, probe.threat, draws, width).hunt(some, told)
            else:
                self._craft(attack, probe.threat, draws, some, told)
        except (Interrupted, KeyboardInterrupt):
            book.write()
            raise

    def _craft(
        self, attack: Attack, threat: Threat, draws: Draws, points: Points, told: Callable[[Hunted], None]
    ) -> None:
        """Attacks of fixed length, one lane after the other."""
        hunted = Hunted.nothing(points)
        for seats, real in self._lanes(len(points)):
            lane = points.some(seats)
            crafted = perturb(attack, self.model, lane.x, lane.y, threat, draws.per_example(lane.rows))
            hunted.x[seats[:real]] = crafted.x[:real]
            hunted.predicted[seats[:real]] = self.logits(crafted.x).argmax(1)[:real].cpu()
            hunted.settled[seats[:real]] = True
            hunted = replace(hunted, passes=hunted.passes + crafted.passes + Passes(forwards=1))
            told(hunted)

    def logits(self, x: Images) -> Logits:
        """The plain network's answers, in passes of the lane's width."""
        logits = torch.cat([self.model(x[seats])[:real] for seats, real in self._lanes(len(x))])
        if bad := len(x) - int(logits.isfinite().all(dim=1).sum()):
            raise ValueError(
                f"the network's logits are not finite for {bad} of {len(x)} images; mend it first"
            )
        return logits

    def _check_labels(self, rows: Labels, natural: Logits) -> None:
        highest, classes = int(self.labels[rows].max()), natural.shape[1]
        if highest >= classes:
            told = f"expected at most {classes - 1}, the network's last class"
            raise ValueError(f"the largest label is {highest}, {told}; check labels and network")

    def _lanes(self, count: int) -> Iterator[tuple[Tensor, int]]:
        """Cut positions into passes of one width, the last filled up with its final one; with the real
        count."""
        for start in range(0, count, self.width):
            yield torch.arange(start, start + self.width).clamp(max=count - 1), min(self.width, count - start)


@final
class Book:
    """Writes what an attack settles into the ledger, each line once and checked."""

    def __init__(self, ledger: Ledger, key: str, points: Points, threat: Threat, keep: bool):
        """For these points."""
        self.ledger, self.key, self.points, self.threat, self.keep = ledger, key, points, threat, keep
        self.labels, self.saved = points.y.cpu(), time.monotonic()
        self.told, self.last = 0.0, Hunted.nothing(points)
        self.written = torch.zeros(len(points), dtype=torch.bool)

    def write(self) -> None:
        """A page of all points that are settled and not written yet: the gateway of evaluations."""
        hunted = self.last
        new = (hunted.settled & ~self.written).nonzero().squeeze(1)
        x, x_adv, predicted = self.points.x[new], hunted.x[new], hunted.predicted[new]
        verify(self.key, x_adv, x, self.threat)
        far = self.threat.norm.length(x_adv.double() - x.double()).cpu()
        far = torch.where(predicted != self.labels[new], far, float("nan"))
        self.ledger.add(self.key, self.points.rows[new], predicted, far, x_adv if self.keep else None)
        self.written[new], self.saved = True, time.monotonic()


def width_of(search: Search, classes: int, numbers: int, width: int) -> int:
    """Images of a search's pass, from the width of other passes and the numbers in an image: twice as many
    where images are small, and the search fills idle slots with other rounds or by looking ahead."""
    fills = search.rounds(classes) > 1 or not any(search.cycle)
    return 2 * width if fills and numbers <= SMALL else width


def key_of(probe: Probe, attack: Attack, stage: int) -> str:
    """What an attack's lines are filed under: a search has the same alone and in any cascade."""
    if isinstance(attack, Search):
        return f"{attack.address()}@{probe.threat}"
    return f"{attack} as {probe}" + (f" stage {stage}" if stage else "")


def draws_of(draws: Draws, probe: Probe, attack: Attack, stage: int) -> Draws:
    """The randomness of an attack, so that a cascade's verdict is that of its parts together."""
    if isinstance(attack, Search):
        return draws.at("search", attack.address(), str(probe.threat))
    return draws.at("probe", str(probe), *(("stage", stage) if stage else ()))


def _where(flags: PerExampleBool) -> Tensor:
    return flags.nonzero().squeeze(1)
