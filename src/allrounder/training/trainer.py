"""Training from beginning to end: the loop, which does not know which method it is running."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

from allrounder.data.base import Data
from allrounder.distributed import World
from allrounder.errors import Interrupted
from allrounder.recipe.lint import advice
from allrounder.recipe.recipe import Recipe
from allrounder.system.progress import Progress, Silent
from allrounder.system.signals import stop_on_signals
from allrounder.training.pipelines import Stage, perform
from allrounder.training.run import Run
from allrounder.training.setup import begun, check_alone, identity, with_given
from allrounder.training.training import Training


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
    recipe = with_given(recipe, model, data)
    with World.opened(world) as world:
        progress = progress if progress is not None and world.chief else Silent()
        check_alone(recipe, world)
        recipe.compute.check(world.device)
        world.agree("the recipe", identity(recipe))
        run, data = begun(recipe, Path(out), resume or world.restarts > 0, model, data, world)
        finished = world.meet("the run folder", run.finished if world.chief else None)[0]
        if finished:
            progress.say(f"{run.folder}: already finished")
            return run
        if recipe.program is None:
            _train(recipe, run, model, data, world, progress)
            return run

        def phase(recipe: Recipe, out: Path, data: Data, progress: Progress) -> Run:
            run, _ = begun(recipe, out, True, model, data, world)
            finished = world.meet(f"the folder of {out.name}", run.finished if world.chief else None)[0]
            signal = None if finished else _train(recipe, run, model, data, world, progress)
            # It came while the last weights were written.
            for told in filter(None, world.meet(f"the end of {out.name}", signal)):
                raise Interrupted(f"{run.folder}: {told} after its end; continue with --resume")
            return run

        with run.locked() if world.chief else nullcontext():
            for line in run.record_session(world.device) if world.chief else ():
                progress.say(line)
            data = recipe.with_extra(data or recipe.read_data())
            perform(Stage(recipe, run, model, data, world, progress, phase))
        return run


def _train(
    recipe: Recipe,
    run: Run,
    model: Callable[[], nn.Module] | None,
    data: Data | None,
    world: World,
    progress: Progress,
) -> str | None:
    """Take the steps that a plain recipe's run still lacks; the signal that came after the last one."""
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
                world.meet("the stop", None)  # who leaves earlier cuts the lines that others still use
                raise Interrupted(f"{run.folder}: {reason} after step {t}; continue with --resume")
        training.finish()
        return stop.signal


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
