"""The text of a new recipe file: it extends another recipe, and comments show the most useful keys."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import tomli_w

from allrounder.config.decode import Table, is_table
from allrounder.recipe.inherit import Chain
from allrounder.recipe.library import shipped_recipes
from allrounder.recipe.recipe import Recipe

COMMENTS = {
    "epochs": "times that are shares of the run scale with it",
    "seed": "another seed gives another run of the same recipe",
    "data": "your own images: see docs/guide/data.md",
    "model": "allrounder list models",
}
"""Keys of a recipe that the file shows, with a comment for each."""


def recipe_template(source: str, file: Path) -> str:
    """Return the text of `file`, a recipe that equals the recipe `source` until its author changes it."""
    recipe = Recipe.load(source)
    table = {**tomllib.loads(recipe.dumps()), **Chain.read(source).merge()}
    parent = source if source in shipped_recipes() else os.path.relpath(source, file.parent)
    keys = zip(_assignments(_select(table, *COMMENTS)), COMMENTS.values(), strict=True)
    lines = [
        f"# This recipe equals {parent}, whose values are shown in the comments.",
        "# To change a value, remove the # in front of it, and in front of the [table] that it belongs to.",
        *_assignments({"extends": parent, "about": recipe.about}),
        "",
        *(f"# {line:<40}  # {comment}" for line, comment in keys),
        "",
        "# [validation]",
        *_commented(_select(table["validation"], "images", "every")),
        "",
        "# [[task]]  # a known name changes this task, a new name adds a learner",
        *_commented(_describe_task(table["task"])),
    ]
    if "mix" in table:
        lines += ["", "# [mix]", *_commented(_select(table["mix"], "decay", "shares", "exchange"))]
    return "\n".join(lines) + "\n"


def _describe_task(tasks: list[Table]) -> Table:
    """Return the useful keys of the first task with a threat, else of the first task."""
    task = next((task for task in tasks if "threat" in task["objective"]), tasks[0])
    objective = task["objective"]
    if is_table(objective):
        attack = objective.get("attack")
        steps = {"attack": _select(attack, "kind", "steps")} if is_table(attack) else {}
        objective = {**_select(objective, "kind", "threat"), **steps}
    return {"name": task["name"], "objective": objective, "lr": task["lr"]}


def _select(table: Table, *keys: str) -> Table:
    return {key: table[key] for key in keys if key in table}


def _commented(table: Table) -> Iterable[str]:
    return (f"# {line}" for line in _assignments(table))


def _assignments(table: Table) -> list[str]:
    """Return lines `key = value` with aligned values."""
    width = max(map(len, table), default=0)
    return [f"{key:<{width}} = {_to_toml(value)}" for key, value in table.items()]


def _to_toml(value: object) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        table = cast(Mapping[str, Any], value)
        return "{ " + ", ".join(f"{key} = {_to_toml(item)}" for key, item in table.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_to_toml, cast(list[object], value)))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")
