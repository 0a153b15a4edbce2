"""MART: misclassification-aware adversarial training."""

from __future__ import annotations

from typing import ClassVar, final

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from allrounder.attacks.base import AttackResult
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import NonNegativeFloat, frozen_config
from allrounder.objectives.base import AnyAttack, SingleThreatObjective, cross_entropy_loss
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, ImageKind, Labels, Logits, Loss, Passes

LOG_EPSILON = 1e-12
"""Keeps logarithms finite; this and the two constants just above 1 below are those of the released code."""


@final
@frozen_config
class Mart(SingleThreatObjective):
    """MART: loss = BCE + lam mean[KL(p || q) (1 - p_y)], with p = p(x), q = p(x') and x' as in AT.

    BCE = CE(f(x'), y) - mean log(1 - max_{k != y} q_k) also reduces the most probable wrong class. The second
    term gives an image more weight the less confident the network is in its label. The gradient flows through
    p, q and the weight. At lam = 0 natural images are not used. Wang et al., 2020, Improving adversarial
    robustness requires revisiting misclassified examples.
    """

    reference: ClassVar[str] = "Wang et al., 2020"

    threat: Threat
    attack: AnyAttack = Pgd(steps=10, step=0.25, start="gaussian")
    lam: NonNegativeFloat = 5.0
    """The weight of the divergence: 5 (ResNet-18) or 6 (WRN-34-10) as released."""
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting: eval (as released), train, or train_frozen."""

    def loss_passes(self) -> Passes:
        """Two forwards and backwards; one at lam = 0."""
        return Passes(1, 1) * (1 if self.lam == 0 else 2)

    @override
    def logit_kinds(self) -> frozenset[ImageKind]:
        return frozenset({"adversarial"} if self.lam == 0 else {"natural", "adversarial"})

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """Both terms, natural images first; the accuracy is that of crafted images."""
        assert crafted is not None
        natural = None if self.lam == 0 else model(batch.x)
        return mart_loss(natural, model(crafted.x), batch, self.lam)


def mart_loss(natural: Logits | None, robust: Logits, batch: Batch, lam: float) -> Loss:
    """BCE plus, if there are natural logits, lam times the divergence; the accuracy is of crafted images."""
    fit = cross_entropy_loss(robust, batch, "adversarial")
    total = fit.total + margin_term(robust, batch.y)
    if natural is None:
        return Loss(total, fit.parts, fit.logits)
    total = total + lam * weighted_kl(natural, robust, batch.y)
    return Loss(total, fit.parts, {**fit.logits, "natural": natural})


def margin_term(robust: Logits, y: Labels) -> Tensor:
    """-mean log(1 - q_c) of the most probable wrong class c."""
    wrong = robust.softmax(dim=1).scatter(1, y[:, None], 0).amax(dim=1)
    return -(1.0001 - wrong + LOG_EPSILON).log().mean()


def weighted_kl(natural: Logits, robust: Logits, y: Labels) -> Tensor:
    """mean KL(p || q) (1 - p_y)."""
    p, log_q = natural.softmax(dim=1), (robust.softmax(dim=1) + LOG_EPSILON).log()
    divergence = (p * (F.log_softmax(natural, dim=1) - log_q)).sum(dim=1)
    weight = 1.0000001 - p.gather(1, y[:, None]).squeeze(1)
    return (divergence * weight).mean()
