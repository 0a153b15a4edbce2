"""The work of `allrounder theory`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from allrounder.cli.display import ProgressBars, print_columns
from allrounder.cli.echo import echo
from allrounder.experiments.theory import list_claims, measure_theory, write_theory
from allrounder.system.progress import ProgressEvent


def run_theory(run: Path, solo: Sequence[Path], n: int) -> None:
    """Measure, print one row per claim, and write theory.json to the folder theory of the run."""
    with ProgressBars(["theory"]) as bars:

        def update(event: ProgressEvent) -> None:
            bars.update("theory", event.done, event.total, event.stage)

        theory = measure_theory(run, solo=solo, n=n, progress=update)
    echo(f"{theory.run}: {theory.steps} steps, {theory.images} test images")
    rows = [
        (claim.quantity, claim.value, claim.kind, claim.agrees, claim.claim) for claim in list_claims(theory)
    ]
    print_columns(("quantity", "value", "kind", "data agree", "claim"), rows)
    echo(f"numbers: {write_theory(theory, run / 'theory')}")
