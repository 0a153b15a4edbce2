"""Adversarial training in which every image of a batch trains one task: natural, or one threat."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Annotated, ClassVar, final

import torch
from pydantic import Field
from torch import nn
from typing_extensions import override

from allrounder.attacks.base import AttackResult, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Share, frozen_config
from allrounder.objectives.base import AnyAttack, SingleThreatObjective, ThreatOrUnion, cross_entropy_loss
from allrounder.types import Batch, BatchNormMode, Context, ImageKind, Labels, Loss, Passes


@final
@frozen_config
class RandomTask(SingleThreatObjective):
    """Random-task training: loss = CE(f(z), y), where z is x itself or x', as the image's place in the batch
    decides.

    The fraction `natural_share` of a batch, evenly spaced, stays natural; only the others are attacked. An
    epoch puts an image at a random place, so its task changes from epoch to epoch. With a union of threats
    and the attack random-of, each attacked image has one threat. So the attack costs 1 - natural_share of
    that in half-half training, which passes every image both ways. One pass sees all images: the statistics
    of batch-norm are those of the mixture of tasks.

    A natural part in each batch: Kurakin, Goodfellow and Bengio, 2017, Adversarial machine learning at scale.
    One threat at a time: Madaan, Shin and Hwang, 2021, Learning to generate noise for multi-attack
    robustness.
    """

    reference: ClassVar[str] = "Kurakin et al., 2017; Madaan et al., 2021"

    threat: ThreatOrUnion
    """The threat, or a list of threats for an attack that takes their union (random-of, worst-of, msd)."""
    natural_share: Annotated[Share, Field(le=0.9)] = 0.5
    """The fraction of images that stay natural; at least every tenth is attacked."""
    attack: AnyAttack = Pgd(steps=10, step=0.25)

    @property
    @override
    def effective_norm_layers(self) -> BatchNormMode:
        return "eval"  # the statistics of a part are not those of the batch

    @override
    def craft_passes(self) -> Passes:
        return super().craft_passes() * self._attacked_share

    @property
    def _attacked_share(self) -> Fraction:
        # The shortest decimal number, because 1 - 0.9 in binary digits is more than a tenth.
        return 1 - Fraction(str(self.natural_share))

    @override
    def logit_kinds(self) -> frozenset[ImageKind]:
        return frozenset({"adversarial"})

    @override
    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> AttackResult:
        rng = ctx.rng.fold_in("attack")
        if rng.shard is None:  # so that a part draws the same numbers on any number of ranks
            rng = rng.for_shard(range(len(batch)), len(batch))
        assert rng.shard is not None
        rows = self._attacked_rows(rng.shard[0])
        if len(rows) == 0:
            return AttackResult(x=batch.x.clone(), passes=Passes())
        part = rows.to(batch.x.device)
        attack = self.attack_of_step(model, batch, ctx)
        result = perturb(attack, model, batch.x[part], batch.y[part], self.threat, rng.select(rows))
        return AttackResult(x=batch.x.index_copy(0, part, result.x), passes=result.passes)

    def _attacked_rows(self, places: tuple[int, ...]) -> Labels:
        """The rows that are attacked, given the place of each row in the whole batch: place i if
        floor((i + 1) a) > floor(i a), with a the share of attacked images."""
        a = self._attacked_share
        return torch.tensor([row for row, i in enumerate(places) if floor((i + 1) * a) > floor(i * a)]).long()

    @override
    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        assert crafted is not None
        return cross_entropy_loss(model(crafted.x), batch, "adversarial")
