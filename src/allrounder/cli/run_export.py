"""The work of `allrounder export`: read the options, write the folder, and print how it was checked."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import typer

from allrounder.cli.display import print_columns
from allrounder.cli.echo import echo, echo_note
from allrounder.cli.export import ATTACK, NUM_IMAGES, ExportCommand
from allrounder.config.toml import read_toml
from allrounder.errors import RecipeError
from allrounder.experiments.export import Exported, Format, export
from allrounder.experiments.export.robustbench import parse_threat_or_norm
from allrounder.recipe.recipe import Recipe
from allrounder.threats.threat import Threat
from allrounder.training.run import Run

Comparison = Mapping[str, Any]


def run_export(command: ExportCommand) -> None:
    """Export a network, and print its folder, its check and what to do next."""
    to = cast(Format, command.to)
    try:
        parse = Threat.parse if to == "onnx" else parse_threat_or_norm
        threats = [parse(threat) for threat in command.threat or ()]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--threat") from None
    if to == "onnx":
        echo_note("exporting, and comparing with torch on natural and adversarial images")
    exported = export(
        command.run,
        to,
        command.out,
        which=command.which,
        about=_read_about(command.about),
        threats=threats,
        attack=command.attack or ATTACK,
        n=command.n or NUM_IMAGES,
        data=command.data,
    )
    if to == "onnx":
        _print_comparison(exported.check)
    else:
        echo(f"logits of model.py: {exported.check['logits']} on {exported.check['images']} images")
    for note in exported.notes:
        echo_note(f"note: {note}")
    _print_next(exported, to, Run(command.run).recipe)


def _read_about(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return read_toml(file, str(file))
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="--about") from None


def _print_comparison(check: Mapping[str, Any]) -> None:
    """Print one row for the natural images, and one for those of every attack."""
    rows = {name: cast(Comparison, value) for name, value in check.items() if isinstance(value, Mapping)}
    n = check["images"]
    header = ("images", "largest difference", "same class", "correct, torch", "correct, ONNX Runtime")
    print_columns(
        header,
        [
            (
                name,
                f"{row['difference']:.1e}",
                *(f"{row[key]} of {n}" for key in ("agree", "correct_torch", "correct_onnx")),
            )
            for name, row in rows.items()
        ],
        numbers=range(1, len(header)),
    )
    echo_note(f"differences of logits, relative to the largest; at most {check['tolerance']:g} is accepted")


def _print_next(exported: Exported, to: Format, recipe: Recipe) -> None:
    """Print the folder, and the command that evaluates it; --data needs a name of the user's."""
    module = shlex.quote(str(exported.folder / "model.py"))
    threats = [str(probe.threat) for probe in recipe.probes] or ["Linf:8/255"]
    if to == "onnx":  # those of the comparison
        threats = [name.partition("@")[2] for name in exported.check if "@" in name]
    options = "".join(f" --threat {shlex.quote(threat)}" for threat in dict.fromkeys(threats))
    if to == "onnx":  # it has no gradients
        options = f" --attack square{options} --force"
    echo(f"written: {exported.folder}/")
    echo_note(f"evaluate it with: allrounder eval --model {module}:load --data NAME{options}")
