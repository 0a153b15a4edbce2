"""Fit how the outputs of an accurate and a robust network are mixed, on held-out images.

The mix with the highest natural accuracy is chosen among those of a grid whose robust accuracy is at most a
tolerance below that of the robust network. Robust accuracy is measured on adversarial images of both networks
and of every mix that was the best so far, attacked as a whole, until the best one was attacked itself. So the
chosen mix was attacked white-box, and attacking all of the grid is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import final

import torch
from torch import Tensor, nn

from allrounder.attacks import Cw
from allrounder.attacks.base import Attack, perturb
from allrounder.data.base import Array, Data, Split
from allrounder.data.inputs.coerce import DataLike, as_split
from allrounder.errors import InputError
from allrounder.evaluation.evaluate import default_batch_size, select_rows
from allrounder.evaluation.probes import Probe
from allrounder.models.ensemble import Ensemble, OutputMix
from allrounder.nn.amp import full_precision
from allrounder.report.dial import DialPoint
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Images, Logits, device_and_dtype

ALPHAS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
SCALES = (0.5, 1.0, 2.0, 4.0, 8.0)
POWERS = (1.0, 2.0, 3.0, 4.0)
SHIFTS = (-2.0, -1.5, -1.0, -0.5, 0.0, 1.0)
MAX_LOGIT = 20.0
"""The highest transformed logit. A softmax of larger ones is 0 and 1 in float32, which hides gradients from
attacks and would make the ensemble look more robust than it is."""


@final
@dataclass(frozen=True, eq=False)
class FittedEnsemble:
    """An ensemble, and accuracies on the held-out images that it was fitted on."""

    ensemble: Ensemble
    measured: DialPoint
    """Of the ensemble."""
    natural: DialPoint
    """Of the natural network alone."""
    robust: DialPoint
    """Of the robust network alone."""
    attacked: int
    """The number of mixes that were attacked as a whole."""


def fit_ensemble(
    natural: nn.Module,
    robust: nn.Module,
    data: DataLike,
    y: Array | None = None,
    *,
    threats: Sequence[Threat | str],
    attack: Attack | str = Cw(),
    tolerance: float = 0.02,
    n: int | None = None,
    seed: int = 0,
    rounds: int = 10,
) -> FittedEnsemble:
    """Fit an ensemble on held-out images: a split, or images and labels. The attack is a value or a name; by
    default it increases the margin, because the cross-entropy of mixed probabilities misleads attacks.

    `tolerance` is the share of images under attack that the ensemble may lose against the robust network,
    under all threats at once. `rounds` limits the number of mixes that are attacked.
    """
    if isinstance(data, Data):
        raise InputError("data: got a dataset, expected held-out images; its test images must not be used")
    if not 0 <= tolerance <= 1 or rounds < 1 or not threats:
        got = f"tolerance {tolerance}, {rounds} rounds and {len(threats)} threats"
        raise InputError(f"ensemble: got {got}, expected a tolerance in [0, 1], and 1 or more of the others")
    probes: list[Probe] = []
    for threat in dict.fromkeys(map(Threat.parse, threats)):
        probe = Probe.of(attack, threat) if isinstance(attack, str) else Probe("fit", attack, threat)
        probe.attack.check_supports(threat)
        probes.append(probe)
    search = MixSearch(natural.eval(), robust.eval(), as_split(data, y), probes, seed, n)
    best = search.run(tolerance, rounds)
    return FittedEnsemble(
        Ensemble(natural, robust, search.mixes[best]),
        measured=search.point(best),
        natural=search.point(search.natural_alone),
        robust=search.point(search.robust_alone),
        attacked=len(search.attacked) - 2,
    )


@final
class MixSearch:
    """The mixes of a grid, and which held-out images each of them classifies correctly under attack.

    The natural and the robust network alone are the last two of the mixes.
    """

    def __init__(
        self,
        natural: nn.Module,
        robust: nn.Module,
        split: Split,
        probes: Sequence[Probe],
        seed: int,
        n: int | None,
    ):
        self.natural, self.robust = natural, robust
        self.probes, self.seed = probes, seed
        rows = select_rows(split, n, seed)
        self.x, self.y = split.fetch(rows).to(*device_and_dtype(robust)), split.labels[rows]
        self.batch_size = default_batch_size(robust, split)
        logits = self.logits(self.x)
        if logits[0].shape != logits[1].shape:
            got = f"{logits[0].shape[1]} and {logits[1].shape[1]} classes"
            raise InputError(f"ensemble: got networks with {got}, expected the same; choose others")
        classes = logits[1].shape[1]
        # LN is at least -sqrt(classes - 1), so the robust network alone keeps the order of its logits.
        alone = [OutputMix(alpha=0.0), OutputMix(alpha=1.0, shift=math.sqrt(classes))]
        self.mixes = [*list_mixes(classes), *alone]
        self.natural_alone, self.robust_alone = len(self.mixes) - 2, len(self.mixes) - 1
        self.correct = self.find_correct(*logits)
        self.robustly_correct = torch.stack([self.correct.clone() for _ in probes], dim=1)
        """By mix, threat and image: whether it is correct without an attack and under all attacks so far."""
        self.attacked: list[int] = []

    def run(self, tolerance: float, rounds: int) -> int:
        """Return the position of the best mix; it was attacked as a whole, or is the robust network alone."""
        self.attack_mix(self.natural_alone)
        self.attack_mix(self.robust_alone)
        for _ in range(rounds):
            best = self.choose(range(len(self.mixes)), tolerance)
            if best in self.attacked:
                break
            self.attack_mix(best)
        return self.choose(self.attacked, tolerance)

    def choose(self, positions: Sequence[int], tolerance: float) -> int:
        """Return the mix with the highest natural accuracy, and then the highest robust accuracy, among those
        that are robust enough; the robust network alone always is."""
        worst = self.robustly_correct.all(dim=1).double().mean(dim=1)
        natural = self.correct.double().mean(dim=1)
        enough = float(worst[self.robust_alone]) - tolerance - 1e-9
        allowed = [k for k in positions if float(worst[k]) >= enough]
        return max(allowed, key=lambda k: (float(natural[k]), float(worst[k]), -k))

    def attack_mix(self, position: int) -> None:
        """Attack a mix as a whole, and count the images as attacks on all mixes."""
        # A network alone is attacked without the transform, which weakens gradients.
        alone = {self.natural_alone: self.natural, self.robust_alone: self.robust}
        network = alone.get(position) or Ensemble(self.natural, self.robust, self.mixes[position])
        for number, probe in enumerate(self.probes):
            rng = Rng(self.seed).fold_in("ensemble", len(self.attacked), str(probe.threat))
            crafted = [
                perturb(probe.attack, network, x, y.to(x.device), probe.threat, rng.per_example(rows)).x
                for x, y, rows in self.batches(self.x, self.y, torch.arange(len(self.x)))
            ]
            self.robustly_correct[:, number] &= self.find_correct(*self.logits(torch.cat(crafted)))
        self.attacked.append(position)

    def find_correct(self, natural: Logits, robust: Logits) -> Tensor:
        """Return, by mix and image, whether the mixed outputs are correct."""
        return torch.stack([mix(natural, robust).argmax(dim=1).cpu() == self.y for mix in self.mixes])

    def logits(self, x: Images) -> tuple[Tensor, Tensor]:
        """Return the logits of both networks."""
        with torch.no_grad(), full_precision(x.device):
            pairs = [(self.natural(batch), self.robust(batch)) for (batch,) in self.batches(x)]
        natural, robust = zip(*pairs, strict=True)
        return torch.cat(natural), torch.cat(robust)

    def batches(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Split tensors into batches."""
        for start in range(0, len(tensors[0]), self.batch_size):
            yield tuple(tensor[start : start + self.batch_size] for tensor in tensors)

    def point(self, position: int) -> DialPoint:
        """Return the accuracies of a mix; under attack, on all images that were crafted so far."""
        alpha = self.mixes[position].alpha
        shares = {"natural": 1 - alpha, "robust": alpha}
        by_threat = self.robustly_correct[position].double().mean(dim=1)
        robust = {str(probe.threat): float(by_threat[k]) for k, probe in enumerate(self.probes)}
        worst = float(self.robustly_correct[position].all(dim=0).double().mean())
        return DialPoint(
            {name: share for name, share in shares.items() if share > 0},
            float(self.correct[position].double().mean()),
            robust,
            worst,
            sum(robust.values()) / len(robust),
        )


def list_mixes(classes: int) -> list[OutputMix]:
    """Return the grid: all mixes whose transformed logits stay below MAX_LOGIT."""
    highest = math.sqrt(classes - 1)  # of normalised logits
    return [
        OutputMix(alpha=alpha, scale=scale, power=power, shift=shift)
        for alpha, scale, power, shift in product(ALPHAS, SCALES, POWERS, SHIFTS)
        if highest + shift > 0 and scale * (highest + shift) ** power <= MAX_LOGIT
    ]
