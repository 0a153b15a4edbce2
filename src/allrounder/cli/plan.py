"""The command that says beforehand what a training takes: plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from allrounder.cli.display import Bars, Watch, out, say
from allrounder.recipe.recipe import Recipe
from allrounder.training.costs import Plan, SuiteCost
from allrounder.training.planning import plan


def show_plan(source: str, sets: Sequence[str], steps: int) -> None:
    """Measure a recipe and print what it takes."""
    recipe = Recipe.load(source, sets)
    name = recipe.name.replace("/", "-")
    trainings, total = recipe.trainings(), 0.0
    for phase, training in trainings.items():
        with Bars(out, [name]) as bars:
            found = plan(training, steps=steps, progress=Watch(bars, name))
        if phase:
            say(f"training {phase}:")
        for line in lines(found, datetime.now()):
            say(line)
        total += found.seconds
    if len(trainings) > 1:
        say(f"all {len(trainings)} trainings: {duration(total)}, without what a program does between them")


def lines(found: Plan, now: datetime) -> Iterator[str]:
    """A plan in words."""
    yield from (f"note: {remark}" for remark in found.remarks)
    for learner in found.learners:
        yield (
            f"learner {learner.name}: {learner.passes} forward/backward passes a step, "
            f"{duration(learner.seconds)} a step"
        )
        yield (
            f"  holds {size(learner.bytes)}: weights {size(learner.weights)}, momentum "
            f"{size(learner.momentum)}, average {size(learner.average)}, memory {size(learner.memory)}, "
            f"part {size(learner.part)}"
        )
    yield f"step: {duration(found.step_seconds)}, {duration(found.fetch)} of it for the batch"
    yield f"epoch: {duration(found.epoch_seconds)} for {found.steps} steps"
    checked = f"{found.validations} validations of at most {duration(found.validation.seconds)} each"
    saved = f"{found.checkpoints} checkpoints"
    end = (now + timedelta(seconds=found.seconds)).strftime("%Y-%m-%d %H:%M")
    yield f"training: {duration(found.seconds)} for {found.epochs} epochs, {checked}, {saved}"
    yield f"  begun now it ends at {end}"
    yield f"memory: {size(found.memory)} at the peak, {size(found.activations)} of it activations and scratch"
    yield f"checkpoint: {size(found.checkpoint)} on disk, {duration(found.checkpoint_seconds)} to write"
    meetings = f"{found.exchanges} exchanges and {found.validations} validations"
    yield f"wire, where learners sit apart: {size(found.wire)} each for {meetings}"
    yield f"evaluation: {_suite(found.evaluation)}"


def _suite(cost: SuiteCost) -> str:
    if cost.passes.backwards == 0:
        return f"the recipe names no probes; natural accuracy takes {duration(cost.seconds)}"
    per_image = f"{cost.passes} forward/backward passes for each of {cost.images} images"
    return f"at most {duration(cost.seconds)}, {per_image}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: int) -> str:
    """Bytes as people say them."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.3g} {unit}"
    return f"{count} bytes"
