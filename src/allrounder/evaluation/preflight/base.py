"""What a check of the preflight looks at, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, cast, final

import torch
from torch import Tensor, nn

from allrounder.rng import Draws
from allrounder.types import Classifier, device_of

FEW = 64
"""Images the network is asked about at most, spread evenly over the given ones."""


@final
@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: a short kind, and a sentence with what to do."""

    what: str
    severe: bool
    """Whether the numbers of an evaluation would be wrong, and not only in need of a remark."""
    message: str

    def __str__(self) -> str:
        return f"{self.what}: {self.message}"


class Silent(Exception):
    """A network gave no answer; holds the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass(frozen=True, eq=False)
class Case:
    """What a check looks at."""

    model: Classifier
    x: Tensor
    y: Tensor
    classes: int | None
    training: int
    """How many of the network's modules were found in training mode."""

    @cached_property
    def rows(self) -> Tensor:
        """Which images the network is asked about."""
        return torch.arange(0, len(self.x), -(-len(self.x) // FEW))

    @cached_property
    def images(self) -> Tensor:
        """Those images, as an evaluation hands them to the network."""
        few = self.x[self.rows.to(self.x.device)]
        return few.to(*device_of(self.model)) if isinstance(self.model, nn.Module) else few

    @cached_property
    def labels(self) -> Tensor:
        """Their labels, on the CPU."""
        return self.y.cpu()[self.rows].long()

    @cached_property
    def logits(self) -> Tensor:
        """The network's answers, on the CPU."""
        return self.ask(self.images)

    def ask(self, x: Tensor, draw: int = 0) -> Tensor:
        """The answers to a copy of some images; a network that draws random numbers gets those of `draw`."""
        return self.show(x.clone(), draw)

    def show(self, x: Tensor, draw: int = 0) -> Tensor:
        """The answers to the images themselves."""
        try:
            with Draws(0).at("doctor", draw).ambient():
                answer = cast(object, self.model(x))
                answer = answer.cpu() if isinstance(answer, Tensor) else answer
        except Exception as error:  # Whatever a stranger's network raises is the finding.
            said = f"the network fails on images of shape {tuple(x.shape)}: {type(error).__name__}: {error}"
            fix = "it must take any number of float images of the given size, on the device they are on"
            raise Silent(Finding("forward", True, f"{said}; {fix}")) from error
        if isinstance(answer, Tensor):
            return answer
        said = f"the network returns a {type(answer).__name__}, expected one tensor of logits"
        raise Silent(Finding("shape", True, f"{said}; wrap it so that it returns the logits alone"))

    def right(self, logits: Tensor) -> float:
        """The share of answers that are right."""
        return float((logits.argmax(1) == self.labels).double().mean())


Check: TypeAlias = Callable[[Case], Finding | None]
