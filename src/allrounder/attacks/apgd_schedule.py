"""When APGD looks back: the radii it searches in turn, and the checkpoints on the way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from allrounder.config.fields import Positive, Share

Schedule: TypeAlias = tuple[tuple[Positive, Annotated[Share, Field(gt=0)]], ...]
"""Radii in units of eps, each with its share of the steps."""

ENLARGED: Schedule = ((3.0, 0.3), (2.0, 0.3), (1.0, 0.4))
"""The schedule of AutoAttack in L1: first find high ground in larger balls."""


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """What is due at every point that is asked about; a last row stands for whatever comes after."""

    radii: tuple[float, ...]
    """In units of eps."""
    radius: Int[Tensor, " t"]
    """Which of them."""
    first: Bool[Tensor, " t"]
    """Whether the point is the start in its ball."""
    period: Int[Tensor, " t"]
    """At a checkpoint, the number of steps since the one before; else 0."""

    def __len__(self) -> int:
        return len(self.first) - 1

    def eps(self, told: Int[Tensor, " n"], eps: float) -> Float[Tensor, " n"]:
        """The radius of the ball, in float64."""
        radii = torch.tensor(self.radii, dtype=torch.float64, device=told.device) * eps
        return radii[self.radius[told]]


@cache
def plan(schedule: Schedule, steps: int, sparse: bool, device: torch.device) -> Plan:
    """The plan of a search of so many steps; a radius whose share is less than a step is left out."""
    counts = [int(share * steps) for _, share in schedule[:-1]]
    counts.append(steps - sum(counts))
    stages = [(radius, count) for (radius, _), count in zip(schedule, counts, strict=True) if count]
    rows = [
        (number, t == 0, checkpoints(count, sparse=sparse).get(t, 0))
        for number, (_, count) in enumerate(stages)
        for t in range(count + 1)
    ]
    columns = zip(*rows, (len(stages) - 1, False, 0), strict=True)
    radius, first, period = (torch.tensor(column, device=device) for column in columns)
    return Plan(tuple(radius for radius, _ in stages), radius, first, period)


def checkpoints(steps: int, *, sparse: bool) -> dict[int, int]:
    """The steps after which a checkpoint is due, each with the number of steps since the one before.

    Periods of 22 % of all steps, each 3 % shorter than the last, down to 6 %; in L1 (`sparse`), of 4 %.
    """
    period, shrink, least = (max(share * steps // 100, 1) for share in ((4, 0, 4) if sparse else (22, 3, 6)))
    due: dict[int, int] = {}
    end = period
    while end <= steps:
        due[end] = period
        period = max(period - shrink, least)
        end += period
    return due
