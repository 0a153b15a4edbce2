"""Normalisation as the first layer of a network, so that attacks and budgets live in image units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from allrounder.models.layers import Flow


@final
class Normalise(nn.Module):
    """(x - mean) / std per channel.

    The numbers belong to the architecture, not to the weights: they are no part of a state dict.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Flow) -> Flow:
        """Images in [0, 1] to images of about zero mean and unit variance."""
        return (x - self.mean) / self.std


def normaliser(mean: Sequence[float], std: Sequence[float], channels: int) -> nn.Module:
    """The layer for these constants; an empty mean is 0, an empty std is 1, both empty is no layer."""
    for name, numbers in (("mean", mean), ("std", std)):
        if numbers and len(numbers) != channels:
            raise ValueError(
                f"model.{name}: has {len(numbers)} numbers, but the images have {channels} channels; "
                "give one number for every channel, or none"
            )
    if not mean and not std:
        return nn.Identity()
    return Normalise(mean or [0.0] * channels, std or [1.0] * channels)
