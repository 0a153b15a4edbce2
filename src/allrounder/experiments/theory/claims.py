"""The rows of a table about theory: every claim, the numbers, and whether they agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from allrounder.experiments.theory.gap import LOSS_SLOPE
from allrounder.experiments.theory.quantities import Theory

Kind: TypeAlias = Literal["exact", "estimated", "bound"]
"""Whether a number is what the formula says up to rounding, an estimate, or an estimate of a bound."""
Verdict: TypeAlias = Literal["yes", "no", "unclear", "says nothing", "not tested"]
"""Unclear differences are within two standard errors; a bound above all possible values says nothing."""


@final
@dataclass(frozen=True)
class Claim:
    """One row: a quantity, its value, and whether the data agree with what is claimed about it."""

    quantity: str
    value: str
    kind: Kind
    agrees: Verdict
    claim: str
    """What is claimed, and where."""


def list_claims(theory: Theory) -> list[Claim]:
    """Return one row for every claim, in the order of the paper."""
    return [
        *_regret_claims(theory),
        _theorem1_claim(theory),
        *_gap_claims(theory),
        *_exchange_claims(theory),
        *_global_regret_claims(theory),
        *_jump_claims(theory),
        *_gradient_claims(theory),
    ]


def _regret_claims(theory: Theory) -> list[Claim]:
    rows = [
        Claim(
            f"regret of {regret.name}",
            f"{regret.total:.4g}, {regret.per_step:.4g} per step",
            "estimated",
            "not tested",
            f"Definition 1; infimum from its best epoch{' or solo' if regret.name in theory.solo else ''}",
        )
        for regret in theory.regret.learners
    ]
    over_time, ends = theory.regret.over_time(), theory.regret.learners[0].ends
    half = (len(ends) - 1) // 2
    before, after = over_time[half] / ends[half], theory.regret.per_step
    value = f"{theory.regret.total:.4g}; per step {before:.4g} at step {ends[half]}, {after:.4g} at the end"
    agrees = _verdict(after < before) if half < len(ends) - 1 else "not tested"
    return [*rows, Claim("R_T, mean of all", value, "estimated", agrees, "R_T / T falls (Theorem 1 uses it)")]


def _theorem1_claim(theory: Theory) -> Claim:
    found = theory.theorem1
    terms = f"{found.comparator:.3f} + {found.regret_per_step:.3f} + {found.slack:.3f}"
    value = f"test error {found.measured:.3f}, bound {found.bound:.3f} = {terms}"
    agrees = _verdict(found.measured <= found.bound) if found.bound < 1 else "says nothing"
    return Claim("Theorem 1, 0-1 loss", value, "bound", agrees, "test error <= bound; assumes convex losses")


def _gap_claims(theory: Theory) -> list[Claim]:
    rows: list[Claim] = []
    chance = math.log(theory.classes)
    for point, gap in theory.gaps.items():
        value = f"mean {gap.mean:.3g}, largest {gap.largest:.3g}; M drift = {gap.bound:.3g}"
        holds = _verdict(gap.largest <= gap.bound * (1 + 1e-6))
        rows.append(Claim(f"mixing gap, {point}", value, "bound", holds, "gap <= M drift (Eq. 36)"))
        value = f"mean {gap.global_mean:.3g}, largest {gap.global_largest:.3g}"
        claim = "Eq. 36 does not cover a moving average"
        rows.append(Claim(f"gap of the global weights, {point}", value, "exact", "not tested", claim))
        value = f"L {gap.loss_slope:.3g} (at most {LOSS_SLOPE:.3g}), M {gap.curvature:.3g}, K {gap.slope:.3g}"
        claim = "estimates from below; C = 2 L M with the largest L"
        constants = f"C {gap.constant:.3g}, corrected {gap.corrected_constant:.3g}"
        rows.append(Claim(f"constants, {point}", f"{value}; {constants}", "bound", "not tested", claim))
        term = gap.constant * gap.drift
        drift = f"drift {gap.drift:.3g}, of which parameters {gap.parameter_drift:.3g}"
        value = f"{drift}; C drift = {term:.3g}, corrected {gap.corrected_constant * gap.drift:.3g}"
        small: Verdict = "yes" if term < chance else "says nothing"
        claim = f"small (Theorem 2), that is below the loss of chance, {chance:.3g}"
        rows.append(Claim(f"stability term, {point}", value, "bound", small, claim))
    return rows


def _exchange_claims(theory: Theory) -> list[Claim]:
    if not theory.exchanges:
        claim = "the run logged none: it has no exchange, or an older version trained it"
        return [Claim("drift at exchanges", "-", "exact", "not tested", claim)]
    first, last = theory.exchanges[0], theory.exchanges[-1]
    value = f"{first['drift']:.3g} at step {first['t']}, {last['drift']:.3g} at step {last['t']}"
    agrees = _verdict(last["drift"] < first["drift"]) if len(theory.exchanges) > 1 else "not tested"
    return [Claim("drift at exchanges", value, "exact", agrees, "stays small (Theorem 2): falls in training")]


def _global_regret_claims(theory: Theory) -> list[Claim]:
    found, claim = theory.global_regret, "R-bar <= R_T (Eq. 24), 0-1 loss"
    if found is None:
        reason = "the validations do not cover the threats of all tasks"
        return [Claim("R-bar", "-", "estimated", "not tested", f"{claim}; {reason}")]
    value = f"{found.total:.4g}, R_T {theory.error_regret.total:.4g}"
    agrees = _verdict(found.total <= theory.error_regret.total)
    return [Claim("R-bar", value, "estimated", agrees, claim)]


def _jump_claims(theory: Theory) -> list[Claim]:
    rows: list[Claim] = []
    claim = "a large term every c steps (Eq. 24)"
    for name, jumps in theory.jumps.items():
        elsewhere = (
            "" if math.isnan(jumps.elsewhere) else f", {jumps.elsewhere:+.3g} in later epochs without one"
        )
        value = f"{jumps.across:+.3g} from an epoch with an exchange to the next{elsewhere}"
        agrees = _verdict(jumps.across > 0) if jumps.num_across else "not tested"
        rows.append(Claim(f"jump of the loss of {name}", value, "estimated", agrees, claim))
        learner, mixed = theory.errors[name][name], theory.errors["global"][name]
        value = f"{mixed - learner:+.3f}: from {learner:.3f} to {mixed:.3f}"
        agrees = _verdict(mixed > learner)
        rows.append(Claim(f"jump of the error of {name}, at the end", value, "exact", agrees, claim))
    return rows


def _gradient_claims(theory: Theory) -> list[Claim]:
    rows: list[Claim] = []
    for name, points in theory.gradients.items():
        claim = "larger than in training alone (Appendix A)" + ("" if "solo" in points else "; needs --solo")
        inner = {point: (products.inner, products.inner_error) for point, products in points.items()}
        cosine = {point: (products.cosine, products.cosine_error) for point, products in points.items()}
        for title, found in (("inner product", inner), ("cosine", cosine)):
            value = ", ".join(f"{point} {mean:.3g} +- {error:.1g}" for point, (mean, error) in found.items())
            rows.append(Claim(f"gradient {title} of {name}", value, "estimated", _compare(found), claim))
    return rows


def _compare(found: Mapping[str, tuple[float, float]]) -> Verdict:
    """Compare a learner with its solo training, with two standard errors of the difference."""
    if "solo" not in found:
        return "not tested"
    (learner, learner_error), (solo, solo_error) = found["learner"], found["solo"]
    noise = 2 * math.hypot(learner_error, solo_error)
    return "unclear" if abs(learner - solo) <= noise else _verdict(learner > solo)


def _verdict(holds: bool) -> Verdict:
    return "yes" if holds else "no"
