"""Regrets of a training from the numbers that it logs: Definitions 1 and 3 of Generalist++."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, TypeAlias, final

Event: TypeAlias = Mapping[str, Any]
Measure: TypeAlias = Literal["loss", "error"]
"""What is summed: the loss of the objective, or the 0-1 loss, which lies in [0, 1]."""


@final
@dataclass(frozen=True)
class Regret:
    """The regret of one trajectory, sum_t (loss_t - infimum), from the mean loss of blocks of steps."""

    name: str
    ends: tuple[int, ...]
    """The last step of every block."""
    losses: tuple[float, ...]
    """The mean loss over the steps of every block."""
    infimum: float
    """An estimate from above of the smallest mean loss that fixed weights could have."""

    @property
    def steps(self) -> tuple[int, ...]:
        """The number of steps of every block."""
        return tuple(end - start for start, end in zip((0, *self.ends), self.ends, strict=False))

    def over_time(self) -> tuple[float, ...]:
        """Return the regret up to the end of every block."""
        terms = zip(self.steps, self.losses, strict=True)
        return tuple(accumulate(count * (loss - self.infimum) for count, loss in terms))

    @property
    def total(self) -> float:
        """The regret of the whole trajectory."""
        return self.over_time()[-1]

    @property
    def per_step(self) -> float:
        """The regret divided by the number of steps."""
        return self.total / self.ends[-1]


@final
@dataclass(frozen=True)
class TradeOffRegret:
    """R_T = 1/|A| sum_a (sum_t l_a(theta_a^t) - inf), Definition 1."""

    learners: tuple[Regret, ...]

    @property
    def total(self) -> float:
        """R_T."""
        return sum(regret.total for regret in self.learners) / len(self.learners)

    @property
    def per_step(self) -> float:
        """R_T / T."""
        return self.total / self.learners[0].ends[-1]

    def over_time(self) -> tuple[float, ...]:
        """Return the regret up to the end of every block."""
        columns = zip(*(regret.over_time() for regret in self.learners), strict=True)
        return tuple(sum(column) / len(column) for column in columns)


def trade_off_regret(
    events: Sequence[Event],
    learners: Sequence[str],
    measure: Measure = "loss",
    infima: Mapping[str, float] | None = None,
) -> TradeOffRegret:
    """Return the trade-off regret of a log with at least one epoch of every learner.

    The infimum of a learner is the smaller one of its best epoch and of `infima`, such as the best epoch of a
    longer training of its task alone. Both are above the true infimum, so that the regret is one from below.
    """
    regrets = [learner_regret(events, name, measure, (infima or {}).get(name, math.inf)) for name in learners]
    return TradeOffRegret(tuple(regrets))


def learner_regret(
    events: Sequence[Event], learner: str, measure: Measure = "loss", infimum: float = math.inf
) -> Regret:
    """Return the regret of one learner, whose blocks are the logged epochs."""
    logged = [event for event in events if event["event"] == "epoch" and event["learner"] == learner]
    losses = tuple(event["loss"] if measure == "loss" else 1 - event["accuracy"] for event in logged)
    return Regret(learner, tuple(event["t"] for event in logged), losses, min(*losses, infimum))


def global_regret(events: Sequence[Event], threats: Sequence[Collection[str]]) -> Regret | None:
    """Return R-bar of Definition 3, the regret of the global weights in the 0-1 loss; None if validations do
    not cover all tasks. `threats` holds those of every task, none for a natural one.

    The global weights have no logged loss, only validations: each stands for the steps since the last one, on
    the slice of training images if the run has one, else on the validation images.
    """
    validations = [event for event in events if event["event"] == "validation"]
    accuracies = [event.get("train", event) for event in validations]
    known = set(accuracies[0]["robust"]) if accuracies else set[str]()
    if not accuracies or any(threat not in known for task in threats for threat in task):
        return None
    losses = tuple(_mean([_task_error(entry, task) for task in threats]) for entry in accuracies)
    return Regret("global", tuple(event["t"] for event in validations), losses, min(losses))


def _task_error(accuracies: Event, threats: Collection[str]) -> float:
    """Return the natural error, or the mean error under the threats of a task."""
    robust = [1 - accuracies["robust"][threat] for threat in threats]
    return _mean(robust) if robust else 1 - accuracies["natural"]


@final
@dataclass(frozen=True)
class Jumps:
    """The mean change of a loss from an epoch to the next one, from the first exchange on."""

    across: float
    """NaN if no exchange lies between two logged epochs."""
    elsewhere: float
    """From epochs without an exchange; NaN if all have one."""
    num_across: int


def exchange_jumps(losses: Mapping[int, float], exchange_epochs: Collection[int]) -> Jumps:
    """Return the changes of a loss by epoch. An exchange in epoch e changes the loss from e to e + 1."""
    changes = {epoch: losses[epoch + 1] - loss for epoch, loss in losses.items() if epoch + 1 in losses}
    across = [change for epoch, change in changes.items() if epoch in exchange_epochs]
    first = min(exchange_epochs, default=0)
    elsewhere = [
        change for epoch, change in changes.items() if epoch > first and epoch not in exchange_epochs
    ]
    return Jumps(_mean(across), _mean(elsewhere), len(across))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
