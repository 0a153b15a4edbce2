"""MART: misclassification-aware adversarial training."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, Crafted, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Kind, NonNegative, value
from allrounder.objectives.base import Objective, fit
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Labels, Logits, Loss, NormLayers, Passes

TINY = 1e-12
"""Keeps logarithms finite; this and the two limits just above 1 below are those of the released code."""


@final
@value
class Mart(Objective):
    """MART: loss = BCE + lam mean[KL(p || q) (1 - p_y)], with p = p(x), q = p(x') and x' as in AT.

    BCE = CE(f(x'), y) - mean log(1 - max_{k != y} q_k) also pushes down the strongest wrong class, and the
    second term counts images the more the less sure the network is of their label. The gradient flows
    through p, q and the weight. At lam = 0 natural images do not enter. Wang et al., 2020, Improving
    adversarial robustness requires revisiting misclassified examples.
    """

    reference: ClassVar[str] = "Wang et al., 2020"

    threat: Threat
    attack: Annotated[Attack, Kind(lambda: ATTACKS)] = Pgd(steps=10, step=0.25, start="gaussian")
    lam: NonNegative = 5.0
    """The weight of the divergence: 5 (ResNet-18) or 6 (WRN-34-10) as released."""
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting: eval (as released), train, or train_frozen."""

    def __post_init__(self) -> None:
        self.attack.check_supports(self.threat)

    def threats(self) -> tuple[Threat, ...]:
        """The one threat."""
        return (self.threat,)

    def craft_passes(self) -> Passes:
        """The attack's."""
        return self.attack.passes()

    def loss_passes(self) -> Passes:
        """Two pairs; one where the divergence has no weight."""
        return Passes(1, 1) * (1 if self.lam == 0 else 2)

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """Attack the current network on hard labels."""
        draws = ctx.draws.at("attack")
        return perturb(self.attack, model, batch.x, batch.y, self.threat, draws, norm_layers=self.norm_layers)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Both terms, natural images first; the accuracy is that of crafted images, which are fitted."""
        assert crafted is not None
        natural = None if self.lam == 0 else model(batch.x)
        return aware(natural, model(crafted.x), batch, self.lam)


def aware(natural: Logits | None, robust: Logits, batch: Batch, lam: float) -> Loss:
    """BCE, and lam times the divergence where there are natural images; the accuracy is of crafted ones."""
    fitted = fit(robust, batch)
    total = fitted.total + pushed(robust, batch.y)
    if natural is not None:
        total = total + lam * weighted(natural, robust, batch.y)
    return Loss(total, fitted.parts)


def pushed(robust: Logits, y: Labels) -> Tensor:
    """-mean log(1 - q_c) of the most probable wrong class c."""
    wrong = robust.softmax(dim=1).scatter(1, y[:, None], 0).amax(dim=1)
    return -(1.0001 - wrong + TINY).log().mean()


def weighted(natural: Logits, robust: Logits, y: Labels) -> Tensor:
    """mean KL(p || q) (1 - p_y)."""
    p, log_q = natural.softmax(dim=1), (robust.softmax(dim=1) + TINY).log()
    divergence = (p * (F.log_softmax(natural, dim=1) - log_q)).sum(dim=1)
    doubt = 1.0000001 - p.gather(1, y[:, None]).squeeze(1)
    return (divergence * doubt).mean()
