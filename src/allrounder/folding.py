"""The network that attacks craft on: a frozen eval-mode copy, channels last, batch-norm folded into convolutions.

With running statistics a batch-norm is a fixed scale s = gamma / sqrt(var + eps) and shift per channel, so

    bn(conv(x; W, b)) = conv(x; s W, beta + s (b - mean)).

The structure is traced once for each model; after that only the numbers are refreshed. What cannot be traced, or
does not agree with the original, is left alone: `frozen` then answers None and logs why.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from allrounder.rng import Draws
from allrounder.types import Images, Logits

LOG = logging.getLogger("allrounder")
TOLERANCE = 1e-6
MOST_TRACES = 8
FOLDABLE: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: nn.BatchNorm2d, nn.Linear: nn.BatchNorm1d}
"""Exact types only: a subclass may compute something else."""


class Unfoldable(Exception):
    """Why a network has no folded copy."""


@final
class Folded:
    """A folded copy, from images to logits; differentiable in the images alone.

    It keeps no reference to the model. The next call of `frozen` for the same model overwrites its numbers.
    """

    def __init__(self, network: fx.GraphModule, pairs: tuple[tuple[str, str], ...]) -> None:
        self.network = network
        self.pairs = pairs
        """Convolutions, each with the batch-norm that was folded into it."""
        folded = {f"{layer}.{kind}" for layer, _ in pairs for kind in ("weight", "bias")}
        tensors = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
        self.copied = tuple((tensor, attrgetter(name)) for name, tensor in tensors if name not in folded)

    def __call__(self, x: Images) -> Logits:
        return self.network(_ChannelsLast.apply(x))

    @torch.no_grad()
    def refresh_(self, model: nn.Module) -> None:
        """Take over the numbers that a model of the same structure holds now."""
        for target, source in self.copied:
            target.copy_(source(model))
        for layer, norm in self.pairs:
            _fold_(self.network.get_submodule(layer), model.get_submodule(layer), model.get_submodule(norm))
