"""The work of `allrounder eval`: load the target, run the probes, write the tables, print the numbers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import cast

import torch
import typer
from torch import nn

from allrounder.cli.display import EvaluationBars, print_numbers
from allrounder.cli.echo import echo, echo_note
from allrounder.cli.evaluate import EvalCommand
from allrounder.cli.target import EvalTarget, Source, load_source, load_target_on_all_ranks
from allrounder.distributed import World
from allrounder.errors import RunError
from allrounder.evaluation.assemble import read_outcome
from allrounder.evaluation.evaluate import BUDGETS, BudgetName, EvalOptions, evaluate, select_rows
from allrounder.evaluation.probes import Probe, probe_stages, select_probes, suite
from allrounder.evaluation.shifts import parse_shifts
from allrounder.models.external import module_folder
from allrounder.report.class_tables import CLASS_TABLES
from allrounder.report.footnotes import footnotes
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.report.render import render
from allrounder.report.statistics import format_percent
from allrounder.report.tables import ResultTable, column_title, format_rows, to_latex, to_markdown
from allrounder.system.files import write_text
from allrounder.types import device_and_dtype

MIN_IMAGES_PER_WORKER = 16
"""Images that make another process worthwhile."""
TRANSFER_ATTACK = "pgd-20"
"""The default attack on the source; one that stops at its first success barely fools the source."""


def run_evaluate(command: EvalCommand) -> None:
    """Evaluate, then write and print the results; under torchrun, on every rank."""
    with World.open() as world:
        target = load_target_on_all_ranks(world, command)
        source = load_source(command, target.data)
        probes = _select_probes(command, target, source)
        folder = command.folder or target.folder
        if command.keep_examples and folder is None:
            raise typer.BadParameter(
                "there is no folder to save in; give --out", param_hint="--save-examples"
            )
        images = len(select_rows(target.data.test, command.n or BUDGETS[command.budget], command.seed))
        for spec in filter(None, (command.source_model, command.model)):
            # Worker processes import the module of a factory from here.
            sys.path.insert(0, str(module_folder(spec)))
        workers = command.workers or (1 if world.size > 1 else None)
        workers = workers or default_processes(target.model, probes, images, command.ood)
        if workers == 1 and device_and_dtype(target.model)[0].type == "cpu":
            torch.set_num_threads(1)  # as worker processes do, so that their number does not change results
        earlier = read_outcome(folder / OUTCOME_FILE) if folder and world.is_main else None
        with EvaluationBars(workers, quiet=not world.is_main) as bars, bars.print_warnings():
            ranks = f", in {world.size} processes; the bar is that of rank 0" if world.size > 1 else ""
            bars.log(f"{target.name}: {images} images of {len(target.data.test)}{ranks}")
            outcome = evaluate(
                target.model,
                target.data,
                probes=probes,
                ood=command.ood,
                n=command.n,
                budget=cast(BudgetName, command.budget),
                seed=command.seed,
                out=folder,
                workers=workers,
                progress=bars.update_attack,
                options=EvalOptions(
                    batch_size=command.batch_size,
                    check="note" if command.force else "stop",
                    check_masking=not command.no_masking_check,
                    keep_examples=command.keep_examples,
                    about=target.about,
                    ood_data=command.ood_data,
                    world=world,
                ),
            )
        if not world.is_main:
            return
        stored = outcome if folder is None else read_outcome(folder / OUTCOME_FILE) or outcome
        if folder is not None:
            _write_tables(folder, target.name, stored)
        _print_outcome(outcome, target.name, command.style)
        for name in command.tables:
            for table in CLASS_TABLES[name](outcome, target.data.classes):
                _print_class_table(table, command.style)
        if folder is not None:
            _print_files(folder, earlier, stored, outcome)


def _select_probes(command: EvalCommand, target: EvalTarget, source: Source | None) -> tuple[Probe, ...]:
    """Select a suite or attacks, under the threats of the options or those of the run.

    If the options name corrupted images and no attack, there are no probes.
    """
    attacks = command.attack or ()
    try:
        if parse_shifts(command.ood) and not (command.suite or command.threat or attacks):
            return ()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ood") from None
    against = list(command.threat or target.threats)
    if not against:
        raise typer.BadParameter(f"{target.name}: no threat is known; give one, such as --threat Linf:8/255")
    if source is not None and not (command.suite or attacks):
        attacks = (TRANSFER_ATTACK,)
    try:
        columns = suite(command.suite, against) if command.suite is not None else ()
        probes = select_probes(columns, threats=against if attacks or not columns else (), attacks=attacks)
        if command.eot is not None:
            probes = tuple(probe.with_eot(command.eot) for probe in probes)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if source is None:
        return probes
    return tuple(probe.transfer_from(source.model, source.name) for probe in probes)


def default_processes(model: nn.Module, probes: tuple[Probe, ...], images: int, ood: str = "") -> int:
    """One process per core if the probes search or the images are corrupted, because then starting processes
    pays off; one process on an accelerator."""
    searches = any(stage.attack.stops_at_success for probe in probes for stage in probe_stages(probe))
    if not (searches or ood) or device_and_dtype(model)[0].type != "cpu":
        return 1
    return max(1, min(len(os.sched_getaffinity(0)), images // MIN_IMAGES_PER_WORKER))


def _write_tables(folder: Path, name: str, outcome: Outcome) -> None:
    """Write the table of an evaluation, and those of corruptions and perturbations if there are any."""
    write_text(folder / "table.md", render({name: outcome}))
    for kind, metrics in (("corruptions", outcome.corruptions()), ("perturbations", outcome.perturbations())):
        if metrics:
            write_text(folder / f"{kind}.md", render({name: outcome}, kind))
        else:
            (folder / f"{kind}.md").unlink(missing_ok=True)  # written for other images


def _print_files(folder: Path, earlier: Outcome | None, stored: Outcome, printed: Outcome) -> None:
    """Print where the results are, and how they differ from what was printed and from earlier ones."""
    if more := len(stored.predicted) - len(printed.predicted):
        echo_note(f"{OUTCOME_FILE} and table.md also hold {more} probes of earlier calls")
    if earlier is not None and (gone := len(earlier.predicted.keys() - stored.predicted.keys())):
        same_rows = earlier.facts["rows"] == stored.facts["rows"]
        reason = "of another set" if same_rows else f"on {len(earlier)} images"
        kept = "their results are stored, and the same call as before prints them again"
        echo_note(f"table.md no longer shows {gone} probes {reason}; {kept}")
    echo_note(f"results: {folder}/")


def _print_outcome(outcome: Outcome, name: str, style: str | None) -> None:
    """Print the accuracies with their intervals, the accuracy after every stage, and the footnotes."""
    if style is not None:
        about = {"name": name, **outcome.facts.get("robustbench", {})}
        try:
            echo(render({name: outcome}, style, about=about))
        except ValueError as error:
            call = f'Outcome.load(FOLDER / "{OUTCOME_FILE}").table("{style}", about={{...}})'
            raise RunError(f"{error}; in Python, {call} takes them") from None
        return
    rows: list[tuple[str, str, str]] = []
    for column in outcome.columns():
        low, high = (format_percent(end) for end in outcome.interval(*column))
        rows.append((column_title(column), format_percent(outcome.accuracy(*column)), f"{low} - {high}"))
    print_numbers(("percent correct", "accuracy", "95% interval"), rows)
    for probe in outcome.stage:
        stages = outcome.facts["stages"].get(probe, ())
        if len(stages) > 1:
            accuracies = zip(stages, outcome.accuracy_by_stage(probe), strict=True)
            text = ", ".join(f"{format_percent(accuracy)} after {stage}" for stage, accuracy in accuracies)
            echo(f"{probe}: {text}")
    for finding in outcome.facts.get("findings", ()):
        echo(f"preflight: {finding}")
    for line in footnotes({name: outcome}):
        echo(line)


def _print_class_table(table: ResultTable, style: str | None) -> None:
    """Print a table of single classes in a style, or for a screen, with long titles on several lines."""
    echo("")
    if style is not None:
        echo((to_markdown if style == "markdown" else to_latex)(table))
        return
    header = [title.replace("@", "\n").replace(" ", "\n") for title in table.header]
    print_numbers(header, format_rows(table, "text"))
    for line in table.notes:
        echo(line)
