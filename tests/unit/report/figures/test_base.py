from __future__ import annotations

from allrounder.report.figures.base import chart_name, interval_in_percent, join_names, unique_slugs
from allrounder.report.study import SeedCell


def test_slugs_are_lower_case_with_dashes_and_unique():
    assert chart_name("curves", "AT Linf:8/255") == "curves-at-linf-8-255"
    names = ["A b", "a-b", "a b 2", "a  b", "\u6a21"]
    assert unique_slugs(names) == dict(zip(names, ["a-b", "a-b-2", "a-b-2-2", "a-b-3", "row"], strict=True))


def test_long_lists_of_names_are_cut():
    names = [str(n) for n in range(12)]
    assert join_names(names[:2]) == "0; 1"
    assert join_names(names) == "0; 1; 2; 3; 4; 5; 6; 7; 8; 9; and 2 more"


def test_intervals_are_in_percent():
    assert interval_in_percent(SeedCell((0.5,), (0.25, 0.75))) == ((25.0, 75.0),)
    assert interval_in_percent(SeedCell((0.5,))) == ()
