"""The numbers of charts as tables."""

from __future__ import annotations

import math

from allrounder.report.chart import Axis, Chart, Heatmap, Series
from allrounder.report.chart_table import chart_table, format_value

NATURAL, ROBUST = Axis("natural", percent=True), Axis("pgd-20 (%)", percent=True)


def chart(x: Axis, y: Axis, *series: Series) -> Chart:
    return Chart("x", "", "", x, y, series)


def test_points_have_a_line_each_with_their_intervals():
    a = Series("A", (80.0,), (50.123,), "points", ((48.0, 52.5),), ((78.25, 82.0),))
    b = Series("B", (math.nan,), (1.0,), "points")
    assert chart_table(chart(NATURAL, ROBUST, a, b)) == (
        ["", "natural (%)", "pgd-20 (%)"],
        [["A", "80.00 (78.25-82.00)", "50.12 (48.00-52.50)"], ["B", "-", "1.00"]],
    )


def test_curves_share_the_column_of_x():
    a = Series("linf", (1.0, 2.0, 10.0), (0.123456, math.nan, 3e-7))
    b = Series("natural", (10.0, 1.0), (5.0, 6.0), y_interval=((4.0, 6.0), (5.0, 7.0)))
    assert chart_table(chart(Axis("epoch"), Axis("loss"), a, b)) == (
        ["epoch", "linf", "natural"],
        [["1", "0.1235", "6 (5-7)"], ["2", "-", "-"], ["10", "3e-07", "5 (4-6)"]],
    )


def test_categories_keep_their_order():
    a = Series("A", ("natural", "apgd-ce", "square"), (90.0, 50.0, 49.9), "bars")
    b = Series("B", ("natural", "fab"), (91.0, 50.0), "bars")
    header, rows = chart_table(chart(Axis("stage"), ROBUST, a, b))
    assert header == ["stage", "A", "B"]
    assert [row[0] for row in rows] == ["natural", "apgd-ce", "square", "fab"]
    assert rows[0] == ["natural", "90.00", "91.00"] and rows[3] == ["fab", "-", "50.00"]


def test_a_series_with_two_points_at_one_x_has_a_line_for_each():
    a = Series("A", (1.0, 1.0), (2.0, 3.0))
    assert chart_table(chart(Axis("x"), Axis("y"), a)) == (["", "x", "y"], [["A", "1", "2"], ["A", "1", "3"]])


def test_a_heatmap_is_its_matrix():
    percent = Heatmap(
        "m", "", "", Axis("predicted"), Axis("label"), ("a", "b"), ("c",), ((99.994, math.nan),)
    )
    assert chart_table(percent) == (["label / predicted", "a", "b"], [["c", "99.99", "-"]])
    counts = Heatmap("m", "", "", Axis(""), Axis("label"), ("a",), ("c", "d"), ((12.0,), (0.25,)), unit="")
    assert chart_table(counts) == (["label", "a"], [["c", "12"], ["d", "0.25"]])


def test_values_are_short():
    assert [format_value(v) for v in (1.0, 12345.678, "L2", math.nan, math.inf)] == [
        *("1", "1.235e+04", "L2", "-", "inf")
    ]
