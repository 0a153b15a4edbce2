"""The losses that attacks increase: `(logits, y, natural) -> loss`, one number per example.

`natural` are the logits of the unperturbed images. Only the losses in NEEDS_NATURAL use them; for these the
attack computes them once, without gradient. A CustomLoss is written for a network: Tramer et al., 2020, On
adaptive attacks to adversarial example defenses. The guide has an example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias, cast, final, get_args

import torch
import torch.nn.functional as F
from pydantic import Field, GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core import CoreSchema, PydanticSerializationError, core_schema
from torch import Tensor

from allrounder.config.fields import Flag, frozen_config
from allrounder.types import Labels, Logits, PerExample

AttackLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
LossName: TypeAlias = Literal["ce", "margin", "cw", "kl", "lse", "lse-drift"]
Identifier: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name for an object that has no text form, such as a function or a network."""

log_softmax_backward = cast(Any, torch.ops.aten)._log_softmax_backward_data.default  # pyright: ignore[reportUnknownMemberType]
DLR_EPSILON = 1e-12
"""Added to the denominators of DLR, so that it is finite where the largest logits are equal."""


def cross_entropy(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """-log p_y."""
    return F.cross_entropy(logits, y, reduction="none")


def log_likelihood_grad(logits: Logits, y: Labels) -> Logits:
    """The gradient of `cross_entropy` with respect to log p, which is the same for all logits: -1 at y."""
    return torch.zeros_like(logits).scatter_(1, y[:, None], -1.0)


def cross_entropy_grad(logits: Logits, upstream: Logits) -> Logits:
    """The gradient of `cross_entropy` with respect to the logits, bit for bit that of autograd, given
    `log_likelihood_grad`."""
    return log_softmax_backward(upstream, F.log_softmax(logits, dim=1), 1, logits.dtype)


def margin(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """max_{k != y} z_k - z_y: positive exactly where the prediction is wrong."""
    if logits.shape[1] < 2:
        raise ValueError("the margin loss compares two classes, the network has one; use the loss ce")
    true = y[:, None]
    others = logits.scatter(1, true, float("-inf"))
    return others.amax(dim=1) - logits.gather(1, true).squeeze(1)


def hinge(logits: Logits, y: Labels, natural: Logits | None = None, *, kappa: float = 50.0) -> PerExample:
    """-max(z_y - max_{k != y} z_k + kappa, 0): the margin, constant above kappa; 50 is practically no bound.

    Carlini and Wagner, 2017, Towards evaluating the robustness of neural networks.
    """
    return -F.relu(kappa - margin(logits, y))


def kl_from_natural(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """KL(p(x) || p(x')): the divergence from the natural prediction; the label is not used."""
    assert natural is not None, "kl_from_natural is in NEEDS_NATURAL"
    return kl(natural, logits)


def kl(p: Logits, q: Logits) -> PerExample:
    """KL(softmax(p) || softmax(q)), differentiable in both."""
    log_p, log_q = F.log_softmax(p, dim=1), F.log_softmax(q, dim=1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim=1)


def squared_error(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """||q - e_y||^2 for the probabilities q: the squared error (LSE)."""
    return (logits.softmax(dim=1) - F.one_hot(y, logits.shape[1]).to(logits.dtype)).square().sum(dim=1)


def squared_error_from_natural(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """||q - p(x)||^2 for the probabilities q: the squared error from the natural prediction."""
    assert natural is not None, "squared_error_from_natural is in NEEDS_NATURAL"
    return (logits.softmax(dim=1) - natural.softmax(dim=1)).square().sum(dim=1)


def dlr(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """The difference of logits ratio (DLR): the margin over z_(1) - z_(3), with z in descending order.

    It is invariant to shift and scale of the logits, so it does not saturate for confident networks. Needs
    three classes. Croce and Hein, 2020, Reliable evaluation of adversarial robustness.
    """
    top = logits.topk(3, dim=1).values
    return margin(logits, y) / (top[:, 0] - top[:, 2] + DLR_EPSILON)


def targeted_margin(logits: Logits, y: Labels, target: Labels) -> PerExample:
    """z_t - z_y: the margin for the target class t."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)


def targeted_dlr(logits: Logits, y: Labels, target: Labels) -> PerExample:
    """(z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2), from the same paper as `dlr`. Needs four classes."""
    top = logits.topk(4, dim=1).values
    return targeted_margin(logits, y, target) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + DLR_EPSILON)


LOSSES: dict[LossName, AttackLoss] = {
    "ce": cross_entropy,
    "margin": margin,
    "cw": hinge,
    "kl": kl_from_natural,
    "lse": squared_error,
    "lse-drift": squared_error_from_natural,
}
"""The losses by their names in recipes."""
NEEDS_NATURAL: frozenset[AttackLoss] = frozenset({kl_from_natural, squared_error_from_natural})
"""The losses that use the natural logits."""


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
    """Whether the function uses the natural logits, which cost a forward pass; otherwise it gets None."""

    def __repr__(self) -> str:
        return self.address()

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
            fix = "expected a differentiable one; remove argmax, comparisons, detach or no_grad from it"
            raise ValueError(f"the loss {self.name} returned no gradient, {fix}")
        return loss


def needs_natural(loss: AttackLoss) -> bool:
    """Whether a loss needs the natural logits."""
    return loss.needs_natural if isinstance(loss, CustomLoss) else loss in NEEDS_NATURAL


def _decode_loss(raw: object, decode_name: Callable[[object], object]) -> object:
    return raw if isinstance(raw, CustomLoss) else decode_name(raw)


def _encode_loss(item: object, encode_name: Callable[[object], object]) -> object:
    if isinstance(item, CustomLoss):
        # pydantic passes an exception of this class through nested values unchanged.
        raise PydanticSerializationError(
            f"a recipe or file cannot hold the function of the loss {item.name}, expected the name of a "
            "built-in loss; use it from Python, in a probe of an evaluation or with craft"
        )
    return encode_name(item)


def _name_schema(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    names = handler.generate_schema(get_args(source)[0])
    encoder = core_schema.wrap_serializer_function_ser_schema(_encode_loss, schema=names)
    return core_schema.no_info_wrap_validator_function(_decode_loss, names, serialization=encoder)


ALLOW_CUSTOM_LOSS = GetPydanticSchema(_name_schema)
"""Annotates a field that accepts a CustomLoss, or the name of a built-in loss, as recipes do."""


def describe_tensor(item: object) -> str:
    """The type and shape of a tensor, for error messages; the class of anything else."""
    if not isinstance(item, Tensor):
        return f"a {type(item).__name__}"
    return f"{item.dtype} of shape {tuple(item.shape)}"
