"""What was measured for the theory of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from allrounder.experiments.theory.bound import Theorem1
from allrounder.experiments.theory.gap import MixingGap
from allrounder.experiments.theory.gradients import GradientProducts
from allrounder.report.regret import Jumps, Regret, TradeOffRegret


@final
@dataclass(frozen=True)
class Theory:
    """Everything that `measure_theory` measures on one run."""

    run: str
    steps: int
    images: int
    classes: int
    regret: TradeOffRegret
    """In the loss of the objectives."""
    error_regret: TradeOffRegret
    """In the 0-1 loss."""
    global_regret: Regret | None
    """R-bar in the 0-1 loss; None if the validations do not cover all tasks."""
    jumps: Mapping[str, Jumps]
    """Of every learner's loss across exchanges."""
    errors: Mapping[str, Mapping[str, float]]
    """The 0-1 loss of the global weights and of every learner, on the test images of every task."""
    theorem1: Theorem1
    gaps: Mapping[str, MixingGap]
    """At the "best" and the "last" weights."""
    gradients: Mapping[str, Mapping[str, GradientProducts]]
    """By task, then at: start, learner, best and last (both global), solo."""
    exchanges: tuple[Mapping[str, Any], ...] = ()
    """The logged exchanges; none in runs older than this log."""
    solo: Mapping[str, str] = field(default_factory=dict[str, str])
    """The solo run of every task that has one."""
