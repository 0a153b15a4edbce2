"""The few types that everything shares, and the legend of tensor shapes.

n  examples of a batch        c h w  channels, height, width
k  classes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from allrounder.rng import Draws

Images: TypeAlias = Float[Tensor, "n c h w"]
Labels: TypeAlias = Int[Tensor, " n"]
Logits: TypeAlias = Float[Tensor, "n k"]
PerExample: TypeAlias = Float[Tensor, " n"]
PerExampleBool: TypeAlias = Bool[Tensor, " n"]

Classifier: TypeAlias = Callable[[Tensor], Tensor]
"""Anything from images in [0, 1] to logits."""

NormLayers: TypeAlias = Literal["eval", "train", "train_frozen"]
"""Batch-norm while crafting: running statistics; batch statistics that also move the running ones; batch
statistics that leave the running ones alone."""

Keep: TypeAlias = Literal["keep", "reset"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Images in [0, 1], hard labels, and each image's position in its split."""

    x: Images
    y: Labels
    index: Labels
    smoothing: float = 0.0
    """Label smoothing for the loss; attacks use the hard labels."""

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Loss:
    """A scalar to descend, and detached parts for the log."""

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True, eq=False)
class Context:
    """Where in a run a step happens, its randomness, and the memory of the method that takes it."""

    t: int
    epoch: int
    progress: float
    draws: Draws
    memory: dict[str, Tensor]


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes through a network, counted per batch."""

    forwards: int = 0
    backwards: int = 0

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forwards + other.forwards, self.backwards + other.backwards)


def device_of(model: Classifier) -> tuple[torch.device, torch.dtype]:
    """Where a network's first tensor lives and its floating type; CPU and float32 for one without tensors."""
    tensors = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
    for tensor in tensors:
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.float32
