"""One attack on some images of a split, in lanes of one width: what the plain network says of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from allrounder.attacks.base import Attack, perturb
from allrounder.attacks.lanes import Lane, Points
from allrounder.attacks.lending import lend
from allrounder.attacks.search import Search
from allrounder.data.base import Split
from allrounder.rng import Draws
from allrounder.threats import Threat
from allrounder.types import Images, Labels, Logits, device_of

CHUNK = 4
"""Lanes of images that are held in memory at once while they are searched."""


@final
@dataclass(frozen=True, eq=False)
class Assessor:
    """A network in evaluation mode, the images to show it, and the width of its lanes."""

    model: nn.Module
    split: Split
    width: int

    def load(self, rows: Labels) -> tuple[Images, Labels]:
        """Images and labels at these positions of the split, where the network wants them."""
        device, dtype = device_of(self.model)
        return self.split.fetch(rows).to(device, dtype), self.split.labels[rows].to(device)

    def lanes(self, rows: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Cut rows into passes of one width, the last filled up with its final row; with the real count."""
        for lane in _cut(rows, self.width):
            yield torch.cat([lane, lane[-1:].expand(self.width - len(lane))]), len(lane)

    def logits(self, x: Images) -> Logits:
        """The plain network's answers: the one place where it is asked."""
        seats = self.lanes(torch.arange(len(x)))
        return torch.cat([self.model(x[lane])[:real] for lane, real in seats])

    def predictions(
        self, attack: Attack, threat: Threat, draws: Draws, rows: Labels, report: Callable[[int], None]
    ) -> Labels:
        """What the plain network says of the images an attack makes of these; `report` hears how many are
        done."""
        if isinstance(attack, Search):
            return self._hunted(attack, threat, draws, rows, report)
        found: list[Tensor] = []
        for lane, real in self.lanes(rows):
            x, y = self.load(lane)
            crafted = perturb(attack, self.model, x, y, threat, draws.per_example(lane))
            found.append(self.logits(crafted.x).argmax(1)[:real].cpu())
            report(sum(map(len, found)))
        return torch.cat(found)

    def _hunted(
        self, search: Search, threat: Threat, draws: Draws, rows: Labels, report: Callable[[int], None]
    ) -> Labels:
        found: list[Tensor] = []
        for chunk in _cut(rows, CHUNK * self.width):
            x, y = self.load(chunk)
            with lend(self.model, x, "eval") as network:
                before = sum(map(len, found))
                lane = Lane(search, network, self.model, threat, draws, self.width)
                points = Points(x, y, self.logits(x), chunk)
                hunted = lane.hunt(points, lambda done, broken, before=before: report(before + done))
                found.append(self.logits(hunted.x).argmax(1).cpu())
        return torch.cat(found)


def _cut(rows: Tensor, size: int) -> list[Tensor]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
