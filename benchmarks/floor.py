"""The forward and backward passes of a training step, and nothing around them: what no program can avoid."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder import Draws
from allrounder.attacks.losses import cross_entropy
from allrounder.attacks.pgd import Pgd, climb, start_at
from allrounder.inference.fold import Folded, frozen
from allrounder.objectives import Adversarial
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task


@final
class Passes:
    """The forward and backward passes of all learners, without anything around them."""

    def __init__(self, recipe: Recipe, start: Callable[[], nn.Module], x: Tensor, y: Tensor) -> None:
        last = torch.channels_last
        self.x, self.y = x.contiguous(memory_format=last), y
        self.tasks = recipe.tasks
        self.models = [start().to(memory_format=last) for _ in recipe.tasks]  # pyright: ignore[reportCallIssue]
        self.optimizers = [
            task.optimizer.build(model.parameters())
            for task, model in zip(recipe.tasks, self.models, strict=True)
        ]
        self.folded = [frozen(model, x) for model in self.models]

    def bare(self) -> None:
        """Nothing else."""
        for task, model, folded in zip(self.tasks, self.models, self.folded, strict=True):
            for _ in range(_attack_steps(task)):
                assert folded is not None
                x = self.x.detach().requires_grad_()
                torch.autograd.grad(F.cross_entropy(folded(x), self.y, reduction="sum"), x)
            self._learn(model, self.x)

    def plain(self) -> None:
        """With the arithmetic of attacks and optimisers, as a loop by hand would have it."""
        for task, model, optimizer, folded in zip(
            self.tasks, self.models, self.optimizers, self.folded, strict=True
        ):
            self._learn(model, self._attacked(task, folded))
            optimizer.step()

    def _attacked(self, task: Task, folded: Folded | None) -> Tensor:
        goal = task.objective
        if not isinstance(goal, Adversarial):
            return self.x
        assert isinstance(goal.attack, Pgd) and folded is not None
        with torch.no_grad():
            d = start_at("random", self.x, goal.threat, Draws(0))
            steps, step = goal.attack.steps, goal.attack.step
            return climb(folded, self.x, self.y, goal.threat, cross_entropy, d, steps=steps, step=step).x

    def _learn(self, model: nn.Module, x: Tensor) -> None:
        model.train()
        for parameter in model.parameters():
            parameter.grad = None
        F.cross_entropy(model(x), self.y).backward()


def _attack_steps(task: Task) -> int:
    goal = task.objective
    return goal.attack.steps if isinstance(goal, Adversarial) and isinstance(goal.attack, Pgd) else 0
