"""Training from beginning to end: the loop, which does not know which method it is running."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from allrounder.advice import advice
from allrounder.data import Given as GivenData
from allrounder.data.base import Data
from allrounder.errors import Interrupted, WorldError
from allrounder.models import Given as GivenModel
from allrounder.programs import Stage, check, perform
from allrounder.progress import Progress, Silent
from allrounder.recipe import Recipe
from allrounder.runs import Run
from allrounder.selection import split_off
from allrounder.starting import members_of, starting_network
from allrounder.stopping import stop_on_signals
from allrounder.training import Training
from allrounder.world import World


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    model: Callable[[], nn.Module] | None = None,
    data: Data | None = None,
    world: World | None = None,
    progress: Progress | None = None,
) -> Run:
    """Train a recipe into a run folder, or go on with the one that is there.

    `model` and `data` replace the recipe's; they are recorded by name and must be given again to resume.
    """
    recipe = _with_given(recipe, model, data)
    with World.opened(world) as world:
        progress = progress if progress is not None and world.chief else Silent()
        _check_alone(recipe, world)
        recipe.compute.check(world.device)
        world.agree("the recipe", _identity(recipe))
        run, data = _begun(recipe, Path(out), resume or world.restarts > 0, model, data, world)
        finished = world.meet("the run folder", run.finished if world.chief else None)[0]
        if finished:
            progress.say(f"{run.folder}: already finished")
            return run
        if recipe.program is None:
            return _train(recipe, run, model, data, world, progress)

        def phase(recipe: Recipe, out: Path, data: Data, progress: Progress) -> Run:
            run, _ = _begun(recipe, out, True, model, data, world)
            return run if run.finished else _train(recipe, run, model, data, world, progress)

        with run.locked():
            for line in run.record_session(world.device):
                progress.say(line)
            data = recipe.with_extra(data or recipe.read_data())
            perform(Stage(recipe, run, model, data, world, progress, phase))
        return run


def _check_alone(recipe: Recipe, world: World) -> None:
    """Raise where several processes are of no use to a recipe."""
    several = recipe.program is not None or any(task.update.members for task in recipe.tasks)
    if world.size > 1 and several:
        raise WorldError(
            f"{recipe.name}: is made of several runs, but was launched in {world.size} processes; "
            "train it without --workers or torchrun"
        )


def _train(
    recipe: Recipe,
    run: Run,
    model: Callable[[], nn.Module] | None,
    data: Data | None,
    world: World,
    progress: Progress,
) -> Run:
    """Take the steps that a plain recipe's run still lacks."""
    with run.locked() if world.chief else nullcontext(), stop_on_signals() as stop:
        data = recipe.with_extra(data or recipe.read_data())
        training = Training(recipe, run, model, data, world)
        done = training.resume()
        for line in _opening(training) if world.chief else ():
            progress.say(line)
        progress.begin(training.clock.total, done)
        for t in range(done + 1, training.clock.total + 1):
            training.step(t)
            progress.step(t)
            reason = world.stops(t, stop.signal)
            if reason is not None:
                training.save(t)
                raise Interrupted(f"{run.folder}: {reason} after step {t}; continue with --resume")
        training.finish()
    return run


def _begun(
    recipe: Recipe,
    out: Path,
    resume: bool,
    model: Callable[[], nn.Module] | None,
    data: Data | None,
    world: World,
) -> tuple[Run, Data | None]:
    """The run folder, which rank 0 alone makes, and the data where it had to be read for that."""
    if not world.chief:
        return Run(out, recipe), data
    if not out.exists():  # what cannot be run leaves no folder behind
        data = recipe.with_extra(data or recipe.read_data())
        recipe.batches(split_off(recipe, data)[0], data.extra)
        check(recipe, data)
        starting_network(recipe, model, data, members_of(recipe.init, out.parent))
    return Run.begin(out, recipe, resume=resume), data


def _identity(recipe: Recipe) -> dict[str, str | int]:
    """What all ranks of a run must have in common."""
    return {
        "recipe": f"{recipe.name} {recipe.fingerprint()}".strip(),
        "allrounder": version("allrounder"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _opening(training: Training) -> list[str]:
    """Record the session; what to say of it, of the recipe, and of who trains what."""
    world, ranks = training.world, training.placement.ranks
    several = {"processes": world.size, "ranks": {name: list(of) for name, of in ranks.items()}}
    lines = training.run.record_session(world.device, **(several if world.size > 1 else {}))
    if world.size > 1:
        seats = ", ".join(f"{name} on {', '.join(map(str, of))}" for name, of in ranks.items())
        lines.append(f"{world.size} processes of {torch.get_num_threads()} threads: {seats}")
    if training.placement.followers():
        lines.append(
            "ranks share a learner: its weights are those of one rank up to rounding, not to the bit"
        )
    if idle := training.placement.idle(world.size):
        lines.append(f"ranks {', '.join(map(str, idle))} have nothing to do: no learner can share more ranks")
    lines += training.recipe.compute.check(world.device)
    return [*lines, *advice(training.recipe, training.clock)]


def _with_given(recipe: Recipe, model: Callable[[], nn.Module] | None, data: Data | None) -> Recipe:
    """Record what was handed over from Python by name."""
    if model is not None:
        name = f"{getattr(model, '__module__', '')}.{getattr(model, '__qualname__', type(model).__name__)}"
        recipe = replace(recipe, model=GivenModel(name=name))
    if data is None:
        return recipe
    given = GivenData(name=data.name)
    extra = recipe.extra if data.extra is None or recipe.extra is None else replace(recipe.extra, data=given)
    return replace(recipe, data=given, extra=extra)
