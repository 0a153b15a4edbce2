"""The forward and backward passes of a training step without anything else: a lower bound of its cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder import Rng
from allrounder.attacks.base import CheckedNetwork
from allrounder.attacks.losses import cross_entropy
from allrounder.attacks.pgd import Pgd, initial_perturbation, pgd_loop
from allrounder.inference.fold import Folded, folded_copy
from allrounder.objectives import Adversarial
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task
from allrounder.threats.threat import Threat


@final
class BarePasses:
    """The passes of all learners of a recipe on one batch."""

    def __init__(self, recipe: Recipe, start: Callable[[], nn.Module], x: Tensor, y: Tensor) -> None:
        layout = torch.channels_last
        self.x = x.contiguous(memory_format=layout)
        self.y = y
        self.tasks = recipe.tasks
        self.models = [start().to(memory_format=layout) for _ in recipe.tasks]  # pyright: ignore[reportCallIssue]
        self.optimizers = [
            task.optimizer.build(model.parameters())
            for task, model in zip(recipe.tasks, self.models, strict=True)
        ]
        self.folded = [folded_copy(model, x) for model in self.models]

    def passes_only(self) -> None:
        """Only the passes: those of the attack steps, and one of the training step."""
        for task, model, folded in zip(self.tasks, self.models, self.folded, strict=True):
            for _ in range(_attack_steps(task)):
                assert folded is not None
                x = self.x.detach().requires_grad_()
                torch.autograd.grad(F.cross_entropy(folded(x), self.y, reduction="sum"), x)
            self._backward(model, self.x)

    def plain_step(self) -> None:
        """The passes with the updates of attacks and optimisers, as in a minimal training loop."""
        for task, model, optimizer, folded in zip(
            self.tasks, self.models, self.optimizers, self.folded, strict=True
        ):
            self._backward(model, self._craft(task, folded))
            optimizer.step()

    def _craft(self, task: Task, folded: Folded | None) -> Tensor:
        objective = task.objective
        if not isinstance(objective, Adversarial):
            return self.x
        attack = objective.attack
        threat = objective.threat
        assert isinstance(attack, Pgd) and isinstance(threat, Threat) and folded is not None
        with torch.no_grad():
            d = initial_perturbation("random", self.x, threat, Rng(0))
            return pgd_loop(
                CheckedNetwork(folded, 0),
                self.x,
                self.y,
                threat,
                cross_entropy,
                d,
                steps=attack.steps,
                step=attack.step,
            ).x

    def _backward(self, model: nn.Module, x: Tensor) -> None:
        model.train()
        for parameter in model.parameters():
            parameter.grad = None
        F.cross_entropy(model(x), self.y).backward()


def _attack_steps(task: Task) -> int:
    objective = task.objective
    return (
        objective.attack.steps
        if isinstance(objective, Adversarial) and isinstance(objective.attack, Pgd)
        else 0
    )
