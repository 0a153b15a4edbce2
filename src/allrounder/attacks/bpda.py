"""BPDA: a differentiable stand-in for a step of a network that has no useful gradient.

Athalye et al., 2018, Obfuscated gradients give a false sense of security. The guide has an example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, final

import torch
from torch import Tensor, fx, nn

from allrounder.attacks.losses import describe_tensor
from allrounder.models.layers import TensorOrProxy


@final
class Bpda(nn.Module):
    """A step without a useful gradient, such as rounding or JPEG, with the gradient of another function.

    The forward pass computes function(x), bit for bit. The backward pass uses the gradient of backward(x), by
    default the identity; it should be close to the function (backward pass differentiable approximation).
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.function, self.backward = function, backward

    def forward(self, x: TensorOrProxy) -> TensorOrProxy:
        """Compute function(x), with the gradient of `backward` where one is needed."""
        with torch.no_grad():
            # A copy, because a function that works in place would change the image under attack.
            result = self.function(x.detach().clone())
        if not isinstance(x, fx.Proxy) and not (torch.is_grad_enabled() and x.requires_grad):
            return result
        approximation = x if self.backward is None else self.backward(x)
        return _with_gradient_of(result, approximation, f"Bpda({self.extra_repr()})")

    def extra_repr(self) -> str:
        """The names of plain functions; modules are shown as children."""
        functions = {"function": self.function, "backward": self.backward}
        names = {key: getattr(function, "__name__", None) for key, function in functions.items()}
        return ", ".join(f"{key}={name}" for key, name in names.items() if name)


def _with_gradient_of(result: object, approximation: object, module: str) -> Tensor:
    """Return `result` with the gradient of `approximation`; `module` names the step in messages."""
    forward, backward = describe_tensor(result), describe_tensor(approximation)
    if forward != backward:
        fix = "expected the same type and shape; convert one of them, or pass another backward"
        raise ValueError(f"{module}: the function returned {forward}, backward {backward}, {fix}")
    return cast(Tensor, _ReplaceGradient.apply(result, approximation))


# fx traces this call as one node instead of tracing into it.
fx.wrap("_with_gradient_of")


@final
class _ReplaceGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor, approximation: Tensor) -> Tensor:
        # A copy, because later layers may work in place, which autograd forbids on a view.
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]
