"""Detection of non-finite gradients and weights, without waiting for an accelerator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from allrounder.errors import Diverged
from allrounder.nn.state import are_finite

ADVICE = "try a smaller learning rate or a warm-up"


@final
class NonFiniteGuard:
    """Checks the gradients and weights of every step of an optimiser.

    On a CPU it raises at once. On an accelerator a check on the host would wait for all queued work. There
    the checks are deferred: a tensor on the device records the first bad step, the optimiser skips all steps
    from then on, and the learner calls `first_bad_step` before it logs or saves.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device, *, deferred: bool) -> None:
        """If `deferred`, the optimiser must be fused: only those can skip a step on the device."""
        self.deferred = deferred
        self.t = 0
        self.first_bad = torch.zeros((), dtype=torch.int64, device=device) if deferred else None
        if deferred:
            optimizer.register_step_pre_hook(self._check_grads)

    def check_weights(self, weights: Sequence[Tensor]) -> None:
        """Check the weights after a step; raise Diverged unless checks are deferred."""
        if self.deferred:
            self._record(weights)
        elif not are_finite(weights):
            raise Diverged(f"the weights after it are not finite; {ADVICE}")

    def first_bad_step(self) -> int | None:
        """The first bad step, or None; waits for the device."""
        step = 0 if self.first_bad is None else int(self.first_bad)
        return step or None

    def _check_grads(self, optimizer: Any, *_: Any) -> None:
        """Check the gradients, and make the optimiser skip a bad step and all later ones."""
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self._record([g for g in grads if g is not None])
        assert self.first_bad is not None
        optimizer.found_inf = (self.first_bad > 0).float()

    def _record(self, tensors: Iterable[Tensor]) -> None:
        floats = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
        assert self.first_bad is not None
        if floats:
            largest = torch.stack([norm.float() for norm in torch._foreach_norm(floats, math.inf)])  # pyright: ignore[reportPrivateImportUsage]
            is_first = (self.first_bad == 0) & ~largest.isfinite().all()
            self.first_bad = torch.where(is_first, self.t, self.first_bad)
