from __future__ import annotations

import math

import numpy as np
import pytest

from allrounder.report.chart import Chart
from allrounder.report.entry import Entry, Results
from allrounder.report.figures.classes import build_classes
from allrounder.report.figures.classwise import MAX_CLASSES, class_names
from allrounder.report.outcome import Outcome


def charts(*entries: Entry) -> dict[str, Chart]:
    return {chart.name: chart for chart in build_classes(Results(entries)) if isinstance(chart, Chart)}


def outcome(label: list[int], natural: list[int], attacked: list[int] | None = None) -> Outcome:
    predicted = {"natural": natural} if attacked is None else {"natural": natural, "aa@Linf:1": attacked}
    return Outcome(np.array(label), {name: np.array(array) for name, array in predicted.items()})


def test_accuracies_by_class_are_means_over_seeds():
    label = [0, 0, 1, 1]
    entry = Entry(
        "a",
        {0: outcome(label, [0, 0, 1, 0], [0, 1, 0, 0]), 1: outcome(label, [0, 1, 1, 0], [1, 1, 0, 0])},
        classes=("cat", "dog"),
    )
    by_name = charts(entry)
    natural, robust = by_name["classes-natural"], by_name["classes-robust"]
    assert natural.series[0].x == ("cat", "dog")
    assert natural.series[0].y == pytest.approx((75, 50))
    assert robust.series[0].y == pytest.approx((25, 0))
    assert natural.about == "Worst class: dog (a, 50.0%)."
    assert robust.about == "Worst class: dog (a, 0.0%)."


def test_a_class_without_images_has_no_number():
    chart = charts(Entry("a", {0: outcome([0, 2, 2], [0, 2, 3])}))["classes-natural"]
    assert chart.series[0].x == ("0", "1", "2", "3")
    first, missing, half, predicted_only = chart.series[0].y
    assert (first, half) == (100, 50) and math.isnan(missing) and math.isnan(predicted_only)


def test_a_class_that_one_seed_lacks_is_the_mean_of_the_others():
    entry = Entry("a", {0: outcome([0, 1], [0, 1]), 1: outcome([0, 0], [0, 1])})
    assert charts(entry)["classes-natural"].series[0].y == pytest.approx((75, 100))


def test_rows_of_other_classes_have_their_own_chart():
    digits, animals = (
        Entry(name, {0: outcome([0, 1], [0, 1])}, classes=classes)
        for name, classes in (("digits", ("zero", "one")), ("animals", ("cat", "dog")))
    )
    by_name = charts(digits, animals)
    assert {name: chart.series[0].x for name, chart in by_name.items()} == {
        "classes-natural": ("zero", "one"),
        "classes-natural-2": ("cat", "dog"),
    }


def test_of_many_classes_the_hardest_are_shown():
    label = np.repeat(np.arange(100), 2)
    natural = label.copy()
    natural[2 * np.arange(10, 100, 2)] = 0  # every second class from 10 on loses one of two images
    chart = charts(Entry("a", {0: Outcome(label, {"natural": natural})}))["classes-natural"]
    assert chart.series[0].x == tuple(str(number) for number in range(10, 90, 2))
    assert chart.series[0].y == (50.0,) * MAX_CLASSES
    assert f"The {MAX_CLASSES} of 100 classes" in chart.about


def test_of_many_rows_the_worst_class_of_the_most_accurate_is_named():
    weak = [Entry(f"weak {n}", {0: outcome([0, 1, 1], [1, 1, 0])}) for n in range(12)]
    best = Entry("best", {0: outcome([0, 1, 1], [0, 1, 0])})
    about = charts(*weak, best)["classes-natural"].about
    assert about == "Worst class of the most accurate row: 1 (best, 50.0%)."


def test_classes_of_the_same_name_stay_apart():
    entry = Entry("a", {0: outcome([0, 1], [0, 1])}, classes=("crane", "crane"))
    assert class_names(entry) == ("crane (0)", "crane (1)")


def test_several_worst_classes_are_counted():
    entry = Entry("a", {0: outcome([0, 1, 2, 3], [1, 1, 1, 1])}, classes=("cat", "dog", "fox", "hen"))
    assert charts(entry)["classes-natural"].about == "Worst class: cat and 2 more (a, 0.0%)."
