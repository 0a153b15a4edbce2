"""Charts of what theory says about a training: distances and drift at exchanges, and regrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allrounder.report.chart import Axis, Chart, Series
from allrounder.report.regret import TradeOffRegret, trade_off_regret

EPOCHS = Axis("epoch")


def theory_charts(
    events: Sequence[Mapping[str, Any]],
    learners: Sequence[str],
    infima: Mapping[str, float] | None = None,
    row: str = "",
) -> list[Chart]:
    """Return the charts of one run: distances and drift at its exchanges, and its regret over time. Runs that
    logged no exchange have no first two, and runs without an epoch none at all. `infima` as for
    `trade_off_regret`; `row` names the row of a report."""
    logged = {event["learner"]: event for event in events if event["event"] == "epoch"}
    if not learners or set(learners) - logged.keys():
        return []
    last = logged[learners[0]]
    steps = last["t"] // last["epoch"]
    charts = [_regret_chart(trade_off_regret(events, learners, infima=infima), steps, row)]
    exchanges = [event for event in events if event["event"] == "exchange"]
    if exchanges:
        charts = [
            _distance_chart(exchanges, learners, steps, row),
            _drift_chart(exchanges, steps, row),
            *charts,
        ]
    return charts


def _distance_chart(
    exchanges: Sequence[Mapping[str, Any]], learners: Sequence[str], steps: int, row: str
) -> Chart:
    x = tuple(event["t"] / steps for event in exchanges)
    return Chart(
        "theory-distances",
        "Distance of the learners from the global weights",
        "Euclidean distance of the parameters of every learner from the global ones at each logged exchange, "
        "before the learners restart. It grows with the time since the last exchange and the learning rate.",
        EPOCHS,
        Axis("distance"),
        tuple(
            Series(name, x, tuple(event["distances"][name] for event in exchanges), row=row)
            for name in learners
        ),
        row,
    )


def _drift_chart(exchanges: Sequence[Mapping[str, Any]], steps: int, row: str) -> Chart:
    x = tuple(event["t"] / steps for event in exchanges)
    around_global = tuple(
        sum(share * event["distances"][name] ** 2 for name, share in event["shares"].items())
        for event in exchanges
    )
    return Chart(
        "theory-drift",
        "Drift of the learners",
        "The sum over learners of share times squared distance, around the learners' mixture and around the "
        "global weights. Theorem 2 of Generalist++ bounds the instability by a multiple of it.",
        EPOCHS,
        Axis("drift"),
        (
            Series("around the mixture", x, tuple(event["drift"] for event in exchanges), row=row),
            Series("around the global weights", x, around_global, "dashes", row=row),
        ),
        row,
    )


def _regret_chart(regret: TradeOffRegret, steps: int, row: str) -> Chart:
    x = tuple(end / steps for end in regret.learners[0].ends)
    series = [Series(one.name, x, one.over_time(), row=row) for one in regret.learners]
    if len(series) > 1:
        series.append(Series("mean of all (R_T)", x, regret.over_time(), "dashes", row=row))
    return Chart(
        "theory-regret",
        "Trade-off regret",
        "The sum over steps of each learner's loss minus the best mean loss of an epoch (Definition 1 of "
        "Generalist++). A curve that flattens means that the mean regret per step falls.",
        EPOCHS,
        Axis("regret"),
        tuple(series),
        row,
    )
