"""TRADES: a natural loss, plus the divergence between natural and adversarial predictions."""

from __future__ import annotations

from typing import ClassVar, final

from torch import nn
from typing_extensions import override

from allrounder.attacks.base import AttackResult
from allrounder.attacks.losses import kl
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import NonNegativeFloat, frozen_config
from allrounder.objectives.base import AnyAttack, SingleThreatObjective, cross_entropy_loss
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, ImageKind, Logits, Loss, Passes


@final
@frozen_config
class Trades(SingleThreatObjective):
    """TRADES: loss = CE(f(x), y) + beta KL(p(x) || p(x')), with x' maximising the same divergence.

    The gradient flows through both predictions. beta is what tables call lambda, one over the lambda of the
    paper's formula; at beta = 0 this is natural training and nothing is crafted. Zhang et al., 2019,
    Theoretically principled trade-off between robustness and accuracy.
    """

    reference: ClassVar[str] = "Zhang et al., 2019"

    threat: Threat
    attack: AnyAttack = Pgd(steps=10, step=0.25, loss="kl", start="gaussian")
    beta: NonNegativeFloat = 6.0
    """The weight of the divergence."""
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting: eval (as released), train, or train_frozen."""

    @property
    @override
    def uses_crafted(self) -> bool:
        return self.beta != 0

    def loss_passes(self) -> Passes:
        """Two forwards and backwards; one at beta = 0."""
        return Passes(1, 1) * (1 if self.beta == 0 else 2)

    @override
    def logit_kinds(self) -> frozenset[ImageKind]:
        return frozenset({"natural", "adversarial"} if self.uses_crafted else {"natural"})

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """Natural cross-entropy, and the weighted divergence of the crafted images."""
        # Differs: released code passes the natural images a second time for the divergence, which updates
        # the running statistics once more and changes nothing else (ADR 0021).
        natural = model(batch.x)
        if crafted is None:
            return cross_entropy_loss(natural, batch, "natural")
        return trades_loss(natural, model(crafted.x), batch, self.beta)


def trades_loss(natural: Logits, robust: Logits, batch: Batch, beta: float) -> Loss:
    """CE(natural, targets) + beta KL(natural || robust); the accuracy is that of natural images."""
    fit, divergence = cross_entropy_loss(natural, batch, "natural"), kl(natural, robust).mean()
    parts = {**fit.parts, "divergence": divergence.detach()}
    return Loss(fit.total + beta * divergence, parts, {**fit.logits, "adversarial": robust})
