"""RAMP's logit pairing: predictions under two threats are pulled together where the first is correct."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from allrounder.attacks.apgd_train import ApgdTrain
from allrounder.attacks.base import AttackResult
from allrounder.attacks.losses import kl
from allrounder.config.fields import NonNegativeFloat, OneOf, frozen_config, raise_field_errors
from allrounder.objectives.base import AttackObjective, cross_entropy_loss
from allrounder.objectives.trades import trades_loss
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, Labels, Logits, Loss, Passes


@final
@frozen_config
class LogitPairing(AttackObjective):
    """Logit pairing of two threats (RAMP): loss = CE(f(x_b), y) + lam * mean_S KL(p(x_s) || p(x_t)).

    x_s and x_t are crafted under the source and the target threat, x_b is the one of the two with the larger
    loss, and S are the images whose x_s is classified correctly. Gradients flow through both sides of the KL.
    There are three training passes, target, source, then x_b, each with its own batch statistics. The trades
    variant has CE(f(x), y) + beta * mean KL(p(x) || p(x_b)) instead of the first term, as the released script
    for wide networks does, with lam = 2. Together with the update `gradient-projection` it is the whole
    method. Jiang and Singh, 2024, RAMP: boosting adversarial robustness against multiple lp perturbations for
    universal robustness.
    """

    reference: ClassVar[str] = "Jiang and Singh, 2024"
    whole_batch: ClassVar[bool] = True

    source: Threat
    """The threat whose correct predictions are the reference: Linf in the paper."""
    target: Threat
    """The threat whose predictions are pulled to the source: L1 in the paper."""
    attack: Annotated[ApgdTrain, OneOf(lambda: {"apgd-train": ApgdTrain})] = ApgdTrain()
    lam: NonNegativeFloat = 5.0
    """The weight of the pairing; 1.5 for fine-tuning, 2 for the trades variant."""
    variant: Literal["plain", "trades"] = "plain"
    """The first term: cross-entropy at x_b, or as in TRADES cross-entropy at x and the divergence to x_b."""
    beta: NonNegativeFloat = 6.0
    """The weight of the divergence in the trades variant; unused in the plain one."""
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting."""

    def __post_init__(self) -> None:
        if self.source == self.target:
            message = f"expected a threat other than the source, got {self.source} twice; change one of them"
            raise_field_errors(self, [(("target",), message)])

    @override
    def threats(self) -> tuple[Threat, ...]:
        return (self.source, self.target)

    @property
    @override
    def num_crafted(self) -> int:
        return 3

    @override
    def craft_passes(self) -> Passes:
        return self.attack.passes() * 2

    def loss_passes(self) -> Passes:
        """One forward and backward each for x_t, x_s and x_b; another for x in the trades variant."""
        return Passes(1, 1) * (3 if self.variant == "plain" else 4)

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> AttackResult:
        """Craft x_t and x_s, and concatenate x_t, x_s and x_b."""
        target, source = [
            self.run_attack(self.attack, model, batch, threat, ctx.rng.fold_in("attack", name))
            for name, threat in (("target", self.target), ("source", self.source))
        ]
        assert target.loss is not None and source.loss is not None
        # Ties go to the target, as in the released code, which lists it first.
        harder = torch.where((target.loss >= source.loss)[:, None, None, None], target.x, source.x)
        return AttackResult(x=torch.cat([target.x, source.x, harder]), passes=target.passes + source.passes)

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """The variant's first term, plus the weighted pairing."""
        assert crafted is not None
        target, source, harder = (model(x) for x in crafted.x.chunk(3))
        pairing = pairing_loss(source, target, batch.y)
        if self.variant == "plain":
            first = cross_entropy_loss(harder, batch)
        else:
            first = trades_loss(model(batch.x), harder, batch, self.beta)
        parts = {"accuracy": first.parts["accuracy"], "pairing": pairing.detach()}
        return Loss(first.total + self.lam * pairing, parts)


def pairing_loss(source: Logits, target: Logits, y: Labels) -> Tensor:
    """The mean of KL(source || target) over images that the source classifies correctly; zero if none."""
    correct = (source.detach().argmax(1) == y).to(source)
    return (correct * kl(source, target)).sum() / correct.sum().clamp(min=1)
