"""Custom losses: attack a network with a loss that is written for it.

Tramer et al., 2020, On adaptive attacks to adversarial example defenses. The guide has an example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, final, get_args

import torch
from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticSerializationError, core_schema
from torch import Tensor

from allrounder.attacks.losses import AttackLoss
from allrounder.config.fields import Flag, frozen_config
from allrounder.types import Labels, Logits, PerExample

Identifier: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name for an object that has no text form, such as a function or a network."""


@final
@frozen_config
class CustomLoss:
    """A custom loss for an attack to maximise: `function(logits, y, natural)`, one number per example.

    The name represents the function in the text of an attack, so it selects random numbers and names
    results: a different function needs a different name. A recipe cannot contain a function, so it cannot
    contain a CustomLoss.
    """

    name: Identifier
    function: AttackLoss
    """Row i of the result may depend only on row i of the arguments."""
    needs_natural: Flag = False
    """Whether the function uses the logits of the unperturbed images, which cost one more forward pass;
    otherwise it gets None for them."""

    def __repr__(self) -> str:
        return f"CustomLoss(name={self.name!r})"

    def address(self) -> str:
        """The part of a search's address that names this loss; it is data and must not change."""
        return f"CustomLoss(name={self.name!r})"

    def __call__(self, logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
        """Compute the loss; raise ValueError if it has the wrong shape or type, or no gradient."""
        loss = self.function(logits, y, natural)
        got, expected = describe_tensor(loss), f"{logits.dtype} of shape ({len(y)},)"
        if got != expected:
            fix = "return one number per example, in the type of the logits"
            raise ValueError(f"the loss {self.name} returned {got}, expected {expected}; {fix}")
        if logits.requires_grad and torch.is_grad_enabled() and not loss.requires_grad:
            fix = "remove argmax, comparisons, detach or no_grad from it"
            raise ValueError(
                f"the loss {self.name} returned no gradient, expected a differentiable one; {fix}"
            )
        return loss


@final
@dataclass(frozen=True)
class AllowCustomLoss:
    """Annotation of a field that accepts the name of a built-in loss or a CustomLoss.

    A recipe can contain only the name of a built-in loss.
    """

    def decode(self, raw: object, decode_name: Callable[[object], object]) -> object:
        """Return a CustomLoss unchanged; anything else must be a name."""
        return raw if isinstance(raw, CustomLoss) else decode_name(raw)

    def encode(self, item: object, encode_name: Callable[[object], object]) -> object:
        """Encode a name; raise an error for a CustomLoss."""
        if isinstance(item, CustomLoss):
            # pydantic passes an exception of this class through nested values unchanged.
            raise PydanticSerializationError(
                f"a recipe or file cannot hold the function of the loss {item.name}, expected the name of a "
                "built-in loss; use it from Python, in a probe of an evaluation or with craft"
            )
        return encode_name(item)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        names = handler.generate_schema(get_args(source)[0])
        encoder = core_schema.wrap_serializer_function_ser_schema(self.encode, schema=names)
        return core_schema.no_info_wrap_validator_function(self.decode, names, serialization=encoder)


def describe_tensor(item: object) -> str:
    """The type and shape of a tensor, for error messages; the class of anything else."""
    if not isinstance(item, Tensor):
        return f"a {type(item).__name__}"
    return f"{item.dtype} of shape {tuple(item.shape)}"
