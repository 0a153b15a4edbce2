"""What an adaptive attacker brings along: a loss of its own, and a way back through what has no gradient.

Tramer et al., 2020, On adaptive attacks to adversarial example defenses. The guide has an example of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, cast, final, get_args

import torch
from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticSerializationError, core_schema
from torch import Tensor, fx, nn

from allrounder.attacks.losses import AttackLoss
from allrounder.config.fields import Flag, value
from allrounder.models.layers import Flow
from allrounder.types import Labels, Logits, PerExample

Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""What stands for something that cannot be written down, such as a function."""


@final
@value
class CustomLoss:
    """A loss of one's own for an attack to climb: `function(logits, y, natural)`, one number per example.

    The name stands for the function where an attack is written, so it addresses randomness and names results:
    give another function another name. A recipe cannot hold a function, so it cannot hold one of these.
    """

    name: Name
    function: AttackLoss
    """Row i of its result may depend on row i of its arguments alone."""
    needs_natural: Flag = False
    """Whether it looks at the logits of the unperturbed images, for one forward pass more; else it gets
    None for them."""

    def __repr__(self) -> str:
        return f"CustomLoss(name={self.name!r})"

    def address(self) -> str:
        """The part of a search's address that names this loss; it is data and must not change."""
        return f"CustomLoss(name={self.name!r})"

    def __call__(self, logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
        """The loss, checked to be one that can be climbed."""
        loss = self.function(logits, y, natural)
        if _described(loss) != (expected := f"{logits.dtype} of shape ({len(y)},)"):
            fix = "give one number per example, in the type of the logits"
            raise ValueError(f"the loss {self.name} returned {_described(loss)}, expected {expected}; {fix}")
        if logits.requires_grad and torch.is_grad_enabled() and not loss.requires_grad:
            fix = "remove argmax, comparisons, detach or no_grad from it"
            raise ValueError(f"the loss {self.name} returned no gradient, expected one to climb; {fix}")
        return loss


@final
@dataclass(frozen=True)
class OrCustom:
    """Annotates a field that takes the name of a loss, or a CustomLoss; a recipe can write the name alone."""

    def read(self, raw: object, by_name: Callable[[object], object]) -> object:
        """Pass a custom loss through; anything else must be a name."""
        return raw if isinstance(raw, CustomLoss) else by_name(raw)

    def write(self, item: object, by_name: Callable[[object], object]) -> object:
        """Encode a name."""
        if isinstance(item, CustomLoss):
            # Of this class, so that the message passes through the values around it unchanged.
            raise PydanticSerializationError(
                f"a recipe or file cannot hold the function of the loss {item.name}, expected the name of a "
                "built-in loss; use it from Python, in a probe of an evaluation or with craft"
            )
        return by_name(item)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        names = handler.generate_schema(get_args(source)[0])
        writer = core_schema.wrap_serializer_function_ser_schema(self.write, schema=names)
        return core_schema.no_info_wrap_validator_function(self.read, names, serialization=writer)


@final
class Bpda(nn.Module):
    """A step without a useful gradient, such as rounding or JPEG, that attacks pass through all the same.

    Forwards it is function(x), to the last bit; its gradient is that of backward(x), by default of x itself.
    `backward` should be close to the function and differentiable. Athalye, Carlini and Wagner, 2018,
    Obfuscated gradients give a false sense of security: backward pass differentiable approximation (BPDA).
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.function = function
        self.backward = backward

    def forward(self, x: Flow) -> Flow:
        """The function's result; where gradients flow, with the way back laid."""
        with torch.no_grad():
            # A copy, because a function that works in place would change the image under attack.
            result = self.function(x.detach().clone())
        if not isinstance(x, fx.Proxy) and not (torch.is_grad_enabled() and x.requires_grad):
            return result
        route = x if self.backward is None else self.backward(x)
        return _rerouted(result, route, f"Bpda({self.extra_repr()})")

    def extra_repr(self) -> str:
        """The names of plain functions; modules are shown as children."""
        parts = {"function": self.function, "backward": self.backward}
        named = {key: getattr(part, "__name__", None) for key, part in parts.items()}
        return ", ".join(f"{key}={name}" for key, name in named.items() if name)


def _rerouted(result: object, route: object, who: str) -> Tensor:
    """The value of one tensor with the gradient of another."""
    if _described(result) != _described(route):
        got = f"{who}: the function returned {_described(result)}, the way back {_described(route)}"
        raise ValueError(f"{got}, expected the same type and shape; convert one, or give another backward")
    return cast(Tensor, _Reroute.apply(result, route))


# A trace of the network, made for folding, keeps the detour as one step instead of looking inside.
fx.wrap("_rerouted")


@final
class _Reroute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor, route: Tensor) -> Tensor:
        # A copy, because layers behind it may work in place, which autograd forbids on a view.
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]


def _described(item: object) -> str:
    if not isinstance(item, Tensor):
        return f"a {type(item).__name__}"
    return f"{item.dtype} of shape {tuple(item.shape)}"
