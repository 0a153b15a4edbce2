"""The work of `allrounder train`, `allrounder plan` and `allrounder show`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path

import torch

from allrounder.cli.display import JobBar, ProgressBars, format_bytes, format_count
from allrounder.cli.echo import QUIET, echo, echo_note
from allrounder.cli.verbs import EXIT_INTERRUPTED
from allrounder.config.time import Clock
from allrounder.distributed import default_threads, launch_processes
from allrounder.errors import RecipeError
from allrounder.recipe.inherit import Chain
from allrounder.recipe.init import STAGES_DIR
from allrounder.recipe.lint import shortening_warnings, warnings_for
from allrounder.recipe.recipe import Recipe
from allrounder.report.curves import format_accuracies
from allrounder.system.progress_bar import format_duration
from allrounder.training.data import TrainingData
from allrounder.training.disk_space import find_space_problem
from allrounder.training.pass_times import SuiteCost
from allrounder.training.planning import Plan, load_images_or_noise, refine_plan
from allrounder.training.run import Run
from allrounder.training.train import train
from allrounder.types import Passes


def run_train(
    source: str, overrides: Sequence[str], out: Path | None, resume: bool, threads: int | None, workers: int
) -> int:
    """Train a recipe in this process, or start workers; print the best result and return the exit code."""
    recipe = Recipe.load(source, overrides)
    threads = threads or default_threads()
    folder = out or name_run_folder(recipe)
    if workers > 1:
        options = [word for text in overrides for word in ("--set", text)] + ["--resume"] * resume
        options += ["--quiet"] * QUIET.get()
        words = ["train", source, "--out", str(folder), "--threads", str(threads), *options]
        return launch_processes(words, workers)
    torch.set_num_threads(threads)
    is_main = os.environ.get("RANK", "0") == "0"  # only rank 0 prints
    full_epochs = Chain.read(source).largest_epochs()
    if is_main and recipe.epochs < full_epochs:
        with suppress(RecipeError):  # the training reports it
            for warning in shortening_warnings(recipe, TrainingData.load(recipe).clock, full_epochs):
                echo_note(f"note: {warning}")
    run = train(recipe, folder, resume=resume, progress=not QUIET.get())
    if is_main:
        _print_run(run)
    return 0


def name_run_folder(recipe: Recipe) -> Path:
    """Return the run folder of a training if the user names none."""
    return Path("runs") / f"{recipe.name.replace('/', '-')}-{recipe.fingerprint()}"


def run_show(source: str, overrides: Sequence[str]) -> None:
    """Print a resolved recipe, its files, and warnings; a comment instead if its data cannot be read."""
    recipe = Recipe.load(source, overrides)
    chain = Chain.read(source)
    echo_note(f"# {' '.join(recipe.name.split())}, fingerprint {recipe.fingerprint()}")
    echo_note(f"# from: {', '.join(layer.label for layer in chain.layers)}")
    if recipe.pipeline is not None:
        for name, stage in recipe.stage_recipes().items():
            echo_note(
                f"# stage {name}: {stage.epochs} epochs, {stage.passes()} forward/backward passes per step"
            )
    try:
        data, remarks = load_images_or_noise(recipe, None)
    except RecipeError as error:
        echo_note(f"# number of steps unknown, exchanges not checked: {' '.join(str(error).split())}")
    else:
        for remark in remarks:
            echo_note(f"# sizes as published: {' '.join(remark.partition(', because ')[2].split())}")
        images = TrainingData.split(recipe, data)
        first, *notes = images.describe(recipe)
        echo_note(f"# {first}; {images.clock.total_steps} steps in total")
        notes += warnings_for(recipe, images.clock)
        notes += shortening_warnings(recipe, images.clock, chain.largest_epochs())
        for note in notes:
            echo_note(f"# note: {note}")
    echo(recipe.dumps().rstrip("\n"))


def _print_run(run: Run) -> None:
    events = [event for event in run.metrics() if event["event"] == "validation"]
    if events:
        best = max(events, key=lambda event: event["score"])
        images = "the TEST set" if best["selected_on"] == "test" else "validation images"
        place = f"step {best['t']}, epoch {best['epoch']}"
        echo(f"best global weights: {place}, {format_accuracies(best)} (selected on {images})")
    echo(f"run folder: {run.folder}")


def run_plan(source: str, overrides: Sequence[str], steps: int | None) -> int:
    """Print an estimate of every stage of a recipe after a few seconds, then a plan from measured steps, or
    the best plan so far after an interrupt; return the exit code."""
    recipe = Recipe.load(source, overrides)
    name = recipe.name.replace("/", "-")
    stages, folder = recipe.stage_recipes(), name_run_folder(recipe)
    folders = {stage: folder / STAGES_DIR / stage if stage else folder for stage in stages}
    plans: dict[str, Plan] = {}
    try:
        for stage, stage_recipe in stages.items():
            if stage:
                echo(f"stage {stage}:")
            with (
                ProgressBars([name]) as bars,
                closing(refine_plan(stage_recipe, steps=steps, progress=JobBar(bars, name))) as refined,
            ):
                for plan in refined:
                    if stage not in plans:
                        clock = Clock(plan.epochs, plan.steps_per_epoch, stage_recipe.pace)
                        notes = warnings_for(stage_recipe, clock)
                        if not stage:
                            full_epochs = Chain.read(source).largest_epochs()
                            notes += shortening_warnings(recipe, clock, full_epochs)
                        for line in (*(f"note: {note}" for note in notes), *describe_estimate(plan)):
                            bars.log(line)
                    plans[stage] = plan
            _print_plan(plans[stage], folders[stage])
    except KeyboardInterrupt:
        if not plans:
            raise
        stage, plan = list(plans.items())[-1]
        echo(f"interrupted; {_describe_progress(plan)}:")
        _print_plan(plan, folders[stage])
        return EXIT_INTERRUPTED
    if len(stages) > 1:
        total = sum(plan.seconds for plan in plans.values())
        echo(f"all {len(stages)} stages: {format_duration(total)}, without the work between them")
    return 0


def _print_plan(plan: Plan, folder: Path) -> None:
    for line in describe_plan(plan, datetime.now()):
        echo(line)
    if (problem := find_space_problem(folder, plan.disk)) is not None:
        advice = "free some space, or name a folder on another disk: allrounder train --out FOLDER"
        echo(f"warning: {problem}, so the training would not start; {advice}")


def _describe_progress(plan: Plan) -> str:
    names = [learner.name for learner in plan.learners if learner.measured]
    if not names:
        return "no step was measured, so this is the estimate"
    if len(names) < len(plan.learners):
        return f"only steps of {', '.join(names)} were measured"
    return "memory and the checkpoint were not measured" if plan.memory is None else "everything was measured"


def describe_estimate(plan: Plan) -> Iterator[str]:
    """Describe the estimate before any step is measured."""
    times = plan.pass_times
    network = f"{format_count(times.flops)}FLOP per image and forward pass"
    yield f"network: {network}; this machine computes {format_count(round(times.rate))}FLOP/s on it"
    passes = sum((learner.passes for learner in plan.learners), Passes())
    steps = plan.steps_per_epoch * plan.epochs
    per_step = (
        f"{passes} forward/backward passes per image and step, {format_duration(plan.step_seconds)} per step"
    )
    yield f"estimate: {format_duration(plan.seconds)} for {plan.epochs} epochs, {steps} steps ({per_step})"
    yield "now measuring steps; Ctrl-C prints what is known"


def describe_plan(plan: Plan, now: datetime) -> Iterator[str]:
    """Describe a plan line by line; what is not measured yet is left out, or marked as an estimate."""
    yield from (f"note: {remark}" for remark in plan.remarks)
    for learner in plan.learners:
        seconds = f"{format_duration(learner.seconds)} per step{'' if learner.measured else ' (estimated)'}"
        yield f"learner {learner.name}: {learner.passes} forward/backward passes per step, {seconds}"
        text = ", ".join(f"{name} {format_bytes(count)}" for name, count in learner.held.items())
        if learner.measured:
            yield f"  holds {format_bytes(learner.bytes)}: {text}"
    fetch = format_duration(plan.fetch_seconds)
    yield f"step: {format_duration(plan.step_seconds)}, of which {fetch} to fetch the batch"
    yield f"epoch: {format_duration(plan.epoch_seconds)} for {plan.steps_per_epoch} steps"
    validations = f"{plan.validations} validations of at most {format_duration(plan.validation.seconds)} each"
    duration = format_duration(plan.seconds)
    yield f"training: {duration} for {plan.epochs} epochs, {validations}, {plan.checkpoints} checkpoints"
    yield f"  started now, it would finish {_describe_end(now, plan.seconds)}"
    if plan.choice is not None:
        yield f"shares: chosen at {plan.exchanges} exchanges, each {_describe_suite(plan.choice)}"
    if plan.memory is not None and plan.activations is not None:
        activations = format_bytes(plan.activations)
        peak = format_bytes(plan.memory)
        yield f"memory: {peak} at the peak, of which {activations} activations and buffers"
    if plan.checkpoint is not None:
        write = format_duration(plan.checkpoint_seconds)
        largest = f"the run folder takes at least {format_bytes(plan.disk)}"
        yield f"checkpoint: {format_bytes(plan.checkpoint)} on disk, {write} to write; {largest}"
    times = f"{plan.exchanges} exchanges and {plan.validations} validations"
    comm = format_bytes(plan.comm_bytes)
    yield f"communication (one process per learner): {comm} per exchange or validation, {times}"
    if plan.refreshes:
        yield f"  and the weights of the teachers {plan.refreshes} times"
    yield f"evaluation: {_describe_suite(plan.evaluation)}"


def _describe_end(now: datetime, seconds: float) -> str:
    try:
        return f"at {now + timedelta(seconds=seconds):%Y-%m-%d %H:%M}"
    except OverflowError:
        return "after the year 9999"


def _describe_suite(cost: SuiteCost) -> str:
    if cost.passes.backwards == 0:
        return f"the recipe names no probes; natural accuracy takes {format_duration(cost.seconds)}"
    per_image = f"{cost.passes} forward/backward passes per image, {cost.images} images"
    return f"at most {format_duration(cost.seconds)}, {per_image}"
