"""Trainings with every mix rule, in one process and in two. Run as a module, it trains below a folder, with
ranks forked from one process, and writes all exit codes and errors to results.json."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

import allrounder.training.setup
from allrounder.nn.mixing import MIXES
from allrounder.recipe.recipe import Recipe
from tests.distributed.ranks import RankResults, run_ranks
from tests.distributed.training_scenarios import DIVIDED, L2, SWAPPED, fixed_placement, train_placed
from tests.support.trainings import HEAD, LINF, MIX, NATURAL, EndsAfter, go, recipe

RESUMED = ("outer", "chosen")
"""Rules whose ranks must agree about more than the weights of the learners."""
SHARED = {"linf": (0, 1), "natural": (1,), "l2": (0,)}


def trio(kind: str) -> Recipe:
    """Three learners with exchanges and validations, mixed by a rule; the text has what the rule uses."""
    rule = MIXES[kind]
    dropped = [key for key, used in (("decay", rule.uses_decay), ("shares", rule.uses_shares)) if not used]
    lines = MIX.replace("curve = 0.6", DIVIDED).splitlines()
    kept = [line for line in lines if not line.startswith(tuple(dropped))]
    mix = "\n".join([*kept, f'rule = {{ kind = "{kind}" }}'])
    return recipe(HEAD + LINF + NATURAL + L2 + mix)


def resume_placed(value: Recipe, out: Path, _: int) -> None:
    allrounder.training.setup.place_learners = fixed_placement(SWAPPED)
    go(value, out, resume=True)


def run_all(out: Path) -> dict[str, RankResults]:
    """Train every rule in one process; in two of which the second has the first and the last learner; those
    with a memory also in one, interrupted, and then in two; one that reads gradients in two that share a
    learner."""
    results: dict[str, RankResults] = {}
    for kind in MIXES:
        go(trio(kind), out / f"{kind} serial")
        train = partial(train_placed, trio(kind), out / kind, SWAPPED)
        results[kind] = run_ranks(2, train, out / "errors" / kind)
    for kind in RESUMED:
        name = f"{kind} resumed"
        with suppress(KeyError):
            go(trio(kind), out / name, progress=EndsAfter(5))
        results[name] = run_ranks(2, partial(resume_placed, trio(kind), out / name), out / "errors" / name)
    shared = partial(train_placed, trio("fisher"), out / "fisher shared", SHARED)
    results["fisher shared"] = run_ranks(2, shared, out / "errors" / "fisher shared")
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    (folder / "results.json").write_text(json.dumps(run_all(folder)))
