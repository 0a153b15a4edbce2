from __future__ import annotations

import math

import numpy as np
import pytest

from allrounder.report.chart import Heatmap
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.corruptions import build_corruptions
from allrounder.report.outcome import Outcome


def outcome(correct: dict[str, int]) -> Outcome:
    arrays = {name: (np.arange(10) >= count).astype(np.int64) for name, count in correct.items()}
    return Outcome(np.zeros(10, np.int64), {"natural": np.zeros(10, np.int64), **arrays})


def charts(*entries: Entry) -> dict[str, Heatmap]:
    return {chart.name: chart for chart in build_corruptions(Results(entries)) if isinstance(chart, Heatmap)}


FOG = {f"fog@c-official:{severity}": 10 - severity for severity in range(1, 6)}


def test_the_highest_severity_and_the_mean_are_means_over_seeds():
    other = {**FOG, "fog@c-official:5": 7}
    by_name = charts(Entry("a", {0: outcome({**FOG, "snow@c-official:5": 4}), 1: outcome(other)}))
    assert list(by_name) == ["corruptions-severity-5-official", "corruptions-mean-official"]
    highest, mean = by_name.values()
    assert (highest.rows, highest.columns) == (("a",), ("fog", "snow"))
    assert highest.values[0] == pytest.approx((60, 40))
    assert (mean.columns, mean.values[0]) == (("fog",), pytest.approx((72,)))


def test_what_a_row_lacks_has_no_number():
    heatmap = charts(Entry("a", {0: outcome(FOG)}), Entry("b", {0: outcome({"snow@c-official:5": 4})}))[
        "corruptions-severity-5-official"
    ]
    assert heatmap.values[0][0] == 50 and math.isnan(heatmap.values[0][1])
    assert math.isnan(heatmap.values[1][0]) and heatmap.values[1][1] == 40


def test_official_and_generated_images_are_apart():
    by_name = charts(
        Entry("a", {0: outcome({"fog@c-official:3": 4})}), Entry("b", {0: outcome({"fog@c-generated:2": 6})})
    )
    assert {name: (chart.rows, chart.values) for name, chart in by_name.items()} == {
        "corruptions-severity-3-official": (("a",), ((40.0,),)),
        "corruptions-severity-2-generated": (("b",), ((60.0,),)),
    }


def test_flip_rates_count_changes_between_frames():
    frames = {"rotate@p-generated:0": 10, "rotate@p-generated:1": 8, "rotate@p-generated:2": 9}
    heatmap = charts(Entry("a", {0: outcome(frames)}))["corruptions-flips-generated"]
    assert (heatmap.columns, heatmap.values[0]) == (("rotate",), pytest.approx((15,)))
