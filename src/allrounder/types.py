"""The few types that everything shares, and the legend of tensor shapes.

n  examples of a batch        c h w  channels, height, width
k  classes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from allrounder.config.time import Clock
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
    """Images in [0, 1], hard labels, and each image's position in its split.

    An augmentation may have mixed the images: then there is a second label for each.
    """

    x: Images
    y: Labels
    index: Labels
    smoothing: float = 0.0
    """Label smoothing for the loss; attacks use the hard labels."""
    partner: Labels | None = None
    """Where images were mixed, the label of the smaller part; `y` and `index` are those of the larger."""
    weight: PerExample | None = None
    """The weight of `y` in the target, from one half to one; the partner has the rest."""
    extra: PerExampleBool | None = None
    """Where a second set of images joins the training, which ones are of it."""

    def __post_init__(self) -> None:
        assert (self.partner is None) == (self.weight is None), "mixed labels have partners and weights"

    def __len__(self) -> int:
        return len(self.y)

    def targets(self, classes: int) -> Logits:
        """What the loss asks for: a probability for every class, with mixed labels and smoothing."""
        found = F.one_hot(self.y, classes).to(self.x.dtype)
        if self.partner is not None and self.weight is not None:
            other = F.one_hot(self.partner, classes).to(self.x.dtype)
            found = other + self.weight.to(self.x.dtype)[:, None] * (found - other)
        return (1 - self.smoothing) * found + self.smoothing / classes

    def part(self, rows: range) -> Batch:
        """Some images of the batch that follow one another."""
        some = slice(rows.start, rows.stop)
        return replace(
            self,
            x=self.x[some],
            y=self.y[some],
            index=self.index[some],
            partner=None if self.partner is None else self.partner[some],
            weight=None if self.weight is None else self.weight[some],
            extra=None if self.extra is None else self.extra[some],
        )

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """The batch on a device, with images and weights of a floating type."""
        return replace(
            self,
            x=self.x.to(device, dtype),
            y=self.y.to(device),
            index=self.index.to(device),
            partner=None if self.partner is None else self.partner.to(device),
            weight=None if self.weight is None else self.weight.to(device, dtype),
            extra=None if self.extra is None else self.extra.to(device),
        )


@dataclass(frozen=True, eq=False)
class Loss:
    """A scalar to descend, and detached parts for the log."""

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True, eq=False)
class Context:
    """Where in a run a step happens, its randomness, and the memory of the method that takes it."""

    t: int
    clock: Clock
    draws: Draws
    memory: dict[str, Tensor]
    """Changed in place, or by another tensor of the same name, shape and type."""

    @property
    def epoch(self) -> int:
        """The epoch, from 1."""
        return self.clock.epoch(self.t)

    @property
    def epoch_done(self) -> bool:
        """Whether this is the last step of its epoch."""
        return self.t == self.epoch * self.clock.steps


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes through a network, counted per batch."""

    forwards: int = 0
    backwards: int = 0

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forwards + other.forwards, self.backwards + other.backwards)

    def __mul__(self, times: int) -> Passes:
        return Passes(self.forwards * times, self.backwards * times)

    def __str__(self) -> str:
        """Forwards, then backwards: "11/11"."""
        return f"{self.forwards}/{self.backwards}"

    @property
    def work(self) -> int:
        """In forward passes: a backward pass is two multiplications for every one of a forward pass."""
        return self.forwards + 2 * self.backwards


def device_of(model: Classifier) -> tuple[torch.device, torch.dtype]:
    """Where a network's first tensor lives and its floating type; CPU and float32 for one without tensors."""
    tensors = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
    for tensor in tensors:
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.float32
