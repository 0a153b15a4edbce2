"""Adversarial training on the average over several threats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, AttackResult, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import OneOf, frozen_config
from allrounder.objectives.base import Objective, Threats, cross_entropy_loss
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, Loss, Passes


@final
@frozen_config
class Average(Objective):
    """Averaged adversarial training (AVG): loss = mean over threats p of CE(f(x'_p), y).

    Every x'_p is crafted separately from the same images. One training pass sees all of them, so batch-norm
    computes its statistics over all perturbations together. Tramer and Boneh, 2019, Adversarial training and
    robustness for multiple perturbations; their attack maximises the margin.
    """

    reference: ClassVar[str] = "Tramer and Boneh, 2019"

    against: Threats
    """The threats to train against, at least two."""
    attack: Annotated[Attack, OneOf(lambda: ATTACKS)] = Pgd(steps=10, step=0.25)
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting."""

    def __post_init__(self) -> None:
        for threat in self.against:
            self.attack.check_supports(threat)

    @override
    def threats(self) -> tuple[Threat, ...]:
        return self.against

    def craft_passes(self) -> Passes:
        """One attack for every threat."""
        return self.attack.passes() * len(self.against)

    def loss_passes(self) -> Passes:
        """One forward and one backward for every threat."""
        return Passes(1, 1) * len(self.against)

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> AttackResult:
        """Craft under every threat and concatenate the images, threat after threat."""
        results = [
            perturb(
                self.attack,
                model,
                batch.x,
                batch.y,
                threat,
                ctx.rng.fold_in("attack", number),
                norm_layers=self.norm_layers,
            )
            for number, threat in enumerate(self.against)
        ]
        return concat(results)

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """Mean cross-entropy over the images of all threats, in one pass."""
        assert crafted is not None
        return cross_entropy_loss(model(crafted.x), tile(batch, len(self.against)))


def concat(results: Sequence[AttackResult]) -> AttackResult:
    """The images of several attacks as one batch, with the sum of their passes."""
    return AttackResult(
        x=torch.cat([result.x for result in results]),
        passes=sum((result.passes for result in results), Passes()),
    )


def tile(batch: Batch, times: int) -> Batch:
    """The batch concatenated with itself `times` times."""

    def tile_optional(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else torch.cat([tensor] * times)

    return replace(
        batch,
        x=torch.cat([batch.x] * times),
        y=torch.cat([batch.y] * times),
        index=torch.cat([batch.index] * times),
        partner=tile_optional(batch.partner),
        weight=tile_optional(batch.weight),
        extra=tile_optional(batch.extra),
    )
