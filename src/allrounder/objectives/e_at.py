"""E-AT: adversarial training under one threat per batch, the least robust one most often."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from allrounder.attacks.apgd_train import ApgdTrain
from allrounder.attacks.base import AttackResult
from allrounder.config.fields import OneOf, frozen_config
from allrounder.objectives.base import AttackObjective, Threats
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, ImageKind

PerThreat = Int[Tensor, " p"]


@final
@frozen_config
class Eat(AttackObjective):
    """Extreme-norm adversarial training (E-AT): loss = CE(f(x'_p), y), with one threat p for every batch.

    P(p) = (1 - a_p) / sum_q (1 - a_q), where a_p is the fraction of training images, over the whole run, that
    the attack under p did not fool at any of its iterates; uniform until every threat had a batch. The paper
    trains on the extreme norms Linf and L1 only: robustness to the norms in between follows from the convex
    hull of those two balls. It costs as much as training under one threat.
    Croce and Hein, 2022, Adversarial robustness against multiple and single lp-threat models via quick
    fine-tuning of robust classifiers.
    """

    reference: ClassVar[str] = "Croce and Hein, 2022"

    against: Threats
    """The threats to choose from, at least two; in the paper, Linf and L1."""
    attack: Annotated[ApgdTrain, OneOf(lambda: {"apgd-train": ApgdTrain})] = ApgdTrain()
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting."""

    @override
    def threats(self) -> tuple[Threat, ...]:
        return self.against

    @override
    def logit_kinds(self) -> frozenset[ImageKind]:
        return frozenset({"adversarial"})

    def memory(self) -> dict[str, Tensor]:
        """The number of training images per threat, and how many of them were not fooled."""
        size = len(self.against)
        return {f"eat.{name}": torch.zeros(size, dtype=torch.long) for name in ("seen", "robust")}

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> AttackResult:
        """Choose a threat, attack under it, and count the images that were not fooled."""
        seen, robust = ctx.memory["eat.seen"], ctx.memory["eat.robust"]
        u = ctx.rng.fold_in("threat").uniform(torch.empty(1).double())
        number = sample_threat(threat_probabilities(robust, seen), u)
        rng = ctx.rng.fold_in("attack")
        crafted = self.run_attack(self.attack, model, batch, self.against[number], rng)
        assert crafted.ever_fooled is not None
        seen[number] += len(batch)
        robust[number] += (~crafted.ever_fooled).sum()
        return crafted


def threat_probabilities(robust: PerThreat, seen: PerThreat) -> Float[Tensor, " p"]:
    """The probability of every threat, in float64; uniform if the counts do not distinguish them."""
    fooled = (seen - robust).double() / seen.clamp(min=1)
    if bool((seen == 0).any()) or not bool(fooled.any()):
        fooled = torch.ones_like(fooled)
    return fooled / fooled.sum()


def sample_threat(probabilities: Float[Tensor, " p"], u: Float[Tensor, " 1"]) -> int:
    """The index that a uniform number u from [0, 1) selects by the inverse of the distribution function."""
    return min(int((probabilities.cpu().cumsum(0) <= u).sum()), len(probabilities) - 1)
