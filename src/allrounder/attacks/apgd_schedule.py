"""The schedule of APGD: the radii it searches in order, and its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from allrounder.config.fields import PositiveFloat, Share

RadiusSchedule: TypeAlias = tuple[tuple[PositiveFloat, Annotated[Share, Field(gt=0)]], ...]
"""Radii in units of eps, each with its share of the steps."""

L1_SCHEDULE: RadiusSchedule = ((3.0, 0.3), (2.0, 0.3), (1.0, 0.4))
"""The schedule of AutoAttack in L1: search larger balls first."""


@final
@dataclass(frozen=True, eq=False)
class CheckpointPlan:
    """What happens at each query of a search; the last row applies to all later queries."""

    radii: tuple[float, ...]
    """The radii that are searched, in units of eps."""
    radius_index: Int[Tensor, " t"]
    """The position of the query's radius in `radii`."""
    is_start: Bool[Tensor, " t"]
    """Whether the query is the first one with its radius."""
    period: Int[Tensor, " t"]
    """At a checkpoint, the number of steps since the previous one; otherwise 0."""

    def __len__(self) -> int:
        return len(self.is_start) - 1

    def eps_at(self, query: Int[Tensor, " n"], eps: float) -> Float[Tensor, " n"]:
        """The radius of the ball at each query, in float64."""
        radii = torch.tensor(self.radii, dtype=torch.float64, device=query.device) * eps
        return radii[self.radius_index[query]]


@cache
def plan_checkpoints(
    schedule: RadiusSchedule, steps: int, sparse: bool, device: torch.device
) -> CheckpointPlan:
    """Plan a search of `steps` steps; a radius whose share is less than one step is skipped."""
    counts = [int(share * steps) for _, share in schedule[:-1]]
    counts.append(steps - sum(counts))
    stages = [(radius, count) for (radius, _), count in zip(schedule, counts, strict=True) if count]
    rows = [
        (number, t == 0, checkpoint_periods(count, sparse=sparse).get(t, 0))
        for number, (_, count) in enumerate(stages)
        for t in range(count + 1)
    ]
    columns = zip(*rows, (len(stages) - 1, False, 0), strict=True)
    radius_index, is_start, period = (torch.tensor(column, device=device) for column in columns)
    return CheckpointPlan(tuple(radius for radius, _ in stages), radius_index, is_start, period)


def checkpoint_periods(steps: int, *, sparse: bool) -> dict[int, int]:
    """The steps after which there is a checkpoint, each with the number of steps since the previous one.

    The first period is 22 % of all steps; each following one is shorter by 3 % of all steps, down to 6 %. In
    L1 (`sparse`) all periods are 4 %.
    """
    percentages = (4, 0, 4) if sparse else (22, 3, 6)
    period, decrease, shortest = (max(percentage * steps // 100, 1) for percentage in percentages)
    periods: dict[int, int] = {}
    end = period
    while end <= steps:
        periods[end] = period
        period = max(period - decrease, shortest)
        end += period
    return periods
