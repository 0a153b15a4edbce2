"""Pixel-reweighted adversarial training."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

import torch
from jaxtyping import Bool
from pydantic import Field
from torch import Tensor, nn

from allrounder.attacks.base import Crafted, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.attacks.pixel_budget_pgd import Weighted
from allrounder.config.fields import Kind, NonNegative, Ratio, refuse, value
from allrounder.config.time import Time
from allrounder.nn.gradcam import PASSES, grad_cam
from allrounder.objectives.base import Objective, fit
from allrounder.objectives.mart import aware
from allrounder.objectives.part_masks import MASKS, Mask
from allrounder.objectives.trades import traded
from allrounder.threats.norms import Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Loss, NormLayers, Passes


@final
@value
class Part(Objective):
    """Pixel-reweighted adversarial training (PART): pixels that matter less get a smaller budget.

    After a warm-up of plain adversarial training, every image gets a mask from its Grad-CAM (see masks.py);
    x' is crafted with the budget eps where the mask is on and low * eps elsewhere, and the loss is CE(f(x'),
    y), or that of TRADES or MART with x' (PART-T, PART-M). Released PART-T also crafts as TRADES does:
    attack = { kind = "pgd", loss = "kl", start = "gaussian" }.
    Zhang et al., 2024, Improving accuracy-robustness trade-off via pixel reweighted adversarial training.
    """

    reference: ClassVar[str] = "Zhang et al., 2024"
    whole_batch: ClassVar[bool] = True
    norms: ClassVar[frozenset[type[Norm]]] = frozenset({Linf})

    threat: Threat
    """An Linf budget."""
    low: Annotated[Ratio, Field(ge=0, le=1)] = 7 / 8
    """The smaller budget, as a fraction of the larger."""
    attack: Annotated[Pgd, Kind(lambda: {"pgd": Pgd})] = Pgd(steps=10, step=0.25)
    """Of the warm-up, and with masks; its steps are fractions of the larger budget."""
    warmup: Time = Time.read("25%")
    """How long training is plain: 20 of 80 epochs as released."""
    mask: Mask = "jet"
    """jet (as released, through a colour map) or plain (map > mean + standard deviation)."""
    outer: Literal["at", "trades", "mart"] = "at"
    """The loss that is descended: at, trades (PART-T) or mart (PART-M)."""
    weight: NonNegative = 6.0
    """Of the second term of trades and mart."""
    alignment: Literal["aligned", "released"] = "aligned"
    """Whose mask an image has: its own, or another image's, as in the released code."""
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting: eval (as released), train, or train_frozen; maps are made in eval."""

    def __post_init__(self) -> None:
        if not isinstance(self.threat.norm, Linf):
            said = f"got {self.threat}, but budgets of pixels are those of Linf; write one such as Linf:8/255"
            refuse(self, [(("threat",), said)])

    def threats(self) -> tuple[Threat, ...]:
        """The one threat."""
        return (self.threat,)

    def craft_passes(self) -> Passes:
        """The map's, after the warm-up, and the attack's."""
        return PASSES + self.attack.passes()

    def loss_passes(self) -> Passes:
        """One pair, or two."""
        return Passes(1, 1) * (1 if self.outer == "at" else 2)

    def problems(self, epochs: int) -> list[tuple[str, str]]:
        """A warm-up that never ends."""
        if self.warmup.epochs(epochs) < epochs:
            return []
        said = f"is {self.warmup}, so no mask is ever used in a run of {epochs} epochs; make it shorter"
        return [("warmup", said)]

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """Attack with one budget, or with a budget for every pixel."""
        draws, warm = ctx.draws.at("attack"), ctx.t <= self.warmup.steps(ctx.clock)
        attack = self.attack if warm else self._weighted(model, batch, ctx)
        return perturb(attack, model, batch.x, batch.y, self.threat, draws, norm_layers=self.norm_layers)

    def _weighted(self, model: nn.Module, batch: Batch, ctx: Context) -> Weighted:
        eps = torch.tensor(self.threat.eps, dtype=batch.x.dtype, device=batch.x.device)
        budgets = torch.where(self._masks(model, batch, ctx), eps, self.low * eps)
        return Weighted(self.attack, budgets)

    def _masks(self, model: nn.Module, batch: Batch, ctx: Context) -> Bool[Tensor, "n c h w"]:
        # Differs: made of this batch by the network as it is, where released code makes them once an epoch,
        # in another order and of other crops: there each image is trained with some other one's. ADR 0020
        masks = MASKS[self.mask](grad_cam(model, batch.x), batch.x.shape[1])
        if self.alignment == "aligned":
            return masks
        order = ctx.draws.at("masks").permutation(len(batch)).to(masks.device)
        return torch.empty_like(masks).index_copy_(0, order, masks[order.roll(1)])

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Of adversarial training, TRADES or MART."""
        assert crafted is not None
        if self.outer == "at":
            return fit(model(crafted.x), batch)
        natural, adversarial = model(batch.x), model(crafted.x)
        if self.outer == "trades":
            return traded(natural, adversarial, batch, self.weight)
        return aware(natural, adversarial, batch, self.weight)
