"""Whether a network behaves as attacks assume: logits, repeatable, one image at a time, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from allrounder.attacks.losses import LOSSES
from allrounder.attacks.pgd import gradient
from allrounder.evaluation.preflight.base import Case, Finding

ROUNDING = 1e-4
"""Answers that differ by less, relative to the largest, are the same."""
MANY = 0.1
"""The share of images whose gradient may be zero by accident."""


def training_mode(case: Case) -> Finding | None:
    """Modules found in training mode."""
    said = f"{case.training} modules of the network are in training mode, expected eval mode"
    fix = "evaluation and attacks switch it and switch it back; other code must call model.eval()"
    return Finding("training-mode", False, f"{said}; {fix}") if case.training else None


def probabilities(case: Case) -> Finding | None:
    """Answers after a softmax, which flattens the losses of attacks."""
    z = case.logits.double()
    if bool((z >= 0).all()) and bool(((z.sum(1) - 1).abs() < 1e-3).all()):
        kind, layer = "probabilities (every row sums to 1)", "softmax"
    elif bool((z <= 0).all()) and bool((z.logsumexp(1).abs() < 1e-5).all()):
        kind, layer = "log-probabilities (their exponentials sum to 1)", "log_softmax"
    else:
        return None
    fix = f"return what comes before the {layer}"
    return Finding("probabilities", True, f"the network returns {kind}, expected logits; {fix}")


def randomness(case: Case) -> Finding | None:
    """Another answer to the same images."""
    gap = _gap(case.logits, case.ask(case.images, draw=1))
    said = f"two passes over the same images differ by {gap:.2g} of the largest logit, expected none"
    fix = "if this is meant, attack averages over many passes (EOT), and give the spread over seeds"
    return Finding("random", False, f"{said}; {fix}") if gap > ROUNDING else None


def neighbours(case: Case) -> Finding | None:
    """Answers that depend on the other images of the batch, as batch-norm in training mode makes them."""
    x, n = case.images, len(case.images)
    one, same, other = (case.ask(torch.cat([x, rest]))[:n] for rest in (x, x, 1 - x))
    if _gap(one, same) > ROUNDING:
        return None  # Random, and not by torch's generators: the neighbours cannot be told apart from it.
    gap = _gap(one, other)
    said = f"the answer for an image changes by {gap:.2g} of the largest logit with the rest of its batch"
    fix = "expected no change; put batch-norm into eval mode, also inside of functions that wrap a network"
    return Finding("neighbours", True, f"{said}, {fix}") if gap > ROUNDING else None


def in_place(case: Case) -> Finding | None:
    """Images that are overwritten by the network."""
    handed = case.images.clone()
    case.show(handed)
    said = "the network overwrites the images it is given, expected them untouched"
    fix = "replace its first in-place operation (such as x.sub_(mean) or x -= mean)"
    return None if torch.equal(handed, case.images) else Finding("in-place", True, f"{said}; {fix}")


def gradients(case: Case) -> Finding | None:
    """Gradients that are missing, not finite, or zero for many of the images classified correctly."""
    right = case.logits.argmax(1) == case.labels
    rows = right if bool(right.any()) else torch.ones_like(right)
    x, y = case.images[rows.to(case.images.device)], case.labels[rows].to(case.images.device)
    try:
        found = [gradient(case.model, x.clone(), y, LOSSES[name], None) for name in ("ce", "margin")]
    except Exception as error:  # Whatever a stranger's network raises is the finding.
        said = str(error).strip() or type(error).__name__
        fix = "until that is mended, only attacks by queries (square) can judge this network"
        return Finding("no-gradient", True, f"{said}; {fix}")
    n = len(x)
    if bad := max(int((~g.isfinite()).flatten(1).any(1).sum()) for g in found):
        fix = "look for a square root or a logarithm at zero, or a division by zero"
        return Finding("finite", True, f"the gradients of {bad} of {n} images are not finite; {fix}")
    ce, margin = (int((g == 0).flatten(1).all(1).sum()) for g in found)
    if max(ce, margin) <= MANY * n:
        return None
    if margin > MANY * n:
        said = f"the gradient is zero for {margin} of {n} images (of the margin; cross-entropy: {ce})"
        fix = "attacks by gradients see nothing there; remove rounding or saturation from the network"
        return Finding("zero-gradient", True, f"{said}; {fix}")
    said = f"the gradient of cross-entropy is zero for {ce} of {n} images, that of the margin is not"
    fix = "the softmax is saturated; attack margins (cw, apgd-dlr), not cross-entropy (pgd, apgd-ce)"
    return Finding("zero-gradient", False, f"{said}; {fix}")


def _gap(a: Tensor, b: Tensor) -> float:
    """The largest difference, as a share of the largest absolute value."""
    return float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))
