"""Pixel-reweighted adversarial training."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, TypeAlias, final

import torch
from jaxtyping import Bool, Float
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
from allrounder.objectives.trades import trades_loss
from allrounder.threats.norms import Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, Loss, Passes

Mask: TypeAlias = Literal["jet", "plain"]
Maps: TypeAlias = Float[Tensor, "n h w"]
Masks: TypeAlias = Bool[Tensor, "n c h w"]

JET_KNOTS = (
    ((0.0, 0.0), (0.35, 0.0), (0.66, 1.0), (0.89, 1.0), (1.0, 0.5)),
    ((0.0, 0.0), (0.125, 0.0), (0.375, 1.0), (0.64, 1.0), (0.91, 0.0), (1.0, 0.0)),
    ((0.0, 0.5), (0.11, 1.0), (0.34, 1.0), (0.65, 0.0), (1.0, 0.0)),
)
"""The knots (position, intensity) of the colour map jet for red, green and blue; linear in between."""
NUM_SHADES = 256


@final
@frozen_config
class Part(SingleThreatObjective):
    """Pixel-reweighted adversarial training (PART): less important pixels get a smaller budget.

    After a warm-up of plain adversarial training, every image gets a mask from its Grad-CAM map. x' is
    crafted with the budget eps where the mask is on and low * eps elsewhere, and the loss is CE(f(x'), y), or
    that of TRADES or MART with x' (PART-T, PART-M). Released PART-T also crafts as TRADES does:
    attack = { kind = "pgd", loss = "kl", start = "gaussian" }.
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

    def _masks(self, model: nn.Module, batch: Batch, ctx: Context) -> Masks:
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


def jet_colours(cam: Maps) -> Float[Tensor, "n 3 h w"]:
    """The jet colours of a map, quantised to 256 shades; values outside [0, 1] are clamped."""
    position = (NUM_SHADES * cam).floor().clamp(0, NUM_SHADES - 1) / (NUM_SHADES - 1)
    return torch.stack([_interpolate(position, knots) for knots in JET_KNOTS], dim=1)


def jet_masks(cam: Maps, channels: int) -> Masks:
    """Where the jet colours of cam^2 are more than a standard deviation above their mean, as released.

    Mean and deviation are taken over all pixels and colours of an image; every channel has its own mask. The
    mask is not monotone in the map: blue is on where the map is low, and everywhere if the map is zero.
    Images of one channel take the mask of red, the colour of high values.
    """
    if channels not in (1, 3):
        raise ValueError(
            f"images have {channels} channels, expected 3 (red, green, blue) or 1 (grey) for the mask jet; "
            'use the mask "plain"'
        )
    masks = _exceeds_one_std(jet_colours(cam.square()))
    # Differs: the released code does not support grey images. ADR 0020
    return masks if channels == 3 else masks[:, :1]


def plain_masks(cam: Maps, channels: int) -> Masks:
    """Where the map is more than a standard deviation above its mean, the same for all channels."""
    return _exceeds_one_std(cam[:, None]).expand(-1, channels, -1, -1)


def _exceeds_one_std(values: Float[Tensor, "n c h w"]) -> Masks:
    """(v - mean) / std > 1 for every image, with the uncorrected standard deviation."""
    flat = values.flatten(1)
    std, mean = torch.std_mean(flat, dim=1, correction=0)
    return (flat - mean[:, None] > std[:, None]).view_as(values)


def _interpolate(position: Tensor, knots: tuple[tuple[float, float], ...]) -> Tensor:
    intensity = torch.full_like(position, knots[-1][1])
    for (left, low), (right, high) in reversed(list(pairwise(knots))):
        segment = low + (high - low) * (position - left) / (right - left)
        intensity = torch.where(position < right, segment, intensity)
    return intensity


MASKS: dict[Mask, Callable[[Maps, int], Masks]] = {"jet": jet_masks, "plain": plain_masks}
