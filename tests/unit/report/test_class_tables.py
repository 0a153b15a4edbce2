from __future__ import annotations

import numpy as np
import pytest

from allrounder.errors import InputError
from allrounder.report.class_tables import (
    CLASS_TABLES,
    MAX_MATRIX_CLASSES,
    MAX_PAIRS,
    accuracy_by_class,
    confusion_tables,
    worst_classes,
)
from allrounder.report.outcome import Outcome
from allrounder.report.statistics import format_percent, wilson_interval
from allrounder.report.tables import format_rows, to_markdown

CLASSES = ("cat", "dog", "ship", "frog")
LINF, L2 = "pgd-20@Linf:8/255", "pgd-20@L2:1"
#                   cat cat cat cat dog dog ship ship; frog has no image
OUTCOME = Outcome(
    np.array([0, 0, 0, 0, 1, 1, 2, 2]),
    {
        "natural": np.array([0, 0, 0, 1, 1, 1, 2, 2]),
        LINF: np.array([1, 3, 1, 1, 1, 1, 2, 0]),
        L2: np.array([0, 0, 1, 1, 1, 2, 2, 2]),
    },
)


def test_every_class_has_a_row_and_the_worst_is_marked():
    (table,) = accuracy_by_class(OUTCOME, CLASSES)
    assert table.header == ["class", "images", "natural", LINF, L2, "pgd-20 worst", "pgd-20 mean"]
    assert format_rows(table, "text") == [
        ["cat", "4", "75.00 (worst)", "0.00 (worst)", "50.00 (worst)", "0.00 (worst)", "25.00 (worst)"],
        ["dog", "2", "100.00", "100.00", "50.00 (worst)", "50.00", "75.00"],
        ["ship", "2", "100.00", "50.00", "100.00", "50.00", "75.00"],
        ["frog", "0", "-", "-", "-", "-", "-"],
        ["all", "8", "87.50", "37.50", "62.50", "25.00", "50.00"],
    ]


def test_equal_classes_have_no_worst():
    equal = Outcome(np.array([0, 1]), {"natural": np.array([1, 0])})
    assert "worst" not in str(format_rows(accuracy_by_class(equal, CLASSES)[0], "text"))


def test_there_is_a_matrix_for_natural_images_and_for_every_attack():
    natural, linf, l2 = confusion_tables(OUTCOME, CLASSES)
    assert [table.header[0] for table in (natural, linf, l2)] == ["natural", LINF, L2]
    assert format_rows(linf, "text") == [
        ["0 cat", "0", "3", "0", "1"],
        ["1 dog", "0", "2", "0", "0"],
        ["2 ship", "1", "0", "1", "0"],
        ["3 frog", "0", "0", "0", "0"],
    ]


def test_corrupted_images_have_no_matrix():
    shifted = Outcome(OUTCOME.label, {**OUTCOME.predicted, "fog@c-generated:3": OUTCOME.label})
    assert [table.header[0] for table in confusion_tables(shifted, CLASSES)] == ["natural", LINF, L2]
    assert len(worst_classes(shifted, CLASSES)[0].rows) == len(shifted.columns()) == 6


def test_many_classes_have_a_list_of_confusions_instead():
    count = MAX_MATRIX_CLASSES + 10
    label = np.repeat(np.arange(count), 2)
    predicted = np.where(np.arange(len(label)) % 2, label, (label + 1) % count)
    predicted[:2] = 7
    (table,) = confusion_tables(Outcome(label, {"natural": predicted}), [f"c{k}" for k in range(count)])
    rows = format_rows(table, "text")
    assert rows[0] == ["c0", "c7", "2", "2"] and rows[1] == ["c1", "c2", "1", "2"] and len(rows) == MAX_PAIRS
    assert table.notes == [f"natural: the {MAX_PAIRS} most frequent of {count} confusions of two classes."]


def test_the_worst_class_has_its_interval_and_what_it_is_taken_for():
    (table,) = worst_classes(OUTCOME, CLASSES)
    rows = format_rows(table, "text")
    low, high = map(format_percent, wilson_interval(0.75, 4))
    assert rows[0] == ["natural", "cat", f"75.00 ({low}-{high})", "dog 1"]
    assert rows[1][1] == "cat" and rows[1][3] == "dog 3, frog 1"
    assert rows[2][:2] == [L2, "cat (and 1 more)"]
    assert rows[3][0] == "pgd-20 worst" and rows[3][3] == "dog 5, frog 1", "counts over both threats"


@pytest.mark.parametrize("name", CLASS_TABLES)
def test_every_table_can_be_written_and_needs_a_name_for_every_class(name: str):
    for table in CLASS_TABLES[name](OUTCOME, CLASSES):
        assert to_markdown(table).startswith("| ")
    with pytest.raises(InputError, match=r"classes: got 3 names .* expected images, and one name"):
        CLASS_TABLES[name](OUTCOME, CLASSES[:3])
    with pytest.raises(InputError, match="got 4 names and 0 images"):
        CLASS_TABLES[name](Outcome(np.empty(0, np.int64), {"natural": np.empty(0, np.int64)}), CLASSES)
