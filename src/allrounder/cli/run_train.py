"""The work of `allrounder train`: train in this process or start workers, and print the best result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from allrounder.cli.display import JobBar, ProgressBars
from allrounder.cli.echo import echo
from allrounder.distributed import default_threads, launch_processes
from allrounder.recipe.recipe import Recipe
from allrounder.training.run import Run
from allrounder.training.trainer import train


def run_train(
    source: str, overrides: Sequence[str], out: Path | None, resume: bool, threads: int | None, workers: int
) -> int:
    """Train a recipe; return the exit code."""
    recipe = Recipe.load(source, overrides)
    threads = threads or default_threads()
    name = recipe.name.replace("/", "-")
    folder = out or Path("runs") / f"{name}-{recipe.fingerprint()}"
    if workers > 1:
        options = [word for text in overrides for word in ("--set", text)] + ["--resume"] * resume
        words = ["train", source, "--out", str(folder), "--threads", str(threads), *options]
        return launch_processes(words, workers)
    torch.set_num_threads(threads)
    if os.environ.get("RANK", "0") != "0":  # only rank 0 prints
        train(recipe, folder, resume=resume)
        return 0
    with ProgressBars([name]) as bars:
        run = train(recipe, folder, resume=resume, progress=JobBar(bars, name))
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
