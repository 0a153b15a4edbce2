"""How many images each stage of a cascade such as AutoAttack still fools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allrounder.report.chart import AnyChart, Axis, Chart, Series
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.base import FigureKind, chart_name
from allrounder.report.figures.judged import Judged, attack_title, judge_entries, threat_of
from allrounder.report.outcome import NATURAL, Outcome


def build_stages(results: Results) -> list[AnyChart]:
    """Plot one chart for every probe with several stages of the attack that ranks."""
    judged = judge_entries(results.evaluated)
    if judged is None:
        return []
    charts = [_chart(judged, probe) for probe in judged.probes]
    return [chart for chart in charts if chart is not None]


def _chart(judged: Judged, probe: str) -> Chart | None:
    series = [series for entry in judged.entries if (series := _row_series(entry, probe)) is not None]
    if not series:
        return None
    threat = threat_of(probe)
    about = (
        "Accuracy on natural images and after each stage, from left to right. Black-box and minimum-distance "
        "stages should find little after gradient stages; if they find much, gradients may be masked."
    )
    return Chart(
        chart_name("stages", probe),
        f"Accuracy after each stage of {judged.attack}: {threat}",
        f"{about} {judged.notes([probe])}".strip(),
        Axis("stage"),
        Axis(f"accuracy, {threat} ({attack_title(judged.attack)})", percent=True),
        tuple(series),
    )


def _row_series(entry: Entry, probe: str) -> Series | None:
    """The mean over the seeds with the stages of the first one; None if there is one stage only."""
    stages = [_stages(outcome, probe) for outcome in entry.outcomes.values()]
    if len(stages[0]) < 2:
        return None
    outcomes = [o for o, names in zip(entry.outcomes.values(), stages, strict=True) if names == stages[0]]
    accuracies = [[outcome.accuracy(NATURAL), *outcome.accuracy_by_stage(probe)] for outcome in outcomes]
    y = 100 * np.mean(accuracies, axis=0)
    return Series(entry.name, (NATURAL, *stages[0]), tuple(y.tolist()), row=entry.name)


def _stages(outcome: Outcome, probe: str) -> Sequence[str]:
    """The names of the stages of a probe; empty if it has none."""
    return outcome.facts.get("stages", {}).get(probe, ()) if probe in outcome.stage else ()


STAGES = FigureKind(
    "Stages",
    "Accuracy after each stage of the attack that ranks.",
    build_stages,
    "no attack that ranks has several stages; evaluate with --attack aa",
)
