"""How small the perturbations are that fool the networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allrounder.report.chart import AnyChart, Axis, Chart, Series
from allrounder.report.corruption_metrics import FloatArray
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.base import FigureKind, chart_name, join_names
from allrounder.report.figures.judged import attack_title, judge_entries, restrict
from allrounder.report.outcome import JUDGE, Outcome, parse_eps

BINS = 20
SMALLEST = "fab"
"""The attack that looks for the smallest perturbation; its variants begin with this name."""


def build_distances(results: Results) -> list[AnyChart]:
    """Plot one histogram for every probe of the attack that ranks, and for those of FAB."""
    judged = judge_entries(results.evaluated)
    outcomes = [outcome for entry in results.evaluated for outcome in entry.outcomes.values()]
    smallest = [name for outcome in outcomes for name in outcome.predicted if name.startswith(SMALLEST)]
    probes = dict.fromkeys([*(judged.probes if judged is not None else ()), *smallest])
    charts = [_chart(probe, results.evaluated) for probe in probes]
    return [chart for chart in charts if chart is not None]


def _chart(probe: str, entries: Sequence[Entry]) -> Chart | None:
    """The histogram of a probe; None if it has no distances, or finds none that are smaller than its budget,
    as attacks that use the whole budget do."""
    distances = {entry.name: _distances(entry, probe) for entry in entries}
    measured = {row: arrays for row, arrays in distances.items() if arrays}
    attack, _, threat = probe.partition("@")
    norm, _, budget = threat.partition(":")
    if not budget:
        return None
    edges = np.linspace(0, float(parse_eps(budget)), BINS + 1)
    series = [_row_series(row, arrays, edges) for row, arrays in measured.items()]
    if not any(any(row.y[: BINS - 1]) for row in series):
        return None
    about = (
        "Percent of images by the norm of the perturbation that fools the network. Images that are wrong "
        "without an attack, and those that stay robust, are only counted in the legend."
    )
    if not attack.startswith(SMALLEST):
        about += f" Most stages of {attack} use their whole budget; only FAB looks for less."
    if attack != JUDGE:
        about += f" Robust: {attack_title(attack)}."
    if missing := [row for row in distances if row not in measured]:
        about += f" Left out, without {probe}: {join_names(missing)}."
    return Chart(
        chart_name("distances", probe),
        f"Perturbations that fool the network: {attack} {threat}",
        about,
        Axis(f"{norm} norm of the perturbation"),
        Axis("images", percent=True),
        tuple(series),
    )


def _distances(entry: Entry, probe: str) -> list[FloatArray]:
    """The distances of a probe, one array for each seed that has them."""
    outcomes: Sequence[Outcome] = list(restrict(entry, [probe]).outcomes.values())
    return [outcome.distance[probe] for outcome in outcomes if probe in outcome.distance]


def _row_series(row: str, arrays: Sequence[FloatArray], edges: FloatArray) -> Series:
    """The steps of a histogram: the height over a bin begins at its left edge."""
    fooled = [distance[distance > 0] for distance in arrays]
    # Rounding may put the norm of a perturbation just above eps.
    histograms = [np.histogram(np.minimum(distance, edges[-1]), edges)[0] for distance in fooled]
    shares = [100 * counts / len(d) for counts, d in zip(histograms, arrays, strict=True)]
    heights = np.mean(shares, axis=0)
    wrong = 100 * float(np.mean([(distance == 0).mean() for distance in arrays]))
    robust = 100 * float(np.mean([np.isnan(distance).mean() for distance in arrays]))
    return Series(
        f"{row} ({wrong:.1f}% wrong, {robust:.1f}% robust)",
        tuple(edges.tolist()),
        (*heights.tolist(), float(heights[-1])),
        mark="steps",
        row=row,
    )


DISTANCES = FigureKind(
    "Distances",
    "The norms of the perturbations that fool the networks.",
    build_distances,
    "no attack looked for small perturbations; evaluate with --attack aa or --attack fab",
)
