from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allrounder.errors import InputError
from allrounder.report.confusion import confusion, confusion_percents
from tests.reference import calibration as reference


def test_rows_are_classes_of_images_and_columns_are_predictions():
    label, predicted = np.array([0, 0, 0, 0, 2]), np.array([0, 1, 1, 2, 0])
    counts = confusion(label, predicted, 3)
    assert counts.tolist() == [[1, 2, 1], [0, 0, 0], [1, 0, 0]]
    percents = confusion_percents(counts)
    assert percents[0].tolist() == [25, 50, 25] and percents[2].tolist() == [100, 0, 0]
    assert np.isnan(percents[1]).all(), "a class without images has no percents"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=40))
def test_counts_are_those_of_one_image_at_a_time(pairs: list[tuple[int, int]]):
    label, predicted = (np.array([pair[k] for pair in pairs], dtype=np.int64) for k in (0, 1))
    assert confusion(label, predicted, 5).tolist() == reference.confusion(label, predicted, 5)


@pytest.mark.parametrize("label", [[0, 3], [0, -1], [0]])
def test_classes_out_of_range_and_missing_predictions_are_refused(label: list[int]):
    with pytest.raises(InputError, match=r"confusion: got .*, expected"):
        confusion(np.array(label), np.array([0, 1]), 3)
