"""Remarks on numbers that should not be believed as they stand, derived from an outcome without torch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from allrounder.report.corruption_metrics import view_of
from allrounder.report.outcome import NATURAL, Outcome

WHITE_BOX = ("apgd", "pgd", "fab", "mim", "cw")
"""What the names of attacks by gradients begin with."""
FALLING = 1.0
"""Points of accuracy that more steps of the same attack may cost."""
STRONGER = 5.0
"""Points of accuracy that steps of chosen length (APGD) may cost over steps of fixed length (PGD)."""
TELLING = {
    "zero-gradient": "attacks by gradients were partly blind, so accuracies under them may be too high",
    "random": "the network answers at random, so every accuracy is one draw, and attacks that do not average "
    "over many passes make it too high",
}
"""What a finding of the preflight means for the numbers."""


def flags(outcome: Outcome) -> list[str]:
    """Sentences about the numbers of an outcome that are not reliable; none where all is well.

    Looks at the probes "attack@threat", threat by threat, and at two facts if they are there: "findings",
    texts that begin with the kind of a finding, such as "random: ...", and "questions" about budgets.
    """
    by_threat: dict[str, dict[str, NDArray[np.bool_]]] = defaultdict(dict)
    for name, predicted in outcome.predicted.items():
        attack, _, threat = name.partition("@")
        if name != NATURAL and len(outcome) and view_of(name) is None:
            by_threat[threat][attack] = predicted == outcome.label
    said = [
        f"{threat}: {sentence}"
        for threat, standing in by_threat.items()
        for sentence in (*_queries_win(standing), *_still_falling(standing), *_fixed_steps(standing))
    ]
    said += [sentence for name in outcome.stage for sentence in _query_stage(outcome, name)]
    for text in map(str, outcome.facts.get("findings", ())):
        kind, _, message = text.partition(": ")
        if kind in TELLING:
            said.append(f"{TELLING[kind]}" + (f" ({message})" if message else ""))
    return said + [str(question) for question in outcome.facts.get("questions", ())]


def _queries_win(standing: Mapping[str, NDArray[np.bool_]]) -> list[str]:
    """Square, which sees no gradient, should find nothing that the others do not."""
    white = {name: right for name, right in standing.items() if _plain(name).startswith(WHITE_BOX)}
    said: list[str] = []
    for name, right in standing.items():
        if not white or not _plain(name).startswith("square"):
            continue
        best = min(white, key=lambda other: int(white[other].sum()))
        survivors = np.all([*white.values()], axis=0)
        only = int((survivors & ~right).sum())
        if right.sum() < white[best].sum():
            said.append(
                f"{name}, which sees no gradient, leaves {_percent(right)} and the white-box attacks leave "
                f"{_percent(white[best])} ({best}): their gradients are masked, or they are too weak; "
                f"the accuracy is at most {_percent(survivors & right)}"
            )
        elif only:
            said.append(
                f"{name}, which sees no gradient, breaks {only} of {len(right)} images that the white-box "
                f"attacks ({', '.join(white)}) do not: the accuracy is at most {_percent(survivors & right)}"
            )
    return said


def _query_stage(outcome: Outcome, name: str) -> list[str]:
    """Square inside a cascade gets what the stages before left standing, and should break none of it."""
    stages = [str(stage) for stage in outcome.facts.get("stages", {}).get(name, ())]
    said: list[str] = []
    for number, stage in enumerate(stages, start=1):
        before = [other for other in stages[: number - 1] if _plain(other).startswith(WHITE_BOX)]
        broken = int((outcome.stage[name] == number).sum())
        if before and broken and _plain(stage).startswith("square"):
            attack, _, threat = name.partition("@")
            said.append(
                f"{threat}: in {attack}, {stage}, which sees no gradient, breaks {broken} of {len(outcome)} "
                f"images that {', '.join(before)} leave standing: their gradients may be masked"
            )
    return said


def _still_falling(standing: Mapping[str, NDArray[np.bool_]]) -> list[str]:
    """The two longest runs of an attack that has several."""
    families: dict[str, dict[int, str]] = defaultdict(dict)
    for name in standing:
        if named := re.fullmatch(r"([a-z]+)(\d+)", _plain(name)):
            families[named[1]][int(named[2])] = name
    said: list[str] = []
    for lengths in families.values():
        if len(lengths) < 2:
            continue
        few, many = (lengths[steps] for steps in sorted(lengths)[-2:])
        if _fall(standing[few], standing[many]) > FALLING:
            said.append(
                f"accuracy still falls with more steps, from {_percent(standing[few])} ({few}) to "
                f"{_percent(standing[many])} ({many}): take more until it does not"
            )
    return said


def _fixed_steps(standing: Mapping[str, NDArray[np.bool_]]) -> list[str]:
    """The strongest APGD against the strongest PGD."""
    strongest: dict[str, str] = {}
    for family in ("pgd", "apgd"):
        names = [name for name in standing if _plain(name).startswith(family)]
        if not names:
            return []
        strongest[family] = min(names, key=lambda name: int(standing[name].sum()))
    pgd, apgd = strongest["pgd"], strongest["apgd"]
    fall = _fall(standing[pgd], standing[apgd])
    if fall <= STRONGER:
        return []
    return [
        f"{apgd} leaves {_percent(standing[apgd])}, {fall:.1f} points below {pgd}: steps of fixed length do "
        f"not find the worst case here; do not quote {pgd} alone"
    ]


def _plain(name: str) -> str:
    """An attack's name without case and signs: "PGD-20" and "pgd20" are one."""
    return re.sub(r"[-_ ]", "", name).lower()


def _fall(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> float:
    """Points of accuracy lost; counted first, so that one point is exactly one."""
    return 100 * (int(before.sum()) - int(after.sum())) / len(before)


def _percent(right: NDArray[np.bool_]) -> str:
    return f"{100 * float(right.mean()):.2f}%"
