from __future__ import annotations

import pytest

from allrounder.errors import InputError
from allrounder.report.dial import DialPoint, dial_chart, dial_table, find_front, pick_point
from allrounder.report.tables import to_markdown


def point(name: str, natural: float, linf: float, l2: float) -> DialPoint:
    robust = {"Linf:8/255": linf, "L2:128/255": l2}
    return DialPoint({name: 1.0}, natural, robust, worst=min(linf, l2) - 0.01, mean=(linf + l2) / 2)


ACCURATE, MIDDLE, BEATEN, ROBUST = POINTS = (
    point("accurate", 0.95, 0.05, 0.20),
    DialPoint({"a": 0.25, "b": 0.75}, 0.90, {"Linf:8/255": 0.4, "L2:128/255": 0.6}, 0.39, 0.5),
    point("beaten", 0.89, 0.30, 0.80),
    point("robust", 0.85, 0.50, 0.55),
)


def test_the_front_is_what_no_other_point_beats():
    assert find_front(POINTS) == [ROBUST, MIDDLE, ACCURATE]
    assert find_front(POINTS, "mean") == [BEATEN, MIDDLE, ACCURATE]


def test_the_most_robust_point_that_is_accurate_enough_is_picked():
    assert pick_point(POINTS, {"natural": 0.86}) is MIDDLE
    assert pick_point(POINTS, {"natural": 0.86}, "mean") is BEATEN
    assert pick_point(POINTS, {"natural": 0.95}) is ACCURATE
    assert pick_point(POINTS, {"natural": 0.5}) is ROBUST


def test_the_most_accurate_point_that_is_robust_enough_is_picked():
    assert pick_point(POINTS, {"linf": 0.3}) is MIDDLE
    assert pick_point(POINTS, {"L2:128/255": 0.7}) is BEATEN
    assert pick_point(POINTS, {"worst": 0.45}) is ROBUST
    assert pick_point(POINTS, {"natural": 0.8, "l2": 0.7}) is BEATEN


@pytest.mark.parametrize(
    ("goals", "message"),
    [
        ({"natural": 0.96}, "no point has at least natural 96.00%; the highest natural is 95.00%.*accurate"),
        ({"natural": 86.0}, "natural is 86, expected an accuracy from 0 to 1; did you mean 0.86"),
        ({"linff": 0.4}, "'linff', expected natural, worst, mean.* linf, l2; did you mean \"linf\""),
        ({}, "4 points and 0 goals"),
    ],
)
def test_goals_that_cannot_be_reached_are_explained(goals: dict[str, float], message: str):
    with pytest.raises(InputError, match=message):
        pick_point(POINTS, goals)


def test_two_threats_of_one_norm_need_their_budget():
    both = DialPoint({"a": 1.0}, 0.9, {"Linf:0.1": 0.5, "Linf:0.2": 0.3}, 0.3, 0.4)
    assert both.accuracy("Linf:0.2") == 0.3
    with pytest.raises(InputError, match=r"'linf', expected natural, worst, mean, Linf:0.1, Linf:0.2"):
        both.accuracy("linf")


def test_the_table_marks_the_front():
    lines = to_markdown(dial_table(POINTS, notes=["Where it comes from."])).splitlines()
    assert lines[0] == "| mixture | natural | Linf:8/255 | L2:128/255 | worst | mean | score | front |"
    marks = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in lines[2:6]}
    assert marks == {"accurate": "*", "a 0.25, b 0.75": "*", "beaten": "", "robust": "*"}
    assert "1.4000" in lines[3] and "Where it comes from." in lines


def test_the_chart_shows_every_point_and_the_front():
    chart = dial_chart(POINTS)
    series = {line.name: line for line in chart.series}
    assert list(series) == ["front", "mixtures", "accurate", "beaten", "robust"]
    assert series["front"].x == (85.0, 90.0, 95.0) and series["front"].mark == "line"
    assert series["mixtures"].y == (39.0,) and chart.x.percent and chart.y.percent
