from __future__ import annotations

import math

import numpy as np
import pytest

from allrounder.report.chart import Heatmap
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.classwise import MAX_CLASSES
from allrounder.report.figures.confusion import OTHERS, build_confusion
from allrounder.report.outcome import Outcome


def charts(*entries: Entry) -> dict[str, Heatmap]:
    return {chart.name: chart for chart in build_confusion(Results(entries)) if isinstance(chart, Heatmap)}


def outcome(label: list[int], **predicted: list[int]) -> Outcome:
    names = {"natural": "natural", "linf": "aa@Linf:1", "l2": "aa@L2:1"}
    return Outcome(np.array(label), {names[key]: np.array(array) for key, array in predicted.items()})


def test_values_are_row_percents_averaged_over_seeds():
    label = [0, 0, 1, 1]
    entry = Entry(
        "A b",
        {
            0: outcome(label, natural=[0, 1, 1, 1], linf=[1, 1, 1, 0], l2=[0, 1, 0, 0]),
            1: outcome(label, natural=[0, 0, 1, 1], linf=[0, 1, 1, 1], l2=[0, 1, 0, 0]),
        },
        classes=("cat", "dog"),
    )
    by_name = charts(entry)
    assert list(by_name) == ["confusion-natural-a-b", "confusion-linf-1--a-b", "confusion-l2-1--a-b"]
    natural = by_name["confusion-natural-a-b"]
    assert (natural.rows, natural.columns, natural.row) == (("cat", "dog"), ("cat", "dog"), "A b")
    assert np.array(natural.values) == pytest.approx(np.array([[75, 25], [0, 100]]))
    assert np.array(by_name["confusion-linf-1--a-b"].values) == pytest.approx(np.array([[25, 75], [25, 75]]))
    assert np.array(by_name["confusion-l2-1--a-b"].values) == pytest.approx(np.array([[50, 50], [100, 0]]))


def test_names_of_matrices_do_not_depend_on_where_a_threat_ends():
    label = np.zeros(2, np.int64)
    predicted = {name: label for name in ("natural", "aa@Linf:1", "aa@Linf:1/2")}
    entries = [Entry(name, {0: Outcome(label, predicted)}) for name in ("a", "2 a")]
    assert len(build_confusion(Results(tuple(entries)))) == len(charts(*entries)) == 6


def test_a_class_without_images_has_a_row_without_numbers():
    matrix = charts(Entry("a", {0: outcome([0, 2], natural=[1, 2])}))["confusion-natural-a"]
    assert matrix.values[0] == (0, 100, 0) and all(map(math.isnan, matrix.values[1]))


def test_a_row_without_the_judge_has_its_natural_matrix_only():
    both = Entry("a", {0: outcome([0, 1], natural=[0, 1], linf=[1, 1])})
    natural = Entry("b", {0: outcome([0, 1], natural=[0, 1])})
    assert list(charts(both, natural)) == [
        *("confusion-natural-a", "confusion-linf-1--a"),
        "confusion-natural-b",
    ]


def test_of_many_classes_the_hardest_are_shown_and_rows_add_up():
    label = np.repeat(np.arange(60), 2)
    predicted = label.copy()
    predicted[2 * np.arange(45)] = 59  # the first 45 classes lose one of two images to the last class
    matrix = charts(Entry("a", {0: Outcome(label, {"natural": predicted})}))["confusion-natural-a"]
    assert matrix.rows == tuple(map(str, range(MAX_CLASSES))) and matrix.columns == (*matrix.rows, OTHERS)
    assert [sum(row) for row in matrix.values] == pytest.approx([100] * MAX_CLASSES)
    assert matrix.values[3][3] == matrix.values[3][-1] == 50
