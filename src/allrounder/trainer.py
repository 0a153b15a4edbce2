"""Training from beginning to end: the loop, which does not know which method it is running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import nn

from allrounder.advice import advice
from allrounder.data import Given as GivenData
from allrounder.data.base import Data
from allrounder.errors import Interrupted
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
    progress, world = progress or Silent(), world or World.from_env()
    recipe = _with_given(recipe, model, data)
    recipe.compute.check(world.device)
    run, data = _begin(recipe, Path(out), resume, model, data)
    if run.finished:
        progress.say(f"{run.folder}: already finished")
        return run
    if recipe.program is None:
        return _train(recipe, run, model, data, world, progress)

    def phase(recipe: Recipe, out: Path, data: Data, progress: Progress) -> Run:
        run, _ = _begin(recipe, out, True, model, data)
        return run if run.finished else _train(recipe, run, model, data, world, progress)

    with run.locked():
        for line in run.record_session(world.device):
            progress.say(line)
        data = recipe.with_extra(data or recipe.read_data())
        perform(Stage(recipe, run, model, data, world, progress, phase))
    return run


def _begin(
    recipe: Recipe, out: Path, resume: bool, model: Callable[[], nn.Module] | None, data: Data | None
) -> tuple[Run, Data | None]:
    """The run folder, and the data if it was read."""
    if not out.exists():  # what cannot be run leaves no folder behind
        data = recipe.with_extra(data or recipe.read_data())
        recipe.batches(split_off(recipe, data)[0], data.extra)
        check(recipe, data)
        starting_network(recipe, model, data, members_of(recipe.init, out.parent))
    return Run.begin(out, recipe, resume=resume), data


def _train(
    recipe: Recipe,
    run: Run,
    model: Callable[[], nn.Module] | None,
    data: Data | None,
    world: World,
    progress: Progress,
) -> Run:
    """Take the steps that a plain recipe's run still lacks."""
    with run.locked(), stop_on_signals() as stop:
        data = recipe.with_extra(data or recipe.read_data())
        training = Training(recipe, run, model, data, world)
        done = training.resume()
        for line in [
            *run.record_session(world.device),
            *recipe.compute.check(world.device),
            *advice(recipe, training.clock),
        ]:
            progress.say(line)
        progress.begin(training.clock.total, done)
        for t in range(done + 1, training.clock.total + 1):
            training.step(t)
            progress.step(t)
            if stop.signal is not None:
                training.save(t)
                raise Interrupted(f"{run.folder}: {stop.signal} after step {t}; continue with --resume")
        training.finish()
    return run


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
