"""Precision of a network: autocast to half precision, and TF32 on CUDA.

Autocast covers one forward pass, not a training step. So the losses, projections and optimiser steps around
the network stay in float32, and no cast weights outlive the pass: torch caches them until autocast ends, and
an update that changes weights within a step would continue with the old ones.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from allrounder.errors import RecipeError
from allrounder.types import Classifier, device_and_dtype

HAS_NAMED_PRECISION = hasattr(torch.backends.cuda.matmul, "fp32_precision")
"""Newer versions of torch set the precision of float32 products by name, and the old flag is unreadable."""
TF32_SWITCHES: tuple[Any, Any] = (
    torch.backends.cuda.matmul,
    cast(Any, torch.backends.cudnn).conv if HAS_NAMED_PRECISION else torch.backends.cudnn,
)
TF32_ATTRIBUTE, TF32_ON, TF32_OFF = (
    ("fp32_precision", "tf32", "ieee") if HAS_NAMED_PRECISION else ("allow_tf32", True, False)
)


@final
class AutocastModule(nn.Module):
    """A float32 network that computes under autocast; images, logits and gradients stay float32."""

    def __init__(self, network: nn.Module, dtype: torch.dtype):
        super().__init__()
        network_dtype = device_and_dtype(network)[1]
        if network_dtype != torch.float32:
            raise RecipeError(
                f"compute.precision: the network is in {network_dtype}, expected torch.float32 for autocast; "
                "convert the network, or set compute.precision to fp32"
            )
        self.network, self.dtype = network, dtype

    def forward(self, x: Tensor) -> Tensor:
        """Images to float32 logits."""
        return self.forward_with(self.network, x)

    def forward_with(self, network: Classifier, x: Tensor) -> Tensor:
        """The same with another form of the network, such as a folded copy."""
        with torch.autocast(x.device.type, dtype=self.dtype):
            logits = network(x)
        return logits.float()


def with_autocast(model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """The network under autocast to `dtype`; the network itself if `dtype` is None."""
    return model if dtype is None else AutocastModule(model, dtype)


def unwrap(model: nn.Module) -> nn.Module:
    """The network without its autocast wrapper; its parameter names are those of checkpoints."""
    return model.network if isinstance(model, AutocastModule) else model


@contextmanager
def allow_tf32(allowed: bool) -> Generator[None]:
    """Allow or forbid TF32 on CUDA within the context; torch allows it in convolutions by default."""
    before = [getattr(switch, TF32_ATTRIBUTE) for switch in TF32_SWITCHES]
    for switch in TF32_SWITCHES:
        setattr(switch, TF32_ATTRIBUTE, TF32_ON if allowed else TF32_OFF)
    try:
        yield
    finally:
        for switch, setting in zip(TF32_SWITCHES, before, strict=True):
            setattr(switch, TF32_ATTRIBUTE, setting)


@contextmanager
def full_precision(device: torch.device) -> Generator[None]:
    """Compute in float32 without TF32 and autocast within the context, as evaluations do."""
    with allow_tf32(False), torch.autocast(device.type, enabled=False):
        yield
