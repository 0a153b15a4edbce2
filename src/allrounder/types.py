"""The types that all packages share, and the letters of tensor shapes.

n  examples of a batch        c h w  channels, height, width
k  classes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from allrounder.config.time import Clock
from allrounder.rng import Rng

Images: TypeAlias = Float[Tensor, "n c h w"]
Labels: TypeAlias = Int[Tensor, " n"]
Logits: TypeAlias = Float[Tensor, "n k"]
PerExample: TypeAlias = Float[Tensor, " n"]
PerExampleBool: TypeAlias = Bool[Tensor, " n"]

Weights: TypeAlias = dict[str, Tensor]
"""Tensors by name: the parameters and buffers of a network, or averages of them."""
NamedTensors: TypeAlias = Mapping[str, Tensor]
"""Weights that a function only reads, or changes in place."""

Classifier: TypeAlias = Callable[[Tensor], Tensor]
"""A function from images in [0, 1] to logits."""

ImageKind: TypeAlias = Literal["natural", "adversarial"]
"""The images of a step: those of the batch, or the crafted ones."""

BatchNormMode: TypeAlias = Literal["eval", "train", "train_frozen"]
"""Batch-norm during crafting: "eval" uses running statistics, "train" uses batch statistics and updates the
running ones, "train_frozen" uses batch statistics and keeps the running ones."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Images in [0, 1], hard labels, and positions of the images in their split; mixed images have two
    labels."""

    x: Images
    y: Labels
    index: Labels
    label_smoothing: float = 0.0
    """Label smoothing for the loss; attacks use the hard labels."""
    partner: Labels | None = None
    """If images were mixed, the label of the smaller part; `y` and `index` are those of the larger part."""
    weight: PerExample | None = None
    """The weight of `y` in the target, from one half to one; `partner` has the rest."""
    extra: PerExampleBool | None = None
    """If training uses extra images, which ones of the batch are extra."""
    is_cropped: bool = False
    """Whether the images are random crops of whole images already, so that an augmentation that begins with
    such a crop continues after it."""

    def __post_init__(self) -> None:
        assert (self.partner is None) == (self.weight is None), "mixed labels have partners and weights"

    def __len__(self) -> int:
        return len(self.y)

    def targets(self, classes: int) -> Logits:
        """Return the target probabilities of every class, with mixed labels and label smoothing."""
        targets = F.one_hot(self.y, classes).to(self.x.dtype)
        if self.partner is not None and self.weight is not None:
            other = F.one_hot(self.partner, classes).to(self.x.dtype)
            targets = other + self.weight.to(self.x.dtype)[:, None] * (targets - other)
        return (1 - self.label_smoothing) * targets + self.label_smoothing / classes

    def slice_rows(self, rows: range) -> Batch:
        """Return a contiguous part of the batch."""
        return self._map_tensors(lambda tensor: tensor[rows.start : rows.stop])

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """Return the batch on a device, with images and weights as `dtype`."""
        return self._map_tensors(lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype))

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> Batch:
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: change(tensor) for name, tensor in tensors.items()})


@dataclass(frozen=True, eq=False)
class Loss:
    """The scalar to minimise, and detached metrics for the log."""

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    logits: Mapping[ImageKind, Tensor] = field(default_factory=dict[ImageKind, Tensor])
    """The network's logits on all images of a kind, with gradient, if the loss needed them."""


@dataclass(frozen=True, eq=False)
class Context:
    """The step of a run, its random numbers, and the state of the method that takes it."""

    t: int
    clock: Clock
    rng: Rng
    memory: dict[str, Tensor]
    """The method's state. Tensors may be changed in place, or replaced by others of equal shape and type."""
    teachers: Mapping[str, Classifier] = field(default_factory=dict[str, Classifier])
    """The networks that the objective names as its teachers, in eval mode and without gradients."""

    @property
    def epoch(self) -> int:
        """The epoch, counted from 1."""
        return self.clock.epoch(self.t)

    @property
    def ends_epoch(self) -> bool:
        """Whether this is the last step of its epoch."""
        return self.clock.ends_epoch(self.t)


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes through a network, counted per batch; fractions count parts of a batch."""

    forwards: int | Fraction = 0
    backwards: int | Fraction = 0

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forwards + other.forwards, self.backwards + other.backwards)

    def __mul__(self, times: int | Fraction) -> Passes:
        return Passes(self.forwards * times, self.backwards * times)

    def __str__(self) -> str:
        """Format as forwards/backwards: "11/11", or "3.4/3.4"."""
        return "/".join(
            str(count) if count == int(count) else f"{float(count):.1f}"
            for count in (self.forwards, self.backwards)
        )

    def round_up(self) -> Passes:
        """The next whole numbers of passes."""
        return Passes(ceil(self.forwards), ceil(self.backwards))

    @property
    def work(self) -> int | Fraction:
        """The cost in forward passes: a backward pass costs as much as two forward passes."""
        return self.forwards + 2 * self.backwards


def device_and_dtype(model: Classifier) -> tuple[torch.device, torch.dtype]:
    """Return the device and type of a network's first floating-point tensor; CPU and float32 without one."""
    if isinstance(model, torch.nn.Module):
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.float32
