"""Which numbers of an image matter, by its Grad-CAM: the masks of pixel-reweighted adversarial training."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Mask: TypeAlias = Literal["jet", "plain"]
Maps: TypeAlias = Float[Tensor, "n h w"]
Masks: TypeAlias = Bool[Tensor, "n c h w"]

JET = (
    ((0.0, 0.0), (0.35, 0.0), (0.66, 1.0), (0.89, 1.0), (1.0, 0.5)),
    ((0.0, 0.0), (0.125, 0.0), (0.375, 1.0), (0.64, 1.0), (0.91, 0.0), (1.0, 0.0)),
    ((0.0, 0.5), (0.11, 1.0), (0.34, 1.0), (0.65, 0.0), (1.0, 0.0)),
)
"""The knots (value, colour) of the colour map jet: red, green, blue, each linear between them."""
SHADES = 256


def jet(cam: Maps) -> Float[Tensor, "n 3 h w"]:
    """The colours of a map, of 256 shades; what leaves [0, 1] has the colour of the nearer end."""
    place = (SHADES * cam).floor().clamp(0, SHADES - 1) / (SHADES - 1)
    return torch.stack([_between(place, knots) for knots in JET], dim=1)


def jet_masks(cam: Maps, channels: int) -> Masks:
    """Where the colours of cam^2 are more than a standard deviation above their mean, as released.

    Mean and deviation are over all pixels and colours of an image, and every channel has a mask of its own.
    It does not rise with the map: blue is on where the map is low, and everywhere in one that is zero.
    Images of one channel take the mask of red, the colour of what matters.
    """
    if channels not in (1, 3):
        raise ValueError(
            f"images have {channels} channels, and the mask jet is made of red, green and blue, expected 3 "
            'channels or 1 (grey); choose the mask "plain"'
        )
    masks = _far_above(jet(cam.square()))
    # Differs: the released code knows no grey images. ADR 0020
    return masks if channels == 3 else masks[:, :1]


def plain_masks(cam: Maps, channels: int) -> Masks:
    """Where the map is more than a standard deviation above its mean, for all channels alike."""
    return _far_above(cam[:, None]).expand(-1, channels, -1, -1)


def _far_above(values: Float[Tensor, "n c h w"]) -> Masks:
    """(v - mean) / std > 1, with the deviation of the values themselves (divided by their number)."""
    flat = values.flatten(1)
    std, mean = torch.std_mean(flat, dim=1, correction=0)
    return (flat - mean[:, None] > std[:, None]).view_as(values)


def _between(place: Tensor, knots: tuple[tuple[float, float], ...]) -> Tensor:
    found = torch.full_like(place, knots[-1][1])
    for (left, low), (right, high) in reversed(list(pairwise(knots))):
        found = torch.where(place < right, low + (high - low) * (place - left) / (right - left), found)
    return found


MASKS: dict[Mask, Callable[[Maps, int], Masks]] = {"jet": jet_masks, "plain": plain_masks}
