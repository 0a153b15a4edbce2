"""Shares: the weight of every learner in the mixture, over time. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any, final

from pydantic import model_serializer

from allrounder.config.fields import Share, did_you_mean, frozen_config, raise_field_errors
from allrounder.config.schedules import Schedule, ShareCurve
from allrounder.config.time import Clock, Pace
from allrounder.errors import RecipeError

STEPS = 100
"""The steps of an epoch when shares are examined before the number of images is known."""


@final
@frozen_config
class Shares:
    """The weight of every learner in the mixture, in one of two forms.

    With a lead, its share follows a curve and the others divide the rest: gamma_lead = curve, gamma_W =
    rest_W (1 - curve). They lie in [0, 1] and sum to one by construction. With `curves`, every learner has
    its own curve c_W, and gamma_W = c_W / sum_V c_V.
    """

    lead: str | None = None
    """The learner whose share the curve gives (gamma_1 of the papers)."""
    curve: ShareCurve | None = None
    """Its share over time, in [0, 1]; a bare number is a static share."""
    rest: Mapping[str, Share] = field(default_factory=dict[str, float])
    """How the other learners divide the remainder, summing to one; optional if there is only one other."""
    curves: Mapping[str, ShareCurve] = field(default_factory=dict[str, Schedule])
    """Instead of the above, one curve in [0, 1] for every learner; at every time they are divided by their
    sum."""

    def __post_init__(self) -> None:
        given = {"lead": self.lead, "curve": self.curve, "rest": self.rest or None}
        problems: list[tuple[tuple[str], str]] = []
        if self.curves:
            message = "curves give the share of every learner; remove one of the two"
            problems += [((key,), message) for key, value in given.items() if value is not None]
        else:
            message = "missing; it is required, unless there are curves, one for each learner"
            problems += [((key,), message) for key in ("lead", "curve") if given[key] is None]
        if self.rest and abs(sum(self.rest.values()) - 1) > 1e-9:
            message = f"expected shares that sum to one, got {sum(self.rest.values()):g}"
            problems.append((("rest",), message))
        if self.lead in self.rest:
            problems.append((("rest",), f'"{self.lead}" is the lead; its share is the curve'))
        raise_field_errors(self, problems)

    @model_serializer(mode="wrap")
    def _to_table(self, handler: Callable[[Shares], dict[str, Any]]) -> dict[str, Any]:
        """Write the form that is used, so that recipes older than the second one keep their fingerprints."""
        table = handler(self)
        unused = ("lead", "curve", "rest") if self.curves else ("curves",)
        return {key: value for key, value in table.items() if key not in unused}

    def schedules(self) -> dict[tuple[str, ...], Schedule]:
        """Return all curves by the path of their field."""
        if self.curve is not None:
            return {("curve",): self.curve}
        return {("curves", name): curve for name, curve in self.curves.items()}

    def find_problem(self, names: Sequence[str]) -> tuple[str, str] | None:
        """Return the field that does not fit the learners `names` and why, or None."""
        if self.curves:
            return self._find_curves_problem(names)
        others = [name for name in names if name != self.lead]
        assert self.lead is not None and self.curve is not None
        if self.lead not in names:
            return "lead", _describe_unknown(self.lead, names)
        if self.rest and set(self.rest) != set(others):
            return "rest", f"expected a share for each of {others}, got {sorted(self.rest)}"
        if not self.rest and len(others) > 1:
            return "rest", f"missing; give each of {others} its part of what the lead leaves"
        if not others and min(self.curve.bounds()) < 1:
            return "curve", "expected 1, or no shares at all: there is no other learner to take the rest"
        return None

    def _find_curves_problem(self, names: Sequence[str]) -> tuple[str, str] | None:
        for name in self.curves:
            if name not in names:
                return "curves", _describe_unknown(name, names)
        if missing := [name for name in names if name not in self.curves]:
            return "curves", f"expected a curve for each of {list(names)}, got none for {missing}"
        return None

    def find_zero(self, epochs: int, pace: Pace) -> str | None:
        """Return a message about a time in a run of `epochs` at which all curves are 0, or None. Curves
        are examined at and between their knots and at both ends of the run, where alone they can begin or
        cease to be 0."""
        clock = Clock(epochs, STEPS, pace)
        times = {time.to_steps(clock) for curve in self.curves.values() for time in curve.knot_times()}
        steps = sorted({1, clock.total_steps, *(min(max(t, 1), clock.total_steps) for t in times)})
        for t in sorted({*steps, *((a + b) // 2 for a, b in pairwise(steps))}) if self.curves else ():
            if not any(curve(clock.schedule_step(t), clock) for curve in self.curves.values()):
                return f"all are 0 in epoch {clock.epoch(t)}; at every time, expected one above 0"
        return None

    def at(self, t: int, clock: Clock, names: Sequence[str]) -> dict[str, float]:
        """Return every learner's share at step t, in learner order."""
        now = clock.schedule_step(t)
        if self.curves:
            values = {name: self.curves[name](now, clock) for name in names}
            total = sum(values.values())
            if total <= 0:
                raise RecipeError(f"mix.shares.curves: all are 0 at step {t}; expected one above 0")
            return {name: value / total for name, value in values.items()}
        assert self.curve is not None
        lead_share = self.curve(now, clock)
        rest = self.rest or {name: 1.0 for name in names if name != self.lead}
        return {name: lead_share if name == self.lead else (1 - lead_share) * rest[name] for name in names}


def _describe_unknown(name: str, names: Sequence[str]) -> str:
    return f'no learner is called "{name}" (there are: {", ".join(names)}){did_you_mean(name, names)}'
