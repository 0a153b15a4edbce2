"""The work of `allrounder train` and `allrounder plan`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import torch

from allrounder.cli.display import JobBar, ProgressBars, format_bytes
from allrounder.cli.echo import echo
from allrounder.distributed import default_threads, launch_processes
from allrounder.recipe.recipe import Recipe
from allrounder.system.progress_bar import format_duration
from allrounder.training.planning import Plan, SuiteCost, plan
from allrounder.training.run import Run
from allrounder.training.trainer import train


def run_train(
    source: str, overrides: Sequence[str], out: Path | None, resume: bool, threads: int | None, workers: int
) -> int:
    """Train a recipe in this process, or start workers; print the best result and return the exit code."""
    recipe = Recipe.load(source, overrides)
    threads = threads or default_threads()
    name = recipe.name.replace("/", "-")
    folder = out or Path("runs") / f"{name}-{recipe.fingerprint()}"
    if workers > 1:
        options = [word for text in overrides for word in ("--set", text)] + ["--resume"] * resume
        words = ["train", source, "--out", str(folder), "--threads", str(threads), *options]
        return launch_processes(words, workers)
    torch.set_num_threads(threads)
    run = train(recipe, folder, resume=resume)
    if os.environ.get("RANK", "0") == "0":  # only rank 0 prints
        _print_run(run)
    return 0


def _print_run(run: Run) -> None:
    events = [event for event in run.metrics() if event["event"] == "validation"]
    if events:
        best = max(events, key=lambda event: event["score"])
        accuracies = {"natural": best["natural"], **best["robust"]}
        text = ", ".join(f"{name} {100 * accuracy:.1f}%" for name, accuracy in accuracies.items())
        images = "the TEST set" if best["selected_on"] == "test" else "validation images"
        echo(f"best global weights: epoch {best['epoch']}, {text} (selected on {images})")
    echo(f"run folder: {run.folder}")


def run_plan(source: str, overrides: Sequence[str], steps: int) -> None:
    """Measure the stages of a recipe and print what they take."""
    recipe = Recipe.load(source, overrides)
    name = recipe.name.replace("/", "-")
    stages = recipe.stage_recipes()
    total = 0.0
    for stage, stage_recipe in stages.items():
        with ProgressBars([name]) as bars:
            measured = plan(stage_recipe, steps=steps, progress=JobBar(bars, name))
        if stage:
            echo(f"stage {stage}:")
        for line in describe_plan(measured, datetime.now()):
            echo(line)
        total += measured.seconds
    if len(stages) > 1:
        echo(f"all {len(stages)} stages: {format_duration(total)}, without the work between them")


def describe_plan(plan: Plan, now: datetime) -> Iterator[str]:
    """Describe a plan line by line."""
    yield from (f"note: {remark}" for remark in plan.remarks)
    for learner in plan.learners:
        seconds = format_duration(learner.seconds)
        yield f"learner {learner.name}: {learner.passes} forward/backward passes per step, {seconds} per step"
        text = ", ".join(f"{name} {format_bytes(count)}" for name, count in learner.held.items())
        yield f"  holds {format_bytes(learner.bytes)}: {text}"
    fetch = format_duration(plan.fetch_seconds)
    yield f"step: {format_duration(plan.step_seconds)}, of which {fetch} to fetch the batch"
    yield f"epoch: {format_duration(plan.epoch_seconds)} for {plan.steps_per_epoch} steps"
    validations = f"{plan.validations} validations of at most {format_duration(plan.validation.seconds)} each"
    duration = format_duration(plan.seconds)
    yield f"training: {duration} for {plan.epochs} epochs, {validations}, {plan.checkpoints} checkpoints"
    yield f"  started now, it would finish at {now + timedelta(seconds=plan.seconds):%Y-%m-%d %H:%M}"
    activations = format_bytes(plan.activations)
    yield f"memory: {format_bytes(plan.memory)} at the peak, of which {activations} activations and buffers"
    write = format_duration(plan.checkpoint_seconds)
    yield f"checkpoint: {format_bytes(plan.checkpoint)} on disk, {write} to write"
    times = f"{plan.exchanges} exchanges and {plan.validations} validations"
    comm = format_bytes(plan.comm_bytes)
    yield f"communication (one process per learner): {comm} per exchange or validation, {times}"
    yield f"evaluation: {_describe_suite(plan.evaluation)}"


def _describe_suite(cost: SuiteCost) -> str:
    if cost.passes.backwards == 0:
        return f"the recipe names no probes; natural accuracy takes {format_duration(cost.seconds)}"
    per_image = f"{cost.passes} forward/backward passes per image, {cost.images} images"
    return f"at most {format_duration(cost.seconds)}, {per_image}"
