"""Measure a network: natural accuracy and accuracy under attack, stored example by example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from allrounder.attacks import attack_named
from allrounder.attacks.base import Attack, perturb
from allrounder.data.base import Split
from allrounder.modes import modes_restored
from allrounder.outcome import NATURAL, IntArray, Outcome
from allrounder.rng import Draws
from allrounder.threats import Threat
from allrounder.types import Images, Labels, device_of
from allrounder.values import Written

LANE = 125
"""Images of one forward pass: every pass has this shape, because another shape changes bits."""


@final
@dataclass(frozen=True)
class Probe(Written):
    """An attack under a threat, written "pgd-20@Linf:8/255"."""

    name: str
    attack: Attack
    threat: Threat

    @classmethod
    def read(cls, raw: object) -> Probe:
        """Parse "attack@threat"."""
        if isinstance(raw, cls):
            return raw
        name, sign, threat = str(raw).partition("@")
        if not isinstance(raw, str) or not sign:
            raise ValueError(f'expected an attack and a threat, such as "pgd-20@Linf:8/255", got {raw!r}')
        probe = cls(name, attack_named(name), Threat.read(threat))
        probe.attack.check_supports(probe.threat)
        return probe

    def write(self) -> str:
        """The written form, which is also its key in an outcome."""
        return f"{self.name}@{self.threat}"

    def __str__(self) -> str:
        return self.write()


def evaluate(
    model: nn.Module,
    split: Split,
    probes: Sequence[Probe] = (),
    *,
    seed: int = 0,
    lane: int = LANE,
    progress: Callable[[str, int, int], None] = lambda probe, done, total: None,
) -> Outcome:
    """Run the natural probe and the given ones on every image of a split.

    Only images that are classified correctly are attacked; the others keep their natural prediction. Attacks
    are crafted on the folded network, and the verdict is the plain network's. Randomness is drawn per
    example, by its position in the split: the first images of a split fare alike with and without the rest.
    """
    device, dtype = device_of(model)
    everything = torch.arange(len(split))

    def load(rows: Tensor) -> tuple[Images, Labels]:
        return split.fetch(rows).to(device, dtype), split.labels[rows].to(device)

    # A network that draws random numbers even now gets the seed's.
    with modes_restored(model), torch.no_grad(), Draws(seed).at("evaluate").ambient():
        model.eval()
        natural = np.empty(len(split), np.int64)
        for rows, real in _lanes(everything, lane):
            natural[rows[:real].numpy()] = _predict(model, load(rows)[0])[:real]
            progress(NATURAL, int(rows[real - 1]) + 1, len(split))
        label = split.labels.numpy().astype(np.int64)
        predicted = {NATURAL: natural}
        standing = everything[torch.from_numpy(natural == label)]
        for probe in probes:
            verdict = natural.copy()
            draws, done = Draws(seed).at("probe", str(probe)), 0
            for rows, real in _lanes(standing, lane):
                x, y = load(rows)
                crafted = perturb(probe.attack, model, x, y, probe.threat, draws.per_example(rows))
                verdict[rows[:real].numpy()] = _predict(model, crafted.x)[:real]
                done += real
                progress(str(probe), done, len(standing))
            predicted[str(probe)] = verdict
    return Outcome(label, predicted, {"seed": seed, "lane": lane, "images": len(split)})


def _lanes(rows: Tensor, width: int) -> list[tuple[Tensor, int]]:
    """Cut rows into passes of one width, the last filled up by repeating its final row; with the real
    count."""
    cut = [rows[start : start + width] for start in range(0, len(rows), width)]
    return [(torch.cat([lane, lane[-1:].expand(width - len(lane))]), len(lane)) for lane in cut]


def _predict(model: nn.Module, x: Images) -> IntArray:
    return model(x).argmax(1).cpu().numpy().astype(np.int64)
