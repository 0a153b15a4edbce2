"""The losses that attacks increase: `(logits, y, natural) -> loss`, one number per example.

`natural` are the logits of the unperturbed images. Only the losses in NEEDS_NATURAL use them; for these the
attack computes them once, without gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch.nn.functional as F
from torch import Tensor

from allrounder.types import Labels, Logits, PerExample

AttackLoss: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
LossName: TypeAlias = Literal["ce", "margin", "cw", "kl", "lse", "lse-drift"]


def cross_entropy(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """-log p_y."""
    return F.cross_entropy(logits, y, reduction="none")


def margin(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """max_{k != y} z_k - z_y: positive exactly where the prediction is wrong."""
    if logits.shape[1] < 2:
        raise ValueError("the margin loss compares two classes, the network has one; use the loss ce")
    true = y[:, None]
    others = logits.scatter(1, true, float("-inf"))
    return others.amax(dim=1) - logits.gather(1, true).squeeze(1)


def hinge(logits: Logits, y: Labels, natural: Logits | None = None, *, kappa: float = 50.0) -> PerExample:
    """-max(z_y - max_{k != y} z_k + kappa, 0): the margin, constant above kappa.

    Carlini and Wagner, 2017, Towards evaluating the robustness of neural networks. With kappa = 50 the margin
    practically never exceeds kappa.
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
    probabilities = logits.softmax(dim=1)
    return (probabilities - F.one_hot(y, logits.shape[1]).to(logits.dtype)).square().sum(dim=1)


def squared_error_from_natural(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """||q - p(x)||^2 for the probabilities q: the squared distance from the natural prediction; the label is
    not used."""
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
    """The targeted DLR: (z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2), with z in descending order.

    Needs four classes. From the same paper as `dlr`.
    """
    top = logits.topk(4, dim=1).values
    return targeted_margin(logits, y, target) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + DLR_EPSILON)


DLR_EPSILON = 1e-12
"""Added to the denominators of DLR, so that it is finite where the largest logits are equal."""

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
