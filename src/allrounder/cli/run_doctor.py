"""The work of `allrounder doctor`: the preflight, and the check for masked gradients."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from allrounder.cli.echo import echo
from allrounder.cli.evaluate import DoctorCommand
from allrounder.cli.target import EvalTarget, load_target
from allrounder.evaluation.evaluate import EvalOptions, default_batch_size, evaluate, select_rows
from allrounder.evaluation.preflight import doctor
from allrounder.evaluation.probes import Probe
from allrounder.report.reliability import flag_masking
from allrounder.types import device_and_dtype

PREFLIGHT_IMAGES, MASKING_IMAGES = 64, 100
"""Images of the preflight, and images from which the check for masked gradients chooses."""
MASKING_ATTACK = "pgd-20"
"""The attack that FAB and Square are compared with."""


def run_doctor(command: DoctorCommand) -> bool:
    """Print all findings; return whether none of them is severe."""
    target = load_target(command)
    try:
        probes = [Probe.of(MASKING_ATTACK, threat) for threat in command.threat or target.threats]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--threat") from None
    split = target.data.test
    rows = select_rows(split, PREFLIGHT_IMAGES, 0)
    x, y = split.fetch(rows).to(*device_and_dtype(target.model)), split.labels[rows]
    size = default_batch_size(target.model, split)
    diagnosis = doctor(target.model, x, y, classes=len(target.data.classes), batch_size=size)
    echo(f"{target.name}: {len(rows)} images, {diagnosis.classes or 'unknown'} classes")
    for line in diagnosis.lines():
        echo(line)
    if diagnosis.ok:
        echo(_describe_masking(target, probes))
    return diagnosis.ok


def _describe_masking(target: EvalTarget, probes: Sequence[Probe]) -> str:
    """The result of the check for masked gradients, one line per threat."""
    if not probes:
        return "masked gradients: not checked, no threat is known; give one, such as --threat Linf:8/255"
    outcome = evaluate(
        target.model, target.data, probes=probes, n=MASKING_IMAGES, options=EvalOptions(check="note")
    )
    checked = outcome.facts.get("masking", {})
    if not checked:
        reason = "the network is random, or too few images are classified correctly"
        return f"masked gradients: not checked, {reason}"
    lines: list[str] = []
    for threat, counts in checked.items():
        found = f"fool it on {counts['fooled']} of {counts['images']} images that {MASKING_ATTACK} does not"
        nothing = f"{threat}: no masked gradients found; a short FAB and Square {found}"
        flags = [f"note: masked-gradients: {flag}" for flag in flag_masking({threat: counts})]
        lines += flags or [nothing]
    return "\n".join(lines)
