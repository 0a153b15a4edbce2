"""RAMP: two norms whose predictions are pulled together where one of them is right."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from allrounder.attacks.apgd_train import ApgdTrain
from allrounder.attacks.base import Crafted, perturb
from allrounder.attacks.losses import kl
from allrounder.config.fields import Kind, NonNegative, refuse, value
from allrounder.objectives.base import Objective, fit
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Labels, Logits, Loss, NormLayers, Passes


@final
@value
class LogitPairing(Objective):
    """Logit pairing of two threats (RAMP): loss = CE(f(x_b), y) + lam * mean_S KL(p(x_s) || p(x_t)).

    x_s and x_t are crafted under the source and the target threat, x_b is the one of the two with the larger
    loss, and S are the images whose x_s is classified correctly. Gradients flow through both sides of the KL.
    Three training passes, target, source, then x_b, each with batch statistics of its own. The trades variant
    has CE(f(x), y) + beta * mean KL(p(x) || p(x_b)) in place of the first term, as the released script for
    wide networks does, with lam = 2. With the update `projected` it is the whole method.
    Jiang and Singh, 2024, RAMP: boosting adversarial robustness against multiple lp perturbations for
    universal robustness.
    """

    reference: ClassVar[str] = "Jiang and Singh, 2024"
    whole_batch: ClassVar[bool] = True

    source: Threat
    """The threat whose correct predictions are to be kept: Linf in the paper."""
    target: Threat
    """The threat whose predictions follow: L1 in the paper, the other end of the trade-off."""
    attack: Annotated[ApgdTrain, Kind(lambda: {"apgd-train": ApgdTrain})] = ApgdTrain()
    lam: NonNegative = 5.0
    """The weight of the pairing; 1.5 for fine-tuning, 2 for the trades variant."""
    variant: Literal["plain", "trades"] = "plain"
    """What is fitted: the labels at x_b, or as in TRADES the labels at x and the prediction at x_b."""
    beta: NonNegative = 6.0
    """The weight of the natural prediction in the trades variant; plays no part in the plain one."""
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting."""

    def __post_init__(self) -> None:
        if self.source == self.target:
            said = f"expected another threat than the source, got {self.source} twice; write another target"
            refuse(self, [(("target",), said)])

    def threats(self) -> tuple[Threat, ...]:
        """Source and target."""
        return (self.source, self.target)

    def craft_passes(self) -> Passes:
        """Two attacks."""
        return self.attack.passes() * 2

    def loss_passes(self) -> Passes:
        """A pair at the images of each and at the harder ones; another for the trades variant."""
        return Passes(1, 1) * (3 if self.variant == "plain" else 4)

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """The images of target and source, and the harder ones, one behind the other."""
        found = [
            perturb(
                self.attack,
                model,
                batch.x,
                batch.y,
                threat,
                ctx.draws.at("attack", name),
                norm_layers=self.norm_layers,
            )
            for name, threat in (("target", self.target), ("source", self.source))
        ]
        target, source = found
        assert target.loss is not None and source.loss is not None
        # Of equals the target, as in the released code, which lists it first.
        harder = torch.where((target.loss >= source.loss)[:, None, None, None], target.x, source.x)
        return Crafted(x=torch.cat([target.x, source.x, harder]), passes=target.passes + source.passes)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Fit the harder images, and pair the predictions at the two."""
        assert crafted is not None
        target, source, harder = (model(x) for x in crafted.x.chunk(3))
        paired = pairing(source, target, batch.y)
        if self.variant == "plain":
            fitted = fit(harder, batch)
            total = fitted.total
        else:
            natural = model(batch.x)
            fitted = fit(natural, batch)
            total = fitted.total + self.beta * kl(natural, harder).mean()
        return Loss(total + self.lam * paired, {**fitted.parts, "pairing": paired.detach()})


def pairing(source: Logits, target: Logits, y: Labels) -> Tensor:
    """The mean of KL(source || target) over the images that the source gets right; zero where there are
    none."""
    right = (source.detach().argmax(1) == y).to(source)
    return (right * kl(source, target)).sum() / right.sum().clamp(min=1)
