"""The input and the result of a preflight check: a `Case` and a `Finding`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, cast, final

import torch
from torch import Tensor, nn

from allrounder.models.logits_of import find_logits
from allrounder.rng import Rng
from allrounder.types import Classifier, device_and_dtype

MAX_IMAGES = 64
"""Most images that are passed through the network, spread evenly over the given ones."""


@final
@dataclass(frozen=True)
class Finding:
    """A problem: a short kind, and a message with what to do."""

    kind: str
    severe: bool
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def severe(kind: str, problem: str, fix: str) -> Finding:
    """A finding that makes the results of an evaluation wrong."""
    return Finding(kind, True, f"{problem}; {fix}")


def note(kind: str, problem: str, fix: str) -> Finding:
    """A finding that only needs a remark."""
    return Finding(kind, False, f"{problem}; {fix}")


class NoAnswer(Exception):
    """The network returned no logits; holds the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass(frozen=True, eq=False)
class Case:
    """A network, images and labels to check."""

    model: Classifier
    x: Tensor
    y: Tensor
    classes: int | None
    num_training: int
    """Number of modules of the network that were in training mode."""
    batch_size: int | None = None
    """Images per forward pass of the evaluation, if it is known."""

    @cached_property
    def rows(self) -> Tensor:
        """Rows of the images that are passed through the network."""
        return torch.arange(0, len(self.x), -(-len(self.x) // MAX_IMAGES))

    @cached_property
    def images(self) -> Tensor:
        """The images of these rows, on the device and in the dtype of the network."""
        images = self.x[self.rows.to(self.x.device)]
        return images.to(*device_and_dtype(self.model)) if isinstance(self.model, nn.Module) else images

    @cached_property
    def labels(self) -> Tensor:
        """The labels of these rows, on the CPU."""
        return self.y.cpu()[self.rows].long()

    @cached_property
    def logits(self) -> Tensor:
        """The logits of these images, on the CPU."""
        return self.forward(self.images)

    def forward(self, x: Tensor, draw: int = 0) -> Tensor:
        """The logits of a copy of images; `draw` selects the random numbers of a randomised network."""
        return self.forward_inplace(x.clone(), draw)

    def forward_inplace(self, x: Tensor, draw: int = 0) -> Tensor:
        """The logits of images, which the network may overwrite; raises NoAnswer if it fails."""
        try:
            with Rng(0).fold_in("doctor", draw).seed_global():
                output = cast(object, self.model(x))
                output = output.cpu() if isinstance(output, Tensor) else output
        except Exception as error:  # Any error of an external network is a finding.
            reason = f"{type(error).__name__}: {error}"
            problem = f"the network fails on images of shape {tuple(x.shape)}: {reason}"
            fix = "it must accept any number of float images of the given size, on their device"
            raise NoAnswer(severe("forward", problem, fix)) from error
        if isinstance(output, Tensor):
            return output
        problem = f"the network returns a {type(output).__name__}, expected one tensor of logits"
        hint = "" if find_logits(output) is None else ": allrounder.LogitsOf(network, mean=..., std=...)"
        raise NoAnswer(severe("shape", problem, f"wrap it so that it returns the logits alone{hint}"))

    def accuracy(self, logits: Tensor) -> float:
        """The share of images that are classified correctly."""
        return float((logits.argmax(1) == self.labels).double().mean())


PreflightCheck: TypeAlias = Callable[[Case], Finding | None]
"""Returns a finding, or None if everything is fine."""
