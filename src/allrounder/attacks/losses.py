"""What an attack climbs: per-example losses of logits, each `(logits, y, natural) -> loss`.

`natural` are the logits of the unperturbed images; only the losses in NEEDS_NATURAL look at them, so the
attack computes them for those alone, once and without gradient.
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
    """-max(z_y - max_{k != y} z_k + kappa, 0): the margin, flat once it exceeds kappa.

    Carlini and Wagner, 2017, Towards evaluating the robustness of neural networks. At kappa = 50 the hinge is
    practically never reached.
    """
    return -F.relu(kappa - margin(logits, y))


def drift(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """KL(p(x) || p(x')): how far the prediction has moved; the label plays no part."""
    assert natural is not None, "drift is in NEEDS_NATURAL"
    return kl(natural, logits)


def kl(p: Logits, q: Logits) -> PerExample:
    """KL(softmax(p) || softmax(q)), differentiable in both."""
    log_p, log_q = F.log_softmax(p, dim=1), F.log_softmax(q, dim=1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim=1)


def squared(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """||q - e_y||^2, of probabilities: the squared error of the label (LSE)."""
    probabilities = logits.softmax(dim=1)
    return (probabilities - F.one_hot(y, logits.shape[1]).to(logits.dtype)).square().sum(dim=1)


def squared_drift(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """||q - p(x)||^2, of probabilities: how far the prediction has moved; the label plays no part."""
    assert natural is not None, "squared_drift is in NEEDS_NATURAL"
    return (logits.softmax(dim=1) - natural.softmax(dim=1)).square().sum(dim=1)


def dlr(logits: Logits, y: Labels, natural: Logits | None = None) -> PerExample:
    """The difference of logits ratio (DLR): the margin over z_(1) - z_(3), with z sorted downwards.

    Neither shift nor scale of the logits changes it, so it is not flat where a network is sure of itself.
    Needs three classes. Croce and Hein, 2020, Reliable evaluation of adversarial robustness.
    """
    top = logits.topk(3, dim=1).values
    return margin(logits, y) / (top[:, 0] - top[:, 2] + TINY)


def towards(logits: Logits, y: Labels, target: Labels) -> PerExample:
    """z_t - z_y: the margin with one class t to be mistaken for."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)


def dlr_towards(logits: Logits, y: Labels, target: Labels) -> PerExample:
    """The targeted DLR: (z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2), with z sorted downwards.

    Needs four classes; of the same paper.
    """
    top = logits.topk(4, dim=1).values
    return towards(logits, y, target) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + TINY)


TINY = 1e-12
"""Keeps the ratios of logits finite where the largest ones are equal."""

LOSSES: dict[LossName, AttackLoss] = {
    "ce": cross_entropy,
    "margin": margin,
    "cw": hinge,
    "kl": drift,
    "lse": squared,
    "lse-drift": squared_drift,
}
NEEDS_NATURAL: frozenset[AttackLoss] = frozenset({drift, squared_drift})
