"""Adversarial training on the average over several threats."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from allrounder.attacks.base import AttackResult
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import frozen_config
from allrounder.objectives.base import AnyAttack, AttackObjective, Threats, cross_entropy_loss
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, Loss, Passes


@final
@frozen_config
class Average(AttackObjective):
    """Averaged adversarial training (AVG): loss = mean over threats p of CE(f(x'_p), y).

    Every x'_p is crafted separately from the same images. One training pass sees all of them, so batch-norm
    computes its statistics over all perturbations together. Tramer and Boneh, 2019, Adversarial training and
    robustness for multiple perturbations; their attack maximises the margin.
    """

    reference: ClassVar[str] = "Tramer and Boneh, 2019"

    against: Threats
    """The threats to train against, at least two."""
    attack: AnyAttack = Pgd(steps=10, step=0.25)
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting."""

    @override
    def threats(self) -> tuple[Threat, ...]:
        return self.against

    @property
    @override
    def num_crafted(self) -> int:
        return len(self.against)

    def craft_passes(self) -> Passes:
        """One attack for every threat."""
        return sum((self.attack.passes_under((threat,)) for threat in self.against), Passes())

    def loss_passes(self) -> Passes:
        """One forward and one backward for every threat."""
        return Passes(1, 1) * len(self.against)

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> AttackResult:
        """Craft under every threat and concatenate the images, threat after threat."""
        results = [
            self.run_attack(self.attack, model, batch, threat, ctx.rng.fold_in("attack", number))
            for number, threat in enumerate(self.against)
        ]
        passes = sum((result.passes for result in results), Passes())
        return AttackResult(x=torch.cat([result.x for result in results]), passes=passes)

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """Mean cross-entropy over the images of all threats, in one pass."""
        assert crafted is not None
        return cross_entropy_loss(model(crafted.x), tile(batch, len(self.against)))


def tile(batch: Batch, times: int) -> Batch:
    """The batch concatenated with itself `times` times."""
    tensors = {name: field for name, field in vars(batch).items() if isinstance(field, Tensor)}
    return replace(batch, **{name: torch.cat([tensor] * times) for name, tensor in tensors.items()})
