from __future__ import annotations

import math

import numpy as np
import pytest

from allrounder.report.chart import Chart
from allrounder.report.entry import Results
from allrounder.report.figures.ablation import build_ablation
from allrounder.report.outcome import Outcome
from allrounder.report.statistics import wilson_interval
from allrounder.report.study import StudyResults


def outcome(images: int = 100, **correct: int) -> Outcome:
    names = {"natural": "natural", "linf": "aa@Linf:1", "l2": "aa@L2:1", "pgd": "pgd-20@Linf:1"}
    arrays = {names[key]: (np.arange(images) >= count).astype(np.int64) for key, count in correct.items()}
    return Outcome(np.zeros(images, np.int64), arrays)


def chart(study: StudyResults) -> Chart:
    (chart,) = build_ablation(Results((), {"Mix Rate": study}))
    assert isinstance(chart, Chart)
    return chart


STUDY = StudyResults(
    {
        "slow": {0: outcome(natural=90, linf=40, l2=30), 1: outcome(natural=80, linf=50, l2=60)},
        "fast": {0: outcome(natural=70, linf=20, l2=25)},
        "weak": {0: outcome(natural=60, pgd=55)},
        "missing": {},
    },
    {"slow": {"natural": 84.5, "aa mean": 44.0}, "fast": {"natural": 71.0}, "weak": {"aa@L2:1": 10.0}},
    source="Table 3",
)


def test_bars_are_the_columns_of_the_judge_by_row():
    figure = chart(STUDY)
    series = {series.name: series for series in figure.series}
    assert (figure.name, figure.title) == ("ablation-mix-rate", "Study Mix Rate")
    assert series["natural"].x == ("slow", "fast", "weak")
    assert series["natural"].y == pytest.approx((85, 70, 60))
    assert series["aa worst"].y[:2] == pytest.approx((40, 20)) and math.isnan(series["aa worst"].y[2])
    assert series["aa mean (the papers' Union)"].y[:2] == pytest.approx((45, 22.5))
    low, high = wilson_interval(0.2, 100)
    assert series["aa@Linf:1"].y_interval[1] == pytest.approx((100 * low, 100 * high))
    assert "Left out, without aa@Linf:1 and aa@L2:1: weak." in figure.about


def test_numbers_of_the_paper_stand_beside_ours():
    figure = chart(STUDY)
    series = {series.name: series for series in figure.series}
    assert series["natural (paper)"].y[:2] == (84.5, 71.0) and math.isnan(series["natural (paper)"].y[2])
    assert series["aa mean (the papers' Union) (paper)"].y[0] == 44.0
    assert math.isnan(series["aa@L2:1 (paper)"].y[0]) and series["aa@L2:1 (paper)"].y[2] == 10.0
    assert "aa worst (paper)" not in series
    assert "Paper: Table 3; not measured here." in figure.about


def test_seeds_on_different_images_have_an_interval_of_no_length():
    study = StudyResults({"a": {0: outcome(100, natural=50), 1: outcome(50, natural=50)}})
    (series,) = chart(study).series
    assert (series.y, series.y_interval) == ((75.0,), ((75.0, 75.0),))


def test_a_study_without_outcomes_has_no_chart():
    assert build_ablation(Results((), {"empty": StudyResults({"a": {}})})) == []
