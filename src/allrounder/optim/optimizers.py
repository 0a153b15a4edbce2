"""Optimisers as values; the learning rate is the schedule's and is set before every step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Annotated, Literal, final

import torch
from pydantic import Field
from torch import nn

from allrounder.config.fields import Flag, Kind, NonNegative, Number, Positive, Share, refuse, value

Beta = Annotated[Number, Field(ge=0, lt=1)]


class Optimizer(ABC):
    """How gradients become motion."""

    @abstractmethod
    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The torch optimiser over some parameters."""


@final
@value
class Sgd(Optimizer):
    """Stochastic gradient descent with momentum; weight decay applies to every parameter, as in the papers,
    unless it is told to leave biases and batch-norm alone."""

    momentum: Share = 0.9
    weight_decay: NonNegative = 0.0
    nesterov: Flag = False
    # Left out of recipes where it is all: those from before it keep their fingerprint.
    decay_on: Annotated[
        Literal["all", "weights"], Field(exclude_if=lambda decay_on: decay_on == "all")  # pyright: ignore[reportUnknownLambdaType]
    ] = "all"
    """What weight decay applies to: all parameters, or those of more than one dimension, which leaves out
    biases and the scales of batch-norm."""

    def __post_init__(self) -> None:
        if self.nesterov and self.momentum == 0:
            refuse(self, [(("nesterov",), "needs momentum, and there is none; set one of them")])

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """torch.optim.SGD over lists of tensors; a second group holds what does not decay, if anything."""
        everything = list(parameters)
        bare = [p for p in everything if self.decay_on == "weights" and p.dim() < 2]
        decaying = [p for p in everything if self.decay_on == "all" or p.dim() >= 2]
        groups = [{"params": decaying}, {"params": bare, "weight_decay": 0.0}]
        return torch.optim.SGD(
            [group for group in groups if group["params"]],
            lr=0.0,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            **_kernels(everything),
        )


@final
@value
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015); its weight decay is added to the gradient."""

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """torch.optim.Adam over lists of tensors."""
        listed = list(parameters)
        return torch.optim.Adam(
            listed,
            lr=0.0,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            **_kernels(listed),
        )


@final
@value
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NonNegative = 1e-2

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """torch.optim.AdamW over lists of tensors."""
        listed = list(parameters)
        return torch.optim.AdamW(
            listed,
            lr=0.0,
            betas=self.betas,
            eps=self.eps,
            weight_decay=self.weight_decay,
            **_kernels(listed),
        )


def _kernels(parameters: list[nn.Parameter]) -> dict[str, bool]:
    """Fused kernels on CUDA, which also can be told there to leave a step out; else lists of tensors."""
    fused = bool(parameters) and all(parameter.is_cuda for parameter in parameters)
    return {"fused": True} if fused else {"foreach": True}


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
AnyOptimizer = Annotated[Optimizer, Kind(lambda: OPTIMIZERS)]
