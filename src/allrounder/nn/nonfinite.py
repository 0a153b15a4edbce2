"""Noticing numbers that are not finite, without making the host wait for a device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor

from allrounder.errors import Diverged
from allrounder.nn.state import Weights, all_finite

ADVICE = "try a smaller learning rate or a warm-up"


@final
class Watch:
    """Looks at the gradients and weights of every step.

    On a CPU it raises at once. On an accelerator every question would wait for all work in flight, so a flag
    there remembers the first bad step, the optimiser takes no step from then on, and `check` raises: whoever
    logs or saves asks it before.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device, *, waits: bool) -> None:
        """With `waits` the optimiser must be a fused one, which can be told on the device to do nothing."""
        self.waits, self.t = waits, 0
        self.first = torch.zeros((), dtype=torch.int64, device=device) if waits else None
        if waits:
            optimizer.register_step_pre_hook(self._before)

    def after(self, weights: Weights) -> None:
        """Look at the weights after a step; where nothing waits, raise Diverged."""
        if self.waits:
            self._note(weights.values())
        elif not all_finite(weights):
            raise Diverged(f"the weights after it are not finite; {ADVICE}")

    def check(self) -> int | None:
        """The first step that was bad, if one was; waits for the device."""
        found = 0 if self.first is None else int(self.first)
        return found or None

    def _before(self, optimizer: Any, *_: Any) -> None:
        """Look at the gradients, and have a bad step, or one after it, left out."""
        given = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self._note([g for g in given if g is not None])
        assert self.first is not None
        optimizer.found_inf = (self.first > 0).float()

    def _note(self, tensors: Iterable[Tensor]) -> None:
        floats = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
        assert self.first is not None
        if floats:
            largest = torch.stack([norm.float() for norm in torch._foreach_norm(floats, math.inf)])  # pyright: ignore[reportPrivateImportUsage]
            now = (self.first == 0) & ~largest.isfinite().all()
            self.first = torch.where(now, self.t, self.first)
