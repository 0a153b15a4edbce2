"""Accuracy against the budget of an attack."""

from __future__ import annotations

from collections.abc import Sequence

from allrounder.report.chart import AnyChart, Axis, Chart, Series
from allrounder.report.corruption_metrics import parse_shift_id
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.base import FigureKind, chart_name, interval_in_percent
from allrounder.report.figures.judged import attack_title, threat_of
from allrounder.report.outcome import NATURAL, parse_eps


def build_eps(results: Results) -> list[AnyChart]:
    """Plot one chart for every attack and norm with several budgets."""
    entries = results.evaluated
    probes = _attack_probes(entries)
    families: dict[tuple[str, str], dict[str, float]] = {}
    for probe, eps in probes.items():
        family = probe.partition("@")[0], _norm_of(probe)
        families.setdefault(family, {})[probe] = eps
    charts: list[AnyChart] = []
    for (attack, norm), budgets in families.items():
        series = [series for entry in entries if (series := _row_series(entry, budgets)) is not None]
        if series:
            others = {
                name: eps for name, eps in probes.items() if _norm_of(name) == norm and name not in budgets
            }
            charts.append(_chart(attack, norm, series, others))
    return charts


def _attack_probes(entries: Sequence[Entry]) -> dict[str, float]:
    """The probes of attacks with the eps of their threats, by rising eps."""
    names = dict.fromkeys(
        name for entry in entries for outcome in entry.outcomes.values() for name in outcome.predicted
    )
    attacks = [name for name in names if ":" in threat_of(name) and parse_shift_id(name) is None]
    eps = {name: float(parse_eps(threat_of(name).partition(":")[2])) for name in attacks}
    return dict(sorted(eps.items(), key=lambda item: item[1]))


def _norm_of(probe: str) -> str:
    return threat_of(probe).partition(":")[0]


def _row_series(entry: Entry, budgets: dict[str, float]) -> Series | None:
    """The accuracies of a row, from natural images on; None if it has fewer than two budgets."""
    probes = {NATURAL: 0.0, **budgets}
    cells = [(eps, cell) for name, eps in probes.items() if (cell := entry.cell((name, None))) is not None]
    if sum(eps > 0 for eps, _ in cells) < 2:
        return None
    intervals = tuple(interval for _, cell in cells for interval in interval_in_percent(cell))
    return Series(
        entry.name,
        tuple(eps for eps, _ in cells),
        tuple(100 * cell.mean for _, cell in cells),
        y_interval=intervals if len(intervals) == len(cells) else (),
        row=entry.name,
    )


def _chart(attack: str, norm: str, series: Sequence[Series], others: dict[str, float]) -> Chart:
    marks: dict[float, str] = {}
    for probe, eps in others.items():
        other = probe.partition("@")[0]
        marks[eps] = f"{marks[eps]}, {other}" if eps in marks else other
    about = (
        "Eps 0 is natural accuracy. A curve that does not fall to 0 at large eps is a sign of masked "
        "gradients or of a weak attack."
    )
    if marks:
        about += " Vertical lines: the eps of other attacks."
    return Chart(
        chart_name("eps", attack, norm),
        f"Accuracy under {attack} by eps in {norm}",
        about,
        Axis(f"eps in {norm}"),
        Axis(f"accuracy ({attack_title(attack)})", percent=True),
        tuple(series),
        marks=tuple(marks.items()),
    )


EPS = FigureKind(
    "Budgets",
    "Accuracy under attacks with several budgets.",
    build_eps,
    "no run was attacked with several budgets of a norm; evaluate with several --threat",
)
