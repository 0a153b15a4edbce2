"""Flags: warnings about accuracies that are not reliable, derived from an outcome."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from allrounder.report.corruption_metrics import parse_shift_id
from allrounder.report.outcome import NATURAL, Outcome

RobustByAttack: TypeAlias = Mapping[str, NDArray[np.bool_]]
"""Which images are robust under each attack of one threat."""

MORE_STEPS_TOLERANCE = 1.0
"""Percentage points that an accuracy may fall with more steps of the same attack."""
APGD_TOLERANCE = 5.0
"""Percentage points that APGD, with adaptive steps, may find beyond PGD, with fixed steps."""
MASKING_TOLERANCE = 10.0
"""Percentage points that the check for masked gradients may find beyond the attacks of an evaluation."""
FINDING_FLAGS = {
    "zero-gradient": "some gradients were zero, so accuracies under gradient attacks may be too high",
    "random": "the network's logits are random, so every accuracy is a single sample, and too high under "
    "attacks that do not average over many passes",
}
"""What a finding of the preflight means for the numbers."""


def compute_flags(outcome: Outcome) -> list[str]:
    """Warnings about the numbers of an outcome, one sentence each; empty if there is no doubt.

    Uses the probes "attack@threat", threat by threat, and four facts if they are there: "white_box", whether
    each stage of a probe uses gradients of the network; "masking", the counts of the check for masked
    gradients; "findings", texts that begin with the kind of a finding, such as "random: ..."; and "questions"
    about budgets.
    """
    by_threat: dict[str, dict[str, NDArray[np.bool_]]] = defaultdict(dict)
    for name, predicted in outcome.predicted.items():
        attack, _, threat = name.partition("@")
        if name != NATURAL and len(outcome) and parse_shift_id(name) is None:
            by_threat[threat][attack] = predicted == outcome.label
    white_box = outcome.facts.get("white_box", {})
    flags: list[str] = []
    for threat, robust in by_threat.items():
        kinds = {attack: set(white_box.get(f"{attack}@{threat}", ())) for attack in robust}
        white, black = (
            {attack: mask for attack, mask in robust.items() if kinds[attack] == {is_white}}
            for is_white in (True, False)
        )
        doubts = _flag_black_box_wins(white, black) + _flag_not_converged(robust) + _flag_fixed_steps(robust)
        flags += [f"{threat}: {doubt}" for doubt in doubts]
    flags += [flag for name in outcome.stage for flag in _flag_black_box_stage(outcome, name)]
    flags += flag_masking(outcome.facts.get("masking", {}))
    for text in map(str, outcome.facts.get("findings", ())):
        kind, _, message = text.partition(": ")
        if kind in FINDING_FLAGS:
            flags.append(FINDING_FLAGS[kind] + (f" ({message})" if message else ""))
    return flags + [str(question) for question in outcome.facts.get("questions", ())]


def _flag_black_box_wins(white: RobustByAttack, black: RobustByAttack) -> list[str]:
    """An attack without gradients should fool the network on no image that white-box attacks leave robust."""
    flags: list[str] = []
    for name, mask in black.items() if white else ():
        strongest = min(white, key=lambda other: int(white[other].sum()))
        robust = np.all([*white.values()], axis=0)
        only = int((robust & ~mask).sum())
        subject = f"{name}, which uses no gradient of the network,"
        bound = f"the accuracy is at most {_format_percent(robust & mask)}"
        if mask.sum() < white[strongest].sum():
            flags.append(
                f"{subject} leaves {_format_percent(mask)} and the white-box attacks leave "
                f"{_format_percent(white[strongest])} ({strongest}): their gradients are masked, or they are "
                f"too weak; {bound}"
            )
        elif only:
            images = (
                f"{only} of {len(mask)} images that the white-box attacks ({', '.join(white)}) leave robust"
            )
            flags.append(f"{subject} fools it on {images}: {bound}")
    return flags


def _flag_black_box_stage(outcome: Outcome, name: str) -> list[str]:
    """A stage without gradients should fool the network on no image that white-box stages leave robust."""
    stages, white_box = (outcome.facts.get(fact, {}).get(name, ()) for fact in ("stages", "white_box"))
    before: list[str] = []
    flags: list[str] = []
    for number, (stage, is_white) in enumerate(zip(stages, white_box, strict=False), start=1):
        fooled = int((outcome.stage[name] == number).sum())
        if is_white:
            before.append(str(stage))
        elif before and fooled:
            attack, _, threat = name.partition("@")
            flags.append(
                f"{threat}: in {attack}, {stage}, which uses no gradient of the network, fools it on "
                f"{fooled} of {len(outcome)} images that {', '.join(before)} leave robust: their gradients "
                "may be masked"
            )
    return flags


def flag_masking(by_threat: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A short FAB and Square should not fool the network on many images that other attacks leave robust."""
    flags: list[str] = []
    for threat, counts in by_threat.items():
        images, robust, fooled = (int(counts[key]) for key in ("images", "robust", "fooled"))
        if 100 * fooled > MASKING_TOLERANCE * images:
            flags.append(
                f"{threat}: gradients are masked, or {', '.join(counts['attacks'])} too weak: {robust} of "
                f"{images} correctly classified images are robust, and only {robust - fooled} after a short "
                "FAB and Square; AutoAttack (aa) tells"
            )
    return flags


def _flag_not_converged(robust: RobustByAttack) -> list[str]:
    """Compare the two longest runs of every attack that ran with several numbers of steps."""
    families: dict[str, dict[int, str]] = defaultdict(dict)
    for name in robust:
        if match := re.fullmatch(r"([a-z]+)(\d+)", _normalise_name(name)):
            families[match[1]][int(match[2])] = name
    flags: list[str] = []
    for by_steps in (family for family in families.values() if len(family) > 1):
        few, many = (by_steps[steps] for steps in sorted(by_steps)[-2:])
        if _drop_in_points(robust[few], robust[many]) > MORE_STEPS_TOLERANCE:
            flags.append(
                f"accuracy still falls with more steps, from {_format_percent(robust[few])} ({few}) to "
                f"{_format_percent(robust[many])} ({many}): use more until it no longer does"
            )
    return flags


def _flag_fixed_steps(robust: RobustByAttack) -> list[str]:
    """Compare the strongest APGD with the strongest PGD."""
    ranked = sorted(robust, key=lambda name: int(robust[name].sum()))
    fixed, adaptive = (
        [name for name in ranked if _normalise_name(name).startswith(family)] for family in ("pgd", "apgd")
    )
    if not fixed or not adaptive:
        return []
    pgd, apgd = fixed[0], adaptive[0]
    drop = _drop_in_points(robust[pgd], robust[apgd])
    if drop <= APGD_TOLERANCE:
        return []
    return [
        f"{apgd} leaves {_format_percent(robust[apgd])}, {drop:.1f} points below {pgd}: steps of fixed "
        f"length do not find the worst case here; do not report {pgd} alone"
    ]


def _normalise_name(name: str) -> str:
    """The name of an attack without case and separators: "PGD-20" and "pgd20" are the same."""
    return re.sub(r"[-_ ]", "", name).lower()


def _drop_in_points(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> float:
    """Percentage points of accuracy lost, from counts, so that one point is exactly one."""
    return 100 * (int(before.sum()) - int(after.sum())) / len(before)


def _format_percent(robust: NDArray[np.bool_]) -> str:
    return f"{100 * float(robust.mean()):.2f}%"
