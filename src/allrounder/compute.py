"""In what arithmetic a training computes, and whether the machine can: asked of a child, which may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, TypeAlias, cast, final

import torch

from allrounder.errors import RecipeError
from allrounder.values import Flag, value

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
PATIENCE = 120.0
"""Seconds that the child has; it needs two on a machine that is not busy."""
ISA, OLDER = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE"
"""What keeps oneDNN from instructions that a processor advertises and cannot run."""
BY_NAME = hasattr(torch.backends.cuda.matmul, "fp32_precision")
"""Newer versions of torch name what float32 products are made of, and cannot read that as a flag any more."""
SWITCHES: tuple[Any, Any] = (
    torch.backends.cuda.matmul,
    cast(Any, torch.backends.cudnn).conv if BY_NAME else torch.backends.cudnn,
)
SETTING, ALLOWED, FORBIDDEN = ("fp32_precision", "tf32", "ieee") if BY_NAME else ("allow_tf32", True, False)
PROGRAM = """
import sys, torch
from torch import nn
device, dtype = sys.argv[1], getattr(torch, sys.argv[2])
layers = nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1)
network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
network = network.to(device, memory_format=torch.channels_last)
x = torch.rand(32, 3, 8, 8, device=device, requires_grad=True)
with torch.autocast(device, dtype=dtype):
    logits = network(x)
logits.float().logsumexp(1).sum().backward()
sys.exit(0 if bool(x.grad.isfinite().all()) else "the gradients are not finite")
"""


@final
@value
class Compute:
    """The arithmetic of training steps. Weights, averages and images are float32 in any case, and so is every
    verdict of a validation or an evaluation."""

    precision: Precision = "fp32"
    """What networks compute in while crafting and descending: fp32, bf16, or fp16 (on CUDA)."""
    tf32: Flag = False
    """Whether CUDA may round the factors of float32 products to 10 bits (TF32)."""

    def check(self, device: torch.device) -> list[str]:
        """Raise RecipeError where a device cannot compute so; remarks on what has no effect there."""
        if self.precision == "fp16" and device.type != "cuda":
            raise RecipeError(
                f"compute.precision: got fp16 on {device.type}, expected a CUDA device for it; "
                "set compute.precision to bf16 or fp32"
            )
        if self.precision != "fp32" and (died := failure(self.precision, device.type)) is not None:
            works = device.type == "cpu" and ISA not in os.environ
            works = works and failure(self.precision, device.type, OLDER) is None
            other = f", or start again with {ISA}={OLDER} in the environment: with it this works here"
            raise RecipeError(
                f"compute.precision: got {self.precision}, and a small network that tried it on {device} "
                f"{died}; expected it to run forward and backward; set compute.precision to fp32"
                + (other if works else "")
            )
        idle = self.tf32 and device.type != "cuda"
        return [f"compute.tf32 has no effect on {device.type}"] if idle else []


@cache
def failure(precision: Precision, device: str, isa: str | None = None) -> str | None:
    """How a child process failed that computed a little in this precision; None where it did not."""
    command = [sys.executable, "-c", PROGRAM, device, str(DTYPES[precision]).removeprefix("torch.")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({} if isa is None else {ISA: isa})
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {PATIENCE:.0f} seconds"
    if child.returncode < 0:
        return f"was killed by {signal.Signals(-child.returncode).name}"
    said = child.stderr.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
    return f"failed: {said[0]}" if child.returncode else None


@contextmanager
def tensor_floats(allowed: bool) -> Generator[None]:
    """Allow or forbid TF32 in products and convolutions on CUDA, and put it back after.

    Torch itself allows it in convolutions, so that forbidding is no formality.
    """
    before = [getattr(switch, SETTING) for switch in SWITCHES]
    for switch in SWITCHES:
        setattr(switch, SETTING, ALLOWED if allowed else FORBIDDEN)
    try:
        yield
    finally:
        for switch, was in zip(SWITCHES, before, strict=True):
            setattr(switch, SETTING, was)


@contextmanager
def plain(device: torch.device) -> Generator[None]:
    """Compute in float32 proper, whatever whoever calls has asked torch for: the arithmetic of verdicts."""
    with tensor_floats(False), torch.autocast(device.type, enabled=False):
        yield
