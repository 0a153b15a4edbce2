"""Checks of what attacks assume of a network: repeatable logits, per image, with useful gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from allrounder.attacks.losses import LOSSES
from allrounder.attacks.pgd import loss_grad
from allrounder.evaluation.preflight.base import Case, Finding, note, severe

TOLERANCE = 1e-4
"""Logits count as equal if they differ by less, relative to the largest."""
MAX_ZERO_GRADIENT_SHARE = 0.1
"""Share of images whose gradient may be zero without a finding."""


def check_training_mode(case: Case) -> Finding | None:
    """Find modules in training mode."""
    problem = f"{case.num_training} modules of the network are in training mode, expected eval mode"
    fix = "evaluation and attacks switch modes and restore them; other code must call model.eval()"
    return note("training-mode", problem, fix) if case.num_training else None


def check_probabilities(case: Case) -> Finding | None:
    """Find outputs after a softmax, which flattens the losses of attacks."""
    z = case.logits.double()
    if bool((z >= 0).all()) and bool(((z.sum(1) - 1).abs() < 1e-3).all()):
        output, layer = "probabilities (every row sums to 1)", "softmax"
    elif bool((z <= 0).all()) and bool((z.logsumexp(1).abs() < 1e-5).all()):
        output, layer = "log-probabilities (their exponentials sum to 1)", "log_softmax"
    else:
        return None
    problem = f"the network returns {output}, expected logits"
    return severe("probabilities", problem, f"return what comes before the {layer}")


def check_randomness(case: Case) -> Finding | None:
    """Find logits that differ between two passes over the same images."""
    gap = _relative_gap(case.logits, case.forward(case.images, draw=1))
    problem = f"two passes over the same images differ by {gap:.2g} of the largest logit, expected 0"
    fix = "if this is intended, attack averages over many passes (EOT), and report the spread over seeds"
    return note("random", problem, fix) if gap > TOLERANCE else None


def check_batch_independence(case: Case) -> Finding | None:
    """Find logits that depend on the other images of the batch, as with batch-norm in training mode."""
    x = case.images
    first, again, changed = (case.forward(torch.cat([x, rest]))[: len(x)] for rest in (x, x, 1 - x))
    if _relative_gap(first, again) > TOLERANCE:  # random, and not through torch's generators
        return None
    gap = _relative_gap(first, changed)
    change = f"change by {gap:.2g} of the largest logit with the rest of its batch"
    fix = "put batch-norm into eval mode, also inside functions that wrap a network"
    finding = severe("neighbours", f"the logits of an image {change}, expected no change", fix)
    return finding if gap > TOLERANCE else None


def check_positions(case: Case) -> Finding | None:
    """Find bits of logits or gradients that depend on the position of an image in the batch.

    Linear algebra libraries may compute the first and the last rows of a matrix with different instructions.
    Then the results of an evaluation depend, in the last bits, on how its images are divided.
    """
    if case.batch_size is None or case.batch_size == 1:
        return None
    rows = torch.arange(case.batch_size) % len(case.images)
    x, y = case.images[rows.to(case.images.device)], case.labels[rows].to(case.images.device)
    logits, gradient = case.forward(x), loss_grad(case.model, x.clone(), y, LOSSES["ce"], None)
    if not torch.equal(logits, case.forward(x)):  # random; check_randomness reports it if it is large
        return None
    for shift in (1, case.batch_size // 2):
        moved, targets = x.roll(shift, 0), y.roll(shift, 0)
        same = torch.equal(case.forward(moved), logits.roll(shift, 0))
        moved_gradient = loss_grad(case.model, moved.clone(), targets, LOSSES["ce"], None)
        if not same or not torch.equal(moved_gradient, gradient.roll(shift, 0)):
            problem = f"results depend on the position of an image in a batch of {case.batch_size}"
            effect = "an evaluation whose images are divided in another way may differ in the last bits"
            return note("position", f"{problem} on this machine: {effect}", "try another batch size")
    return None


def check_in_place(case: Case) -> Finding | None:
    """Find a network that overwrites its input."""
    images = case.images.clone()
    case.forward_inplace(images)
    problem = "the network overwrites the images it is given, expected them unchanged"
    fix = "replace its first in-place operation (such as x.sub_(mean) or x -= mean)"
    return None if torch.equal(images, case.images) else severe("in-place", problem, fix)


def check_gradients(case: Case) -> Finding | None:
    """Find gradients that are missing, not finite, or zero for many of the correctly classified images."""
    correct = case.logits.argmax(1) == case.labels
    rows = correct if bool(correct.any()) else torch.ones_like(correct)
    x, y = case.images[rows.to(case.images.device)], case.labels[rows].to(case.images.device)
    try:
        gradients = [loss_grad(case.model, x.clone(), y, LOSSES[name], None) for name in ("ce", "margin")]
    except Exception as error:  # Any error of an external network is a finding.
        problem = str(error).strip() or type(error).__name__
        fix = "until this is fixed, only query-based attacks (square) can evaluate this network"
        return severe("no-gradient", problem, fix)
    n = len(x)
    if bad := max(int((~g.isfinite()).flatten(1).any(1).sum()) for g in gradients):
        fix = "look for a square root or a logarithm at zero, or a division by zero"
        return severe("finite", f"the gradients of {bad} of {n} images are not finite", fix)
    ce, margin = (int((g == 0).flatten(1).all(1).sum()) for g in gradients)
    if max(ce, margin) <= MAX_ZERO_GRADIENT_SHARE * n:
        return None
    if margin > MAX_ZERO_GRADIENT_SHARE * n:
        problem = f"the gradient is zero for {margin} of {n} images (of the margin; cross-entropy: {ce})"
        fix = "gradient attacks fail there; remove rounding or saturation from the network"
        return severe("zero-gradient", problem, fix)
    problem = f"the gradient of cross-entropy is zero for {ce} of {n} images, that of the margin is not"
    fix = "the softmax is saturated; attack margins (cw, apgd-dlr), not cross-entropy (pgd, apgd-ce)"
    return note("zero-gradient", problem, fix)


def _relative_gap(a: Tensor, b: Tensor) -> float:
    """The largest difference as a share of the largest absolute value."""
    return float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))
