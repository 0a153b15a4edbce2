"""Compare the shipped recipes of this working tree with those of a commit: scripts/compare_recipes.py COMMIT.

Each tree resolves its own recipes with its own package. The results must be equal field by field, after keys
and kinds that were renamed, and objectives that were merged since b9fa471, are written in the new way. Exits
with 1 if a recipe differs or is missing here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeGuard, cast

from compare_with import ROOT, run_git

Table = dict[str, Any]

RESOLVE = """
import json, sys, tomllib, warnings
warnings.simplefilter("ignore")  # about budgets such as 0.031, which the released code has
try:
    from allrounder.recipe.recipe import Recipe, shipped_recipes
except ModuleNotFoundError:
    from allrounder.recipe import Recipe, shipped as shipped_recipes
import allrounder
dump = Recipe.dumps if hasattr(Recipe, "dumps") else Recipe.dump
recipes = {name: tomllib.loads(dump(Recipe.load(name))) for name in shipped_recipes()}
json.dump({"package": allrounder.__file__, "recipes": recipes}, sys.stdout)
"""
RENAMED_KEYS = {"batch": "batch_size", "program": "pipeline"}
IMPLICIT_DEFAULTS = {"sgd": {"decay_on": "all"}, "crop-flip": {"padding": "zero"}}
"""Defaults that dumps of b9fa471 left out, by the kind of a table."""
RENAMED_TASK_KEYS = {"smoothing": "label_smoothing", "stream": "augment_stream"}
RENAMED_KINDS = {
    "reconstructed": "agr",
    "guarded": "overfit-guard",
    "projected": "gradient-projection",
    "colour-jitter": "color-jitter",
    "friendly": "early-stop-pgd",
    "given": "python",
}
RENAMED_DECAYS = {"ramp": "warmup", "horizon": "time-constant"}
"""Kinds of the fields `average` and `decay` only; there is also an objective `ramp`."""


def resolve_recipes(tree: Path) -> dict[str, Table]:
    """Resolve all shipped recipes of a tree with the package of that tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", RESOLVE]
    done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{tree}: the recipes cannot be resolved:\n{done.stderr}")
    dump = json.loads(done.stdout)
    package = Path(dump["package"]).resolve()
    assert package.is_relative_to(tree.resolve()), f"{tree}: resolved with the package of {package}"
    return dump["recipes"]


def resolve_commit(commit: str) -> dict[str, Table]:
    """Resolve all shipped recipes of a commit in a temporary worktree."""
    with TemporaryDirectory(prefix="recipes-") as folder:
        tree = Path(folder) / "tree"
        run_git("worktree", "add", "--detach", str(tree), commit)
        try:
            return resolve_recipes(tree)
        finally:
            run_git("worktree", "remove", "--force", str(tree))


def modernize(recipe: Table) -> Table:
    """Write a resolved recipe of b9fa471 or later in the new way; new recipes stay as they are."""
    recipe = {RENAMED_KEYS.get(key, key): modernize_kinds(value, key) for key, value in recipe.items()}
    recipe["task"] = [modernize_task(task) for task in recipe["task"]]
    if is_table(recipe.get("pipeline")):
        recipe["pipeline"] = {key: modernize_stages(value) for key, value in recipe["pipeline"].items()}
    return recipe


def modernize_stages(value: Any) -> Any:
    """Write the stage, or the list of stages, of a pipeline in the new way; other fields stay as they are."""
    if isinstance(value, list):
        return [modernize_stages(item) for item in cast(list[Any], value)]
    if is_table(value) and "task" in value:
        return {**value, "task": [modernize_task(task) for task in value["task"]]}
    return value


def modernize_task(task: Table) -> Table:
    """Write a task in the new way."""
    task = {RENAMED_TASK_KEYS.get(key, key): value for key, value in task.items()}
    objective = dict(task["objective"])
    match objective["kind"]:
        case "fast":  # one step of PGD
            step = {"kind": "pgd", "steps": 1, "loss": "ce", "start": "random", "eot": 1}
            objective["attack"] = {**step, "step": objective.pop("step")}
        case "max":  # the worst result of one attack under each threat
            objective["threat"] = objective.pop("against")
            objective["attack"] = {"kind": "worst-of", "attack": objective["attack"]}
        case "msd":  # multi steepest descent in the union
            objective["threat"] = objective.pop("against")
        case _:
            return {**task, "objective": objective}
    return {**task, "objective": {**objective, "kind": "adversarial"}}


def modernize_kinds(value: Any, key: str) -> Any:
    """Rename the kinds of nested tables, and add the defaults that old dumps left out."""
    if isinstance(value, list):
        return [modernize_kinds(item, key) for item in cast(list[Any], value)]
    if not is_table(value):
        return value
    table = {name: modernize_kinds(item, name) for name, item in value.items()}
    if "kind" in table:
        renamed = RENAMED_DECAYS if key in ("average", "decay") else RENAMED_KINDS
        table["kind"] = renamed.get(table["kind"], table["kind"])
    return {**IMPLICIT_DEFAULTS.get(str(table.get("kind")), {}), **table}


def is_table(value: Any) -> TypeGuard[Table]:
    """Whether a value is a table."""
    return isinstance(value, dict)


def list_fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the value of every field of a table, as text."""
    if is_table(value) and value:
        for key, item in value.items():
            yield from list_fields(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(is_table(item) for item in cast(list[Any], value)):
        for number, item in enumerate(cast(list[Any], value)):
            name = f"{number}-{item.get('name', '')}".rstrip("-") if is_table(item) else str(number)
            yield from list_fields(item, f"{path}.{name}")
    else:
        yield path, json.dumps(value, sort_keys=True)


def compare(old: Table, new: Table) -> list[str]:
    """Compare two recipes field by field; return what differs."""
    before = dict(list_fields(modernize(old)))
    after = dict(list_fields(modernize(new)))
    return [
        f"{path}: {before.get(path, 'missing')} became {after.get(path, 'missing')}"
        for path in {**before, **after}
        if before.get(path) != after.get(path)
    ]


def main() -> None:
    """Compare, print the differences, and exit."""
    parser = argparse.ArgumentParser(description="Compare the shipped recipes with those of a commit.")
    parser.add_argument("commit")
    options = parser.parse_args()
    old = resolve_commit(options.commit)
    new = resolve_recipes(ROOT)
    missing = [name for name in old if name not in new]
    different = {name: rows for name in old if name in new and (rows := compare(old[name], new[name]))}
    for name in missing:
        print(f"{name}: missing here")
    for name, rows in different.items():
        print(name, *rows, sep="\n  ")
    equal = len(old) - len(missing) - len(different)
    added = len(new.keys() - old.keys())
    print(f"{equal} equal, {len(different)} different, {len(missing)} missing, {added} new")
    sys.exit(1 if missing or different else 0)


if __name__ == "__main__":
    main()
