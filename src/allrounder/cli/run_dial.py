"""The work of `allrounder dial`: measure mixtures, print their table, and save the chosen network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast, final

import typer

from allrounder.cli.dial import DialCommand
from allrounder.cli.display import ProgressBars, print_columns
from allrounder.cli.echo import echo, echo_note
from allrounder.config.fields import parse_fraction
from allrounder.errors import MissingLibraryError
from allrounder.experiments.combined_run import check_free
from allrounder.experiments.dial import Dial, dial
from allrounder.experiments.ensemble_run import dial_outputs
from allrounder.report.dial import DIAL_FILE, Criterion, DialPoint, check_goals, dial_chart, pick_point
from allrounder.report.statistics import format_percent
from allrounder.report.tables import format_rows
from allrounder.system.progress_bar import format_duration
from allrounder.training.recalibration import Statistics

FIGURE_FILE = "dial.svg"


@final
class PointBar:
    """Shows the measured points with an ETA: a bar on a terminal, else one line for each point."""

    def __init__(self, bars: ProgressBars):
        self.bars = bars
        self.total = 1
        self.done = 0
        self.measured = 0
        self.started = time.monotonic()

    def begin(self, total: int, done: int) -> None:
        """Set the number of points."""
        self.total, self.done = total, done

    def step(self, t: int) -> None:
        """Move the bar to point t."""
        self.done = t
        if self.bars.console.is_terminal:
            self.bars.update("points", t, self.total)

    def log(self, text: str) -> None:
        """Print the accuracies of a new point, and an ETA from the time that new points took so far."""
        self.measured += 1
        per_point = (time.monotonic() - self.started) / self.measured
        eta = format_duration(per_point * (self.total - self.done - 1))
        self.bars.log(f"point {self.done + 1}/{self.total}: {text}; ETA {eta}")


def run_dial(command: DialCommand) -> None:
    """Mix weights, or outputs."""
    if command.out is not None:
        check_free(command.out)
    if command.outputs:
        _mix_outputs(command)
        return
    by = cast(Criterion, command.by)
    goals = parse_numbers(command.pick or (), "--pick")
    check_goals(goals)  # before hours of measurements
    shares = parse_numbers(command.shares.split(","), "--shares") if command.shares is not None else None
    with ProgressBars(["points"]) as bars, bars.print_warnings():
        result = dial(
            *command.runs,
            points=command.points,
            also=() if shares is None else [shares],
            by=by,
            attack=command.attack,
            threats=command.threat or (),
            n=command.n,
            statistics=cast(Statistics, command.statistics or "adversarial"),
            workers=command.workers,
            progress=PointBar(bars),
        )
    _print_results(result, by)
    if goals:
        _save(result, pick_point(result.points, goals, by), command)
    elif shares is not None:
        _save(result, result.point_at(shares), command)


def _mix_outputs(command: DialCommand) -> None:
    """Fit an ensemble, print its accuracies beside those of its networks, and save it."""
    natural, robust = command.runs
    assert command.out is not None
    echo_note("fitting on held-out images; the best mixes are attacked as a whole")
    fitted = dial_outputs(
        natural,
        robust,
        command.out,
        attack=command.attack or "cw",
        threats=command.threat or (),
        tolerance=command.tolerance,
        n=command.n,
    )
    rows = {"natural alone": fitted.natural, "robust alone": fitted.robust, "ensemble": fitted.measured}
    header = ("network", "natural", *fitted.measured.robust, "worst", "networks")
    print_columns(
        header,
        [
            (name, *map(format_percent, (p.natural, *p.robust.values(), p.worst)), str(len(p.shares)))
            for name, p in rows.items()
        ],
        numbers=range(1, len(header)),
    )
    mix = fitted.ensemble.mix
    echo(f"alpha {mix.alpha:g}, scale {mix.scale:g}, power {mix.power:g}, shift {mix.shift:g}")
    echo_note(f"{fitted.attacked} mixes were attacked as a whole; a prediction costs that of both networks")
    _print_saved(command.out)


def parse_numbers(words: Sequence[str], option: str) -> dict[str, float]:
    """Parse NAME=NUMBER words; numbers may be fractions."""
    numbers: dict[str, float] = {}
    for word in words:
        name, sign, number = word.rpartition("=")
        name = name.strip()
        if not sign or not name or name in numbers:
            problem = f"{name} is given twice" if name in numbers else f"got {word!r}"
            raise typer.BadParameter(f"{problem}, expected NAME=NUMBER for each name", param_hint=option)
        try:
            numbers[name] = float(parse_fraction(number))
        except ValueError as error:
            raise typer.BadParameter(f"{word}: {error}", param_hint=option) from None
    return numbers


def _print_results(result: Dial, by: Criterion) -> None:
    """Print the table, and draw the front beside the other files."""
    table = result.table(by)
    print_columns(table.header, format_rows(table, "text"), numbers=range(1, len(table.header)))
    for note in table.notes:
        echo_note(note)
    files = f"{DIAL_FILE}, table.md"
    try:
        from allrounder.report import save_figure  # needs an optional library

        save_figure([dial_chart(result.points, by)], result.mixtures.folder / FIGURE_FILE)
        files += f", {FIGURE_FILE}"
    except MissingLibraryError as error:
        echo_note(f"no figure: {error}")
    echo_note(f"results: {result.mixtures.folder}/ ({files})")


def _save(result: Dial, chosen: DialPoint, command: DialCommand) -> None:
    numbers = {"natural": chosen.natural, **chosen.robust, "worst": chosen.worst, "mean": chosen.mean}
    echo(f"chosen: {chosen.name}: {', '.join(f'{key} {number:.2%}' for key, number in numbers.items())}")
    if command.out is None:
        echo_note("give --out FOLDER to save this network as a run")
        return
    result.export(chosen, command.out)
    _print_saved(command.out)


def _print_saved(folder: Path) -> None:
    echo_note(f"saved as a run: {folder}/ (evaluate it with: allrounder eval {folder})")
