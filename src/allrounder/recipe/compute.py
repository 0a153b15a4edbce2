"""How a training computes, and whether the machine can: asked of a child process, which may die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, cast, final

import torch
from pydantic import Field

from allrounder.config.fields import Flag, value
from allrounder.errors import RecipeError

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
PATIENCE = 120.0
"""Seconds that the child has; it needs two on a machine that is not busy, and some more to compile."""
COMPILED: ContextVar[int | None] = ContextVar("COMPILED", default=None)
"""Of how many images the batches are that are crafted on a compiled copy; None for no such copy."""
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
COMPILING = """
import sys, torch
from torch import nn
device, dtype = sys.argv[1], getattr(torch, sys.argv[2])
network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).to(device)
compiled = torch.compile(network.requires_grad_(False), dynamic=False, fullgraph=True)
found = []
try:
    for run in (network, compiled):
        x = torch.linspace(0, 1, 1536, device=device).view(8, 3, 8, 8).requires_grad_()
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            logits = run(x)
        logits.float().logsumexp(1).sum().backward()
        found.append(x.grad)
except Exception as error:
    said = f"{type(error).__name__}: {error}".split("Set TORCHDYNAMO")[0]
    sys.exit(" ".join(said.split())[:300])
near = float((found[0] - found[1]).norm() / found[0].norm()) < 0.1
sys.exit(0 if near else "the gradients are not those of the network")
"""


@final
@value
class Compute:
    """How training steps compute. Weights, averages and images are float32 in any case, and every verdict of
    a validation or an evaluation is found in float32 and without compiling."""

    precision: Precision = "fp32"
    """What networks compute in while crafting and descending: fp32, bf16, or fp16 (on CUDA)."""
    tf32: Flag = False
    """Whether CUDA may round the factors of float32 products to 10 bits (TF32)."""
    # Left out of recipes where it is false: those from before it keep their fingerprint.
    compile: Annotated[Flag, Field(exclude_if=lambda chosen: not chosen)] = False  # pyright: ignore[reportUnknownLambdaType]
    """Whether the folded copy that attacks craft on is compiled (torch.compile). The network that descends
    never is: updates swap its weights, and its batch statistics move."""

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
        if self.compile and (died := uncompiled(self.precision, device.type)) is not None:
            needs = "Triton" if device.type == "cuda" else "a C++ compiler"
            raise RecipeError(
                f"compute.compile: got true, and a small network that was compiled for {device} in "
                f"{self.precision} {died}; expected it to run forward and backward; install {needs} that "
                "torch can use, or set compute.compile to false"
            )
        idle = self.tf32 and device.type != "cuda"
        return [f"compute.tf32 has no effect on {device.type}"] if idle else []


@cache
def failure(precision: Precision, device: str, isa: str | None = None) -> str | None:
    """How a child process failed that computed a little in this precision; None where it did not."""
    return _fate(PROGRAM, precision, device, {} if isa is None else {ISA: isa})


@cache
def uncompiled(precision: Precision, device: str) -> str | None:
    """How a child process failed that compiled a little network and ran it; None where it did not."""
    # In one process: a worker that hangs would outlive the child.
    return _fate(COMPILING, precision, device, {"TORCHINDUCTOR_COMPILE_THREADS": "1"})


def _fate(program: str, precision: Precision, device: str, more: dict[str, str]) -> str | None:
    dtype = DTYPES.get(precision, torch.float32)
    command = [sys.executable, "-c", program, device, str(dtype).removeprefix("torch.")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | more
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
def crafting_compiled(images: int | None) -> Generator[None]:
    """Let batches of so many images, and no others, be crafted on a compiled copy; with None, no batch."""
    token = COMPILED.set(images)
    try:
        yield
    finally:
        COMPILED.reset(token)


@contextmanager
def plain(device: torch.device) -> Generator[None]:
    """Compute in float32 proper and compile nothing, whatever whoever calls has asked for: the arithmetic of
    verdicts."""
    with tensor_floats(False), crafting_compiled(None), torch.autocast(device.type, enabled=False):
        yield
