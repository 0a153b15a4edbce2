"""Budgets and attack steps that are too large to train with, most often because of a forgotten "/255"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, cast

from allrounder.attacks.base import Attack
from allrounder.evaluation.probes import Probe
from allrounder.objectives import Objective
from allrounder.recipe.task import Task
from allrounder.recipe.validation import Validation
from allrounder.threats.threat import AnyOf, Threat

FieldPath: TypeAlias = tuple[str | int, ...]
Problem: TypeAlias = tuple[FieldPath, str]
"""The path of a field, and what is wrong with it."""
MAX_STEP = 2.0
"""The longest step of an attack, in units of the budget: from one side of the ball to the other."""


def budget_problems(
    tasks: Sequence[Task], validation: Validation, probes: Sequence[Probe], shape: Sequence[int] | None
) -> Iterator[Problem]:
    """Yield the fields whose budgets or steps are too large for images of a shape.

    Without a shape, yield only those that are too large for images of any shape.
    """
    for i, task in enumerate(tasks):
        for key in ("objective", "update"):
            yield from _find_problems(getattr(task, key), ("task", i, key), shape)
    yield from _find_problems(validation, ("validation",), shape)
    for i, probe in enumerate(probes):
        if (problem := probe.threat.size_problem(shape)) is not None:
            yield ("probes", i), problem


def _find_problems(item: object, path: FieldPath, shape: Sequence[int] | None) -> Iterator[Problem]:
    """Yield the problems of the threats and attacks in the fields of a value, also of a wrapped objective."""
    for field in fields(cast(Any, item)):
        value: object = getattr(item, field.name)
        place = (*path, field.name)
        for threat in _threats_in(value):
            if (problem := threat.size_problem(shape)) is not None:
                yield place, problem
        is_step = isinstance(item, Attack) and field.name.endswith("step")
        if is_step and isinstance(value, float) and value > MAX_STEP:
            expected = f"expected at most {MAX_STEP:g}: it is a fraction of the budget"
            yield place, f"got {value:g}, {expected}, so that 0.25 is 2/255 of a budget of 8/255"
        members = cast(tuple[object, ...], value) if isinstance(value, tuple) else (value,)
        for member in members:
            if isinstance(member, Attack | Objective):
                yield from _find_problems(member, place, shape)


def _threats_in(value: object) -> tuple[Threat, ...]:
    if isinstance(value, Threat | AnyOf):
        return value.threats
    members = cast(tuple[object, ...], value) if isinstance(value, tuple) else ()
    return tuple(member for member in members if isinstance(member, Threat))
