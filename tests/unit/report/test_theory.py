"""Charts of distances, drift and regrets."""

from __future__ import annotations

from typing import Any

from allrounder.report.theory import theory_charts

EPOCHS: list[dict[str, Any]] = [
    {"event": "epoch", "t": 4 * epoch, "epoch": epoch, "learner": name, "loss": loss / epoch, "accuracy": 0.5}
    for epoch in (1, 2)
    for name, loss in (("a", 2.0), ("b", 1.0))
]
EXCHANGES: list[dict[str, Any]] = [
    {"event": "exchange", "t": t, "epoch": t // 4, "drift": drift, "distances": {"a": 1.0, "b": 2.0}}
    | {"shares": {"a": 0.75, "b": 0.25}}
    for t, drift in ((4, 0.5), (6, 0.25))
]


def test_a_run_with_exchanges_has_three_charts_in_epochs():
    distances, drift, regret = theory_charts([*EPOCHS, *EXCHANGES], ["a", "b"], row="mine")
    assert [series.name for series in distances.series] == ["a", "b"]
    assert distances.series[1].x == (1.0, 1.5) and distances.series[1].y == (2.0, 2.0)
    around_mixture, around_global = drift.series
    assert around_mixture.y == (0.5, 0.25) and around_global.y == (1.75, 1.75)
    assert [series.y for series in regret.series] == [(4.0, 4.0), (2.0, 2.0), (3.0, 3.0)]
    assert {chart.row for chart in (distances, drift, regret)} == {"mine"}
    assert all(series.row == "mine" for series in distances.series)


def test_names_of_charts_are_unique():
    names = [chart.name for chart in theory_charts([*EPOCHS, *EXCHANGES], ["a", "b"])]
    assert len(set(names)) == len(names) == 3


def test_a_run_without_exchanges_has_only_its_regret():
    (regret,) = theory_charts(EPOCHS, ["a"])
    assert regret.name == "theory-regret" and [series.name for series in regret.series] == ["a"]


def test_an_infimum_of_a_solo_run_raises_the_regret():
    (regret,) = theory_charts(EPOCHS, ["a"], {"a": 0.5})
    assert regret.series[0].y == (6.0, 8.0)


def test_a_run_without_epochs_has_no_chart():
    assert not theory_charts(EXCHANGES, ["a", "b"])
