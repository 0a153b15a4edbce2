"""The seconds of forward and backward passes on this machine, and the cost of an evaluation from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from allrounder.attacks.losses import LOSSES
from allrounder.attacks.pgd import loss_grad
from allrounder.data.base import Split
from allrounder.evaluation.evaluate import default_batch_size
from allrounder.evaluation.probes import Probe, probe_stages
from allrounder.inference.attack_view import attack_view
from allrounder.nn.amp import full_precision
from allrounder.types import Passes, device_and_dtype

Result = TypeVar("Result")
MAX_PASS_SECONDS = 0.5
"""Batches of MIN_IMAGES or more are not made larger, and not repeated, once their passes take this long."""
MIN_IMAGES = 8
REPEATS = 3


@final
@dataclass(frozen=True)
class SuiteCost:
    """An upper bound on the cost of a list of probes."""

    images: int
    passes: Passes
    """Per image."""
    seconds: float


@final
@dataclass(frozen=True)
class PassTimes:
    """The seconds of a forward and a backward pass of one batch, without updates of the weights."""

    batch_size: int
    forward: float
    backward: float
    flops: int = 0
    """Floating-point operations of a forward pass of one image: a multiplication and an addition are two."""

    @classmethod
    def measure(cls, model: nn.Module, split: Split) -> PassTimes:
        """Measure batches of 1, 2, 4, ... images, up to the batch size of an evaluation, or until they take
        MAX_PASS_SECONDS; return the median of the passes of the last size."""
        device, dtype = device_and_dtype(model)
        rows = torch.arange(default_batch_size(model, split)) % len(split)
        x, y = split.fetch(rows).to(device, dtype), split.labels[rows].to(device)

        def measure_pair(images: int) -> tuple[float, float]:
            forward, _ = measure_time(device, view, x[:images])
            pair, _ = measure_time(device, loss_grad, view, x[:images], y[:images], LOSSES["ce"], None)
            return forward, pair

        with torch.no_grad(), full_precision(device), attack_view(model, x[:1], "eval") as view:
            flops = count_flops(model, x[:1])
            images = 1
            samples = [measure_pair(images)]
            while images < len(rows) and (images < MIN_IMAGES or sum(samples[0]) < MAX_PASS_SECONDS):
                images = min(2 * images, len(rows))
                samples = [measure_pair(images)]
            if sum(samples[0]) < MAX_PASS_SECONDS:
                samples += [measure_pair(images) for _ in range(REPEATS - 1)]
            forwards, pairs = zip(*samples, strict=True)
        forward = median(forwards)
        return cls(images, forward, max(0.0, median(pairs) - forward), flops)

    @property
    def rate(self) -> float:
        """Floating-point operations per second; a backward pass has twice those of a forward pass."""
        return Passes(1, 1).work * self.flops * self.batch_size / (self.forward + self.backward)

    def seconds(self, passes: Passes, images: int) -> float:
        """Return the seconds of passes over `images` images, in full batches."""
        num_batches = -(-images // self.batch_size)
        return num_batches * (passes.forwards * self.forward + passes.backwards * self.backward)

    def suite_cost(self, probes: Sequence[Probe], images: int, classes: int) -> SuiteCost:
        """Return the cost of probes on `images` images; a stage that several probes share counts once."""
        passes = suite_passes(probes, classes)
        return SuiteCost(images, passes, self.seconds(passes, images))


def suite_passes(probes: Sequence[Probe], classes: int) -> Passes:
    """Return an upper bound on the passes of probes per image; a stage that several share counts once."""
    attacks = {stage.key(): stage.attack for probe in probes for stage in probe_stages(probe)}
    return sum((attack.evaluation_passes(classes) for attack in attacks.values()), Passes(forwards=1))


def count_flops(model: nn.Module, x: Tensor) -> int:
    """Count the operations of a forward pass in convolutions and matrix products, which are nearly all."""
    with FlopCounterMode(display=False) as counter:
        model(x)
    return counter.get_total_flops()


def measure_time(device: torch.device, function: Callable[..., Result], *args: Any) -> tuple[float, Result]:
    """Call a function and wait for the device; return the seconds that it takes and its result."""
    start = time.perf_counter()
    result = function(*args)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, result
