from __future__ import annotations

import numpy as np
import pytest

from allrounder.errors import InputError
from allrounder.report.hard_classes import hard_class_table
from allrounder.report.outcome import Outcome
from allrounder.report.statistics import format_percent, wilson_interval
from allrounder.report.study import StudyResults
from allrounder.report.tables import format_rows

LABEL = np.array([0, 0, 1, 1, 2, 2, 3, 3])
#                                         class 0 and 2 are hard in the mean
FIRST = Outcome(LABEL, {"natural": np.array([1, 1, 1, 1, 2, 0, 3, 3]), "pgd@Linf:1": (LABEL + 1) % 4})
OTHER = Outcome(LABEL, {"natural": LABEL, "pgd@Linf:1": np.array([0, 1, 1, 1, 2, 2, 0, 3])})


def with_interval(correct: int, images: int) -> str:
    low, high = wilson_interval(correct / images, images)
    return f"{format_percent(correct / images)}\n({format_percent(low)}-{format_percent(high)})"


def test_one_seed_has_intervals_over_the_images_of_the_part():
    table = hard_class_table(StudyResults({"other": {0: OTHER}, "AT": {0: FIRST}}, missing=["AT, seed 1"]), 2)
    assert table.header == ["row", "natural, hard", "others", "pgd@Linf:1, hard", "others"]
    assert format_rows(table, "text") == [
        ["other", *(with_interval(count, 4) for count in (4, 4, 3, 3))],
        ["AT", *(with_interval(count, 4) for count in (1, 4, 0, 0))],
    ]
    numbers, hard, *warnings = table.notes
    assert numbers.endswith("with 95% intervals.")
    assert hard == (
        "Hard: the classes 0, 2, counted from 0, of lowest natural accuracy in the mean over all rows and "
        "seeds; 4 images."
    )
    assert warnings[-1] == "MISSING: AT, seed 1."


def test_several_seeds_have_means_and_deviations():
    table = hard_class_table(StudyResults({"AT": {0: FIRST, 1: OTHER}}), 1, ["natural"])
    assert format_rows(table, "text") == [["AT", "50.00\n+- 70.71", "91.67\n+- 11.79"]]
    assert "the class 0, counted from 0" in table.notes[1]


def test_a_row_without_the_column_is_empty():
    natural = Outcome(LABEL, {"natural": LABEL})
    table = hard_class_table(StudyResults({"AT": {0: FIRST}, "NT": {0: natural}}), 1, ["pgd@Linf:1"])
    assert format_rows(table, "text")[1] == ["NT", "-", "-"]


@pytest.mark.parametrize("count", [0, 4])
def test_some_classes_must_be_hard_and_some_not(count: int):
    with pytest.raises(InputError, match=f"classes: got {count}, expected 1 to 3"):
        hard_class_table(StudyResults({"AT": {0: FIRST}}), count)


def test_an_unknown_column_is_named():
    with pytest.raises(InputError, match=r"columns: got natrual, expected some of natural, pgd@Linf:1"):
        hard_class_table(StudyResults({"AT": {0: FIRST}}), 1, ["natrual"])
