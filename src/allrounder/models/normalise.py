"""Normalisation as the first layer of a network, so that attacks work on images in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from allrounder.models.layers import TensorOrProxy


@final
class Normalise(nn.Module):
    """(x - mean) / std per channel.

    The constants belong to the architecture: they are not part of the state dict.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    @override
    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        return (x - self.mean) / self.std


def build_normalise(mean: Sequence[float], std: Sequence[float], channels: int) -> nn.Module:
    """Build the layer; an empty mean is 0, an empty std is 1, and nn.Identity for both empty."""
    for name, constants in (("mean", mean), ("std", std)):
        if constants and len(constants) != channels:
            raise ValueError(
                f"model.{name}: has {len(constants)} numbers, but the images have {channels} channels; "
                "give one number per channel, or none"
            )
    if not mean and not std:
        return nn.Identity()
    return Normalise(mean or [0.0] * channels, std or [1.0] * channels)
