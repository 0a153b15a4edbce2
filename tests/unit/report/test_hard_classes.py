from __future__ import annotations

import numpy as np
import pytest

from allrounder.errors import InputError
from allrounder.report.hard_classes import hard_class_table
from allrounder.report.outcome import Outcome
from allrounder.report.study import StudyResults
from allrounder.report.tables import format_rows

LABEL = np.array([0, 0, 1, 1, 2, 2, 3, 3])
#                                         class 0 and 2 are hard for the reference
REFERENCE = Outcome(LABEL, {"natural": np.array([1, 1, 1, 1, 2, 0, 3, 3]), "pgd@Linf:1": (LABEL + 1) % 4})
OTHER = Outcome(LABEL, {"natural": LABEL, "pgd@Linf:1": np.array([0, 1, 1, 1, 2, 2, 0, 3])})
RESULTS = StudyResults({"other": {0: OTHER}, "AT": {0: REFERENCE, 1: OTHER}}, reference="AT")


def test_hard_classes_are_those_of_the_reference_and_numbers_are_means_over_seeds():
    table = hard_class_table(RESULTS, 2)
    assert table.header == ["row", "natural, hard", "others", "pgd@Linf:1, hard", "others"]
    assert format_rows(table, "text") == [
        ["other", "100.00", "100.00", "75.00", "75.00"],
        ["AT", "62.50", "100.00", "37.50", "37.50"],
    ]
    (note,) = table.notes
    assert 'classes 0, 2, numbered from 0, with the lowest natural accuracy of "AT"; 4 images' in note


def test_some_columns_can_be_chosen_and_a_row_without_one_is_empty():
    natural = Outcome(LABEL, {"natural": LABEL})
    results = StudyResults({"AT": {0: REFERENCE}, "natural only": {0: natural}})
    table = hard_class_table(results, 1, ["pgd@Linf:1"])
    assert table.header == ["row", "pgd@Linf:1, hard", "others"]
    assert format_rows(table, "text") == [["AT", "0.00", "0.00"], ["natural only", "-", "-"]]


@pytest.mark.parametrize("count", [0, 4])
def test_some_classes_must_be_hard_and_some_not(count: int):
    with pytest.raises(InputError, match=f"classes: got {count}, expected 1 to 3"):
        hard_class_table(RESULTS, count)


def test_an_unknown_column_is_named():
    with pytest.raises(InputError, match=r"columns: got natrual, expected some of natural, pgd@Linf:1"):
        hard_class_table(RESULTS, 1, ["natrual"])
