"""Pixel-reweighted adversarial training."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

import torch
from jaxtyping import Bool
from pydantic import Field
from torch import Tensor, nn

from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.pgd import Pgd
from allrounder.attacks.pixel_budget_pgd import PixelBudgetPgd
from allrounder.config.fields import NonNegativeFloat, OneOf, Ratio, frozen_config, raise_field_errors
from allrounder.config.time import Time
from allrounder.nn.gradcam import GRAD_CAM_PASSES, grad_cam
from allrounder.objectives.base import SingleThreatObjective
from allrounder.objectives.mart import mart_loss
from allrounder.objectives.part_masks import MASKS, Mask
from allrounder.objectives.trades import trades_loss
from allrounder.threats.norms import Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, Loss, Passes


@final
@frozen_config
class Part(SingleThreatObjective):
    """Pixel-reweighted adversarial training (PART): less important pixels get a smaller budget.

    After a warm-up of plain adversarial training, every image gets a mask from its Grad-CAM map (see
    part_masks.py). x' is crafted with the budget eps where the mask is on and low * eps elsewhere, and the
    loss is CE(f(x'), y), or that of TRADES or MART with x' (PART-T, PART-M). Released PART-T also crafts as
    TRADES does: attack = { kind = "pgd", loss = "kl", start = "gaussian" }.
    Zhang et al., 2024, Improving accuracy-robustness trade-off via pixel reweighted adversarial training.
    """

    reference: ClassVar[str] = "Zhang et al., 2024"
    whole_batch: ClassVar[bool] = True
    norms: ClassVar[frozenset[type[Norm]]] = frozenset({Linf})

    threat: Threat
    """An Linf threat."""
    low: Annotated[Ratio, Field(ge=0, le=1)] = 7 / 8
    """The smaller budget, as a fraction of the larger."""
    attack: Annotated[Pgd, OneOf(lambda: {"pgd": Pgd})] = Pgd(steps=10, step=0.25)
    """The attack of the warm-up, and with masks; its steps are fractions of the larger budget."""
    warmup: Time = Time.parse("25%")
    """The length of plain adversarial training: 20 of 80 epochs as released."""
    mask: Mask = "jet"
    """jet (as released, through a colour map) or plain (map > mean + standard deviation)."""
    outer: Literal["at", "trades", "mart"] = "at"
    """The loss to minimise: at, trades (PART-T) or mart (PART-M)."""
    weight: NonNegativeFloat = 6.0
    """The weight of the second term of trades and mart."""
    alignment: Literal["aligned", "released"] = "aligned"
    """Which mask an image gets: its own, or another image's, as in the released code."""
    norm_layers: BatchNormMode = "eval"
    """Batch-norm while crafting: eval (as released), train, or train_frozen; maps are computed in eval."""

    def __post_init__(self) -> None:
        if not isinstance(self.threat.norm, Linf):
            message = f"got {self.threat}, expected an Linf threat for budgets per pixel, such as Linf:8/255"
            raise_field_errors(self, [(("threat",), message)])

    def craft_passes(self) -> Passes:
        """The passes of Grad-CAM and of the attack; the warm-up has no Grad-CAM."""
        return GRAD_CAM_PASSES + self.attack.passes()

    def loss_passes(self) -> Passes:
        """One forward and backward; two for trades and mart."""
        return Passes(1, 1) * (1 if self.outer == "at" else 2)

    def problems(self, epochs: int) -> list[tuple[str, str]]:
        """A warm-up that takes the whole run."""
        if self.warmup.to_epochs(epochs) < epochs:
            return []
        message = f"is {self.warmup}, so no mask is ever used in a run of {epochs} epochs; make it shorter"
        return [("warmup", message)]

    def attack_of_step(self, model: nn.Module, batch: Batch, ctx: Context) -> Attack:
        """One budget during the warm-up, then a budget for every pixel."""
        if ctx.t <= self.warmup.to_steps(ctx.clock):
            return self.attack
        eps = torch.tensor(self.threat.eps, dtype=batch.x.dtype, device=batch.x.device)
        return PixelBudgetPgd(self.attack, torch.where(self._masks(model, batch, ctx), eps, self.low * eps))

    def _masks(self, model: nn.Module, batch: Batch, ctx: Context) -> Bool[Tensor, "n c h w"]:
        # Differs: masks are computed from this batch with the current network. Released code computes them
        # once an epoch, in another order and from other crops, so every image gets another's mask. ADR 0020
        masks = MASKS[self.mask](grad_cam(model, batch.x), batch.x.shape[1])
        if self.alignment == "aligned":
            return masks
        order = ctx.rng.fold_in("masks").permutation(len(batch)).to(masks.device)
        return torch.empty_like(masks).index_copy_(0, order, masks[order.roll(1)])

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """The loss of adversarial training, TRADES or MART."""
        if self.outer == "at":
            return super().loss(model, batch, crafted, ctx)
        assert crafted is not None
        outer_loss = trades_loss if self.outer == "trades" else mart_loss
        return outer_loss(model(batch.x), model(crafted.x), batch, self.weight)
