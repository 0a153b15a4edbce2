"""The masks of pixel-reweighted adversarial training: important pixels by Grad-CAM."""

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

JET_KNOTS = (
    ((0.0, 0.0), (0.35, 0.0), (0.66, 1.0), (0.89, 1.0), (1.0, 0.5)),
    ((0.0, 0.0), (0.125, 0.0), (0.375, 1.0), (0.64, 1.0), (0.91, 0.0), (1.0, 0.0)),
    ((0.0, 0.5), (0.11, 1.0), (0.34, 1.0), (0.65, 0.0), (1.0, 0.0)),
)
"""The knots (position, intensity) of the colour map jet for red, green and blue; linear in between."""
NUM_SHADES = 256


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
