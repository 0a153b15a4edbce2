"""Optimisers as frozen values; the learner sets the learning rate from its schedule before every step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from pydantic import Field
from torch import nn
from typing_extensions import override

from allrounder.config.fields import (
    FiniteFloat,
    Flag,
    NonNegativeFloat,
    OneOf,
    PositiveFloat,
    Share,
    frozen_config,
    raise_field_errors,
)
from allrounder.optim.eager import eager_class

Beta = Annotated[FiniteFloat, Field(ge=0, lt=1)]


class Optimizer(ABC):
    """The settings of a torch optimiser."""

    @abstractmethod
    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Build the torch optimiser for the parameters."""


@final
@frozen_config
class Sgd(Optimizer):
    """Stochastic gradient descent with momentum; weight decay applies to every parameter, as in the papers,
    unless `decay_on` excludes biases and batch-norm."""

    momentum: Share = 0.9
    weight_decay: NonNegativeFloat = 0.0
    nesterov: Flag = False
    decay_on: Literal["all", "weights"] = "all"
    """What weight decay applies to: all parameters, or only those of more than one dimension, without biases
    and batch-norm scales."""

    def __post_init__(self) -> None:
        if self.nesterov and self.momentum == 0:
            message = "needs momentum, got momentum = 0; set momentum, or nesterov to false"
            raise_field_errors(self, [(("nesterov",), message)])

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """torch.optim.SGD; parameters without weight decay, if any, are in a second group."""
        listed = list(parameters)
        not_decaying = [p for p in listed if self.decay_on == "weights" and p.dim() < 2]
        decaying = [p for p in listed if self.decay_on == "all" or p.dim() >= 2]
        groups = [{"params": decaying}, {"params": not_decaying, "weight_decay": 0.0}]
        return eager_class(torch.optim.SGD)(
            [group for group in groups if group["params"]],
            lr=0.0,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            **_kernel_options(listed),
        )


@frozen_config
class AdamFamily(Optimizer):
    """The settings that Adam and AdamW share."""

    torch_class: ClassVar[Any]

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0

    @override
    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        listed = list(parameters)
        settings = {"betas": self.betas, "eps": self.eps, "weight_decay": self.weight_decay}
        return eager_class(self.torch_class)(listed, lr=0.0, **settings, **_kernel_options(listed))


@final
@frozen_config
class Adam(AdamFamily):
    """Adam (Kingma and Ba, 2015); its weight decay is added to the gradient."""

    torch_class: ClassVar[Any] = torch.optim.Adam


@final
@frozen_config
class AdamW(AdamFamily):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    torch_class: ClassVar[Any] = torch.optim.AdamW

    weight_decay: NonNegativeFloat = 1e-2


def _kernel_options(parameters: list[nn.Parameter]) -> dict[str, bool]:
    """Fused kernels on CUDA, which can skip a step on the device (see `NonFiniteGuard`), else foreach."""
    fused = bool(parameters) and all(parameter.is_cuda for parameter in parameters)
    return {"fused": True} if fused else {"foreach": True}


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
AnyOptimizer = Annotated[Optimizer, OneOf(lambda: OPTIMIZERS)]
