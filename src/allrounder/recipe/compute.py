"""The `compute` table of a recipe: the precision of training steps, and how convolutions are computed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, final

import torch
from pydantic import model_serializer

from allrounder.config.fields import Flag, frozen_config, raise_field_errors
from allrounder.errors import RecipeError
from allrounder.system.probe import FALLBACK_ISA, ISA_VARIABLE, precision_failure

Precision: TypeAlias = Literal["fp32", "bf16"]
AUTOCAST_DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16}


@final
@frozen_config
class Compute:
    """The arithmetic of training steps.

    Weights, averages and images are always float32, and every validation and evaluation computes in float32.
    """

    precision: Precision = "fp32"
    """What networks compute in during crafting and the update: fp32 or bf16."""
    tf32: Flag = False
    """Whether CUDA may round the factors of float32 products to 10 bits (TF32)."""
    fast_conv: Flag = False
    """Whether attacks in training use faster convolutions on a CPU, with slightly larger rounding errors."""

    def __post_init__(self) -> None:
        if self.fast_conv and self.precision != "fp32":
            message = f"needs precision = fp32, got {self.precision}; set one of them to its default"
            raise_field_errors(self, [(("fast_conv",), message)])

    @model_serializer(mode="wrap")
    def _to_table(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Leave out the default, so that recipes older than the field keep their fingerprints."""
        table = handler(self)
        if not self.fast_conv:
            table.pop("fast_conv")
        return table

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The dtype that networks are autocast to, or None for float32."""
        return AUTOCAST_DTYPES.get(self.precision)

    def check_device(self, device: torch.device) -> list[str]:
        """Raise RecipeError if the device cannot compute this way; return warnings about unused settings."""
        dtype = self.autocast_dtype
        if dtype is not None and (cause := precision_failure(dtype, device.type)) is not None:
            can_restrict = device.type == "cpu" and ISA_VARIABLE not in os.environ
            fix = "set compute.precision to fp32"
            if can_restrict and precision_failure(dtype, device.type, FALLBACK_ISA) is None:
                fix += f", or set {ISA_VARIABLE}={FALLBACK_ISA} in the environment, with which it works here"
            raise RecipeError(
                f"compute.precision: got {self.precision}, but a small test network on {device} {cause}; "
                f"expected it to run forward and backward; {fix}"
            )
        settings = {
            "tf32": self.tf32 and device.type != "cuda",
            "fast_conv": self.fast_conv and device.type != "cpu",
        }
        return [
            f"compute.{name} has no effect on {device.type}" for name, unused in settings.items() if unused
        ]
