from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allrounder.report.chart import Chart
from allrounder.report.entry import Entry, Results, TrainingFacts
from allrounder.report.figures.curves import build_curves
from tests.support.results import make_training

TRAINING = make_training()


def charts(*entries: Entry) -> dict[str, Chart]:
    return {chart.name: chart for chart in build_curves(Results(entries)) if isinstance(chart, Chart)}


def entry(name: str = "A", **changes: Any) -> Entry:
    return Entry(name, trainings={3: replace(TRAINING, **changes), 4: TRAINING})


def test_every_quantity_of_a_training_has_a_chart():
    by_name = charts(entry())
    assert list(by_name) == [
        *("curves-all-natural", "curves-all-linf-8-255", "curves-all-l2-1-2"),
        *("curves-validation-a", "curves-loss-a", "curves-accuracy-a", "curves-lr-a", "curves-share-a"),
    ]
    loss = by_name["curves-loss-a"]
    assert loss.row == "A" and "Seed 3 of 3, 4." in loss.about
    logged = [event for event in TRAINING.events if event.get("learner") == "linf"]
    series = {series.name: series for series in loss.series}["linf"]
    assert series.x == (1, 2, 3, 4, 5, 6)
    assert series.y == tuple(event["loss"] for event in logged)
    accuracy = {series.name: series for series in by_name["curves-accuracy-a"].series}["linf"]
    assert accuracy.y == pytest.approx([100 * event["accuracy"] for event in logged])


def test_validations_show_held_out_and_training_images():
    series = {series.name: series for series in charts(entry())["curves-validation-a"].series}
    assert list(series) == [
        *("natural (held-out)", "Linf:8/255 (held-out)", "L2:1/2 (held-out)"),
        *("natural (training)", "Linf:8/255 (training)", "L2:1/2 (training)"),
    ]
    by_name = charts(entry())
    assert all("upper bound" in by_name[f"curves-{name}"].about for name in ("validation-a", "all-l2-1-2"))
    assert "upper bound" not in by_name["curves-all-natural"].about
    held_out, seen = series["Linf:8/255 (held-out)"], series["Linf:8/255 (training)"]
    assert (held_out.x, held_out.y, held_out.mark) == ((2, 4, 6), pytest.approx((10, 20, 30)), "line")
    assert (seen.y, seen.mark) == (pytest.approx((20, 40, 60)), "dashes")


def test_exchanges_are_marks_and_too_many_are_counted():
    few = charts(entry(exchanges=(2, 4, 4)))["curves-loss-a"]
    assert few.marks == ((2, "exchanges"), (4, "exchanges"))
    assert few.about.endswith("Vertical lines: the epochs of 3 exchanges between the learners.")
    many = charts(entry(exchanges=tuple(range(1, 31))))["curves-loss-a"]
    assert many.marks == () and many.about.endswith("30 exchanges in epochs 1 to 30 are not drawn.")
    assert charts(entry(exchanges=()))["curves-loss-a"].marks == ()


def test_rows_are_compared_by_percent_of_their_training():
    short, long = (Entry(name, trainings={0: make_training(epochs)}) for name, epochs in (("s", 4), ("l", 8)))
    chart = charts(short, long)["curves-all-linf-8-255"]
    assert [(series.row, series.x) for series in chart.series] == [
        ("s", (50, 100)),
        ("l", (25, 50, 75, 100)),
    ]
    assert chart.series[0].y == pytest.approx((10, 20))


def test_a_training_without_events_has_no_chart():
    assert charts(Entry("a", trainings={0: TrainingFacts("runs/a", "interrupted", "")})) == {}


def test_rows_with_names_that_look_alike_have_their_own_charts():
    by_name = charts(entry("a b"), entry("A-B"))
    assert by_name["curves-loss-a-b"].row == "a b" and by_name["curves-loss-a-b-2"].row == "A-B"
