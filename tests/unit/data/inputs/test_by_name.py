"""Datasets as the command line names them: by kind, by file or by folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from allrounder.data.inputs.by_name import load_eval_data
from allrounder.errors import RunError

X = np.random.default_rng(0).integers(0, 256, (7, 6, 5, 3), dtype=np.uint8)
Y = np.array([0, 1, 2, 0, 1, 2, 0])


def test_data_is_loaded_by_name_or_file(tmp_path):
    assert load_eval_data("embedded").name == "embedded"
    np.savez(tmp_path / "own.npz", x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2])
    data = load_eval_data(str(tmp_path / "own.npz"))
    assert (data.name, len(data.train), len(data.test), data.shape) == ("own", 7, 2, (3, 6, 5))


@pytest.mark.parametrize("names", [("x", "y"), ("x_test", "y_test")])
@pytest.mark.parametrize("layout", ["nhwc", "nchw", "nhw"])
def test_file_with_only_test_images_is_read(tmp_path, names, layout):
    x = {"nhwc": X, "nchw": X.transpose(0, 3, 1, 2), "nhw": X[..., 0]}[layout]
    arrays: dict[str, Any] = {names[0]: x, names[1]: Y}
    np.savez(tmp_path / "own.npz", **arrays)
    data = load_eval_data(str(tmp_path / "own.npz"))
    expected = torch.tensor(X).permute(0, 3, 1, 2)[:, : data.shape[0]] / 255
    assert torch.equal(data.test.fetch(torch.arange(7)), expected)
    assert data.test.labels.tolist() == Y.tolist() and data.classes == ("0", "1", "2")
    assert data.train is data.test


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": Y[:3]}, "test labels: got 3 for 7 images"),
        ({"y": Y + 1}, "test labels: got 3 numbers from 1 to 3, expected 0 to 2"),
        ({"classes": np.arange(3)}, "classes: got int64 of shape"),
    ],
)
def test_wrong_test_images_raise_an_error(tmp_path, change, message):
    arrays: dict[str, Any] = {"x": X, "y": Y, **change}
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(RunError, match=rf"own.npz: {message}"):
        load_eval_data(str(tmp_path / "own.npz"))


def test_missing_data_raises_an_error(tmp_path):
    np.savez(tmp_path / "own.npz", x_train=X, y_train=Y)
    message = r"own.npz: has the arrays x_train, y_train, expected x_test and y_test or x and y; save it"
    with pytest.raises(RunError, match=message):
        load_eval_data(str(tmp_path / "own.npz"))
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(RunError, match=r"bad.npz: not an .npz file, or one cut short"):
        load_eval_data(str(tmp_path / "bad.npz"))
    with pytest.raises(RunError, match=r"absent.npz: no such file"):
        load_eval_data(str(tmp_path / "absent.npz"))
    with pytest.raises(
        RunError, match=r'embeded: no such dataset \(known: embedded, .*npz:PATH\); did you mean "embedded"'
    ):
        load_eval_data("embeded")
    with pytest.raises(RunError, match=r"^npz: no such dataset"):
        load_eval_data("npz")
