"""Test in a child process whether this machine can compute in a precision.

A processor may advertise instructions that it cannot run; a process that uses them is killed. So the test
runs in a child process, whose death is only a result.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache

import torch

TIMEOUT_SECONDS = 120.0
"""Time limit of the child process, which needs about two seconds on an idle machine."""
ISA_VARIABLE, FALLBACK_ISA = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE"
"""The environment variable that limits oneDNN's instruction set, and a value that most machines can run."""
PROBE_SCRIPT = """
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


@cache
def precision_failure(dtype: torch.dtype, device: str, isa: str | None = None) -> str | None:
    """How a child process failed that ran a small network under autocast, or None if it succeeded; `isa`
    limits the instruction set of oneDNN."""
    command = [sys.executable, "-c", PROBE_SCRIPT, device, str(dtype).removeprefix("torch.")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({} if isa is None else {ISA_VARIABLE: isa})
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {TIMEOUT_SECONDS:.0f} seconds"
    if child.returncode < 0:
        return f"was killed by {signal.Signals(-child.returncode).name}"
    last_line = child.stderr.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
    return f"failed: {last_line[0]}" if child.returncode else None
