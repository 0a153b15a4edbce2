"""torch's optimisers without its compiler, whose import takes about as long as that of torch itself.

The methods of a torch optimiser import the compiler when they are first called, only to exclude themselves
from compilation. Nothing is compiled here (ADR 0022), so the methods behind these wrappers are called.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch

UNWRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
"""The methods that are excluded from compilation, besides `step`."""


@cache
def eager_class(optimizer: type[torch.optim.Optimizer]) -> Any:
    """The subclass of a torch optimiser that does the same without the compiler."""
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(optimizer, name)) for name in UNWRAPPED}
    # The outer wrapper of `step` switches gradients off, too, unless the step is differentiable.
    methods["step"] = torch.no_grad()(inspect.unwrap(optimizer.step))
    return type(f"Eager{optimizer.__name__}", (optimizer,), methods)
