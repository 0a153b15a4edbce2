"""Every shipped recipe, as numbers that do not depend on the names of its fields."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from hashlib import sha256

from allrounder.config.time import Clock
from allrounder.recipe.recipe import Recipe, shipped_recipes
from tests.golden.results import Result

STEPS = 6
"""Steps of an epoch."""
NEW_RECIPES = {
    *(f"embedded/generalist-t-{kind}" for kind in ("uniform", "fisher", "outer", "soft", "chosen")),
    *("embedded/half-half-taught", "embedded/generalist-d-nt-linf-taught", "embedded/random-threat"),
}
"""Recipes that are younger than the recorded digests. A digest covers all recipes of a folder, and adding one
must not hide a change of the others."""
NEW_METHOD = "random-task"
"""The start of the names of further new recipes, in all folders."""
FOLDERS = ("embedded", "mnist", "svhn", "cifar10", "cifar100", "imagenet")


def describe_recipe(name: str) -> str:
    """Describe a recipe: lengths, threats, passes, and rates, shares and exchanges over a short run."""
    recipe = Recipe.load(name)
    lines = [f"{name} {recipe.batch_size} {recipe.seed}", " ".join(map(str, recipe.probes))]
    for stage, training in recipe.stage_recipes().items():
        clock = Clock(training.epochs, STEPS, training.pace)
        lines.append(f"{stage} {training.epochs} {training.passes()} {training.validation.on}")
        lines.append(" ".join(map(str, training.selection_threats)))
        for t in range(1, clock.total_steps + 1, max(clock.total_steps // 24, 1)):
            rates = [task.lr(clock.schedule_step(t), clock) for task in training.tasks]
            averages = [0.0 if task.average is None else task.average(t, clock) for task in training.tasks]
            shares = training.effective_mix.shares_at(t, clock, training.names).values()
            numbers = [*rates, *averages, *shares, training.effective_mix.decay(t, clock)]
            lines.append(" ".join(number.hex() for number in map(float, numbers)))
        due = [t for t in range(1, clock.total_steps + 1) if training.effective_mix.exchange_due(t, clock)]
        lines.append(" ".join(map(str, [*due, *(task.label_smoothing for task in training.tasks)])))
    return "\n".join(lines)


def describe_folder(folder: str) -> Result:
    """Describe all recipes of a folder, except for the new ones."""
    names = sorted(name for name in shipped_recipes() if name.startswith(f"{folder}/"))
    names = [name for name in names if name not in NEW_RECIPES]
    names = [name for name in names if not name.startswith(f"{folder}/{NEW_METHOD}")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about budgets such as 0.031, which the released code has
        texts = [describe_recipe(name) for name in names]
    return {"losses": [float(len(names))], "digest": sha256("\n\n".join(texts).encode()).hexdigest()}


CASES: dict[str, Callable[[], Result]] = {
    f"recipes/{folder}": partial(describe_folder, folder) for folder in FOLDERS
}
