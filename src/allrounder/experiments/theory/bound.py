"""The bound of Theorem 1 of Generalist++ in the 0-1 loss, against the measured test error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from allrounder.attacks.base import Attack, perturb
from allrounder.experiments.theory.gap import BATCH_SIZE, compute_logits
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.types import Images, Labels, NamedTensors

DELTA = 0.05
"""The bound holds with probability 1 - DELTA."""


@final
@dataclass(frozen=True)
class Theorem1:
    """E l(theta_g) <= E l(theta) + R_T / T + 2 sqrt(2 / T log(1 / delta)), with l the mean 0-1 loss of all
    tasks."""

    measured: float
    """The test error of the global weights."""
    comparator: float
    """The smallest test error of a learner, as theta; the global weights themselves would make it trivial."""
    regret_per_step: float
    steps: int

    @property
    def slack(self) -> float:
        """The last term of the bound."""
        return 2 * math.sqrt(2 / self.steps * math.log(1 / DELTA))

    @property
    def bound(self) -> float:
        """The right side."""
        return self.comparator + self.regret_per_step + self.slack


def task_errors(
    network: nn.Module,
    weights: NamedTensors,
    tasks: Sequence[Task],
    attack: Attack,
    x: Images,
    y: Labels,
    rng: Rng,
) -> dict[str, float]:
    """Return the 0-1 loss of a network on the images of every task: the natural error of a task without
    threats, else the mean error under `attack` with its threats. The network is not changed."""
    scratch = deepcopy(network).eval()
    natural = float((compute_logits(scratch, weights, x).argmax(1) != y).float().mean())
    robust: dict[str, float] = {}
    for threat in dict.fromkeys(threat for task in tasks for threat in task.objective.threats()):
        crafted: list[Images] = []
        for number, rows in enumerate(torch.split(torch.arange(len(x)), BATCH_SIZE)):
            stream = rng.fold_in("theory", str(threat), number)
            crafted.append(perturb(attack, scratch, x[rows], y[rows], threat, stream).x)
        logits = compute_logits(scratch, weights, torch.cat(crafted))
        robust[str(threat)] = float((logits.argmax(1) != y).float().mean())
    errors = {task.name: [robust[str(threat)] for threat in task.objective.threats()] for task in tasks}
    return {name: sum(under) / len(under) if under else natural for name, under in errors.items()}


def compute_theorem1(
    global_errors: Mapping[str, float],
    learner_errors: Mapping[str, Mapping[str, float]],
    regret_per_step: float,
    steps: int,
) -> Theorem1:
    """Combine the errors of every network on every task with the regret of the training."""
    comparator = min(_mean(errors) for errors in learner_errors.values())
    return Theorem1(_mean(global_errors), comparator, regret_per_step, steps)


def _mean(errors: Mapping[str, float]) -> float:
    return sum(errors.values()) / len(errors)
