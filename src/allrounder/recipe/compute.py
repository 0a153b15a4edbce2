"""The `compute` table of a recipe: the precision of training steps."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias, final

import torch

from allrounder.config.fields import Flag, frozen_config
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
        unused = self.tf32 and device.type != "cuda"
        return [f"compute.tf32 has no effect on {device.type}"] if unused else []
