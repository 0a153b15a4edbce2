from __future__ import annotations

import numpy as np
import pytest

from allrounder.report.chart import Chart
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.stages import build_stages
from allrounder.report.outcome import Outcome


def outcome(stages: list[str], stage: list[int]) -> Outcome:
    """0 is wrong without an attack, -1 is robust."""
    array = np.array(stage)
    predicted = {"natural": (array == 0).astype(np.int64), "aa@Linf:1": (array != -1).astype(np.int64)}
    facts = {"stages": {"aa@Linf:1": stages}}
    return Outcome(np.zeros(len(array), np.int64), predicted, facts, stage={"aa@Linf:1": array})


def charts(*entries: Entry) -> list[Chart]:
    return [chart for chart in build_stages(Results(entries)) if isinstance(chart, Chart)]


def test_accuracies_fall_from_stage_to_stage():
    names = ["apgd", "fab", "square"]
    seeds = {0: outcome(names, [0, -1, 1, 3]), 1: outcome(names, [-1, -1, 1, 1])}
    (chart,) = charts(Entry("a", seeds))
    (series,) = chart.series
    assert chart.name == "stages-aa-linf-1"
    assert series.x == ("natural", "apgd", "fab", "square")
    assert series.y == pytest.approx([100 * (a + b) / 8 for a, b in ((3, 4), (2, 2), (2, 2), (1, 2))])


def test_an_attack_with_one_stage_has_no_chart():
    assert charts(Entry("a", {0: outcome(["apgd"], [-1, 1])})) == []


def test_seeds_with_other_stages_are_left_out():
    seeds = {0: outcome(["apgd", "fab"], [-1, 1]), 1: outcome(["apgd", "square"], [1, 2])}
    (chart,) = charts(Entry("a", seeds))
    assert chart.series[0].y == pytest.approx((100, 50, 50))
