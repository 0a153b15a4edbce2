"""Folders are complete or absent, and what is read is what was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from allrounder.errors import RunError
from allrounder.system.checked_files import read_manifest
from allrounder.system.files import newest_folder
from allrounder.system.tensor_folders import prune_folders, read_tensors, write_folder
from tests.support.damage import edit_json, flip
from tests.support.interruptions import Killed, Point, give_up, struck
from tests.support.trainings import contents

WEIGHTS = {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(4)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "step-00000004"
    write_folder(path, {"a": WEIGHTS, "b": {"w": torch.ones(2)}}, {"t": 4})
    return path


def test_read_returns_written_tensors_and_metadata(folder: Path):
    assert read_manifest(folder)["t"] == 4
    tensors = read_tensors(folder, "a")
    assert tensors.keys() == WEIGHTS.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in WEIGHTS.items())
    assert tensors["n"].dtype == torch.int64


def test_same_tensors_give_identical_bytes(folder: Path, tmp_path: Path):
    write_folder(tmp_path / "again", {"a": WEIGHTS, "b": {"w": torch.ones(2)}}, {"t": 4})
    assert contents(tmp_path / "again") == contents(folder)


def views() -> dict[str, Tensor]:
    whole = torch.arange(24.0)
    return {
        "tied": whole,
        "twin": whole,
        "slice": whole[:6],
        "rest": whole[6:],
        "turned": whole.view(4, 6).t(),
        "expanded": whole[:1].expand(5),
        "channels_last": whole.view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "empty": whole[:0],
        "scalar": whole[3],
        "half": whole.half(),
        "parameter": torch.nn.Parameter(whole),
    }


def test_shared_and_strided_tensors_are_written_by_value(tmp_path: Path):
    write_folder(tmp_path / "x", {"views": views()}, {})
    tensors = read_tensors(tmp_path / "x", "views")
    for name, tensor in views().items():
        assert torch.equal(tensors[name], tensor), name
        assert tensors[name].dtype == tensor.dtype


def test_unknown_name_lists_existing_names(folder: Path):
    with pytest.raises(RunError, match=r'has no "c" \(it has: a, b\)'):
        read_tensors(folder, "c")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "differs from its manifest"),
        (lambda file: file.write_bytes(b""), "differs from its manifest"),
        (flip, "differs from its manifest"),
        (Path.unlink, "cannot be read"),
    ],
)
def test_damaged_tensor_file_is_refused(folder: Path, damage: Callable[[Path], object], message: str):
    damage(folder / "a.safetensors")
    with pytest.raises(RunError, match=message):
        read_tensors(folder, "a")
    assert torch.equal(read_tensors(folder, "b")["w"], torch.ones(2))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"t": 4}', "\x00"])
def test_damaged_manifest_is_refused(folder: Path, text: str):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=r"manifest\.json: cannot be read .*; restore it from a copy, or"):
        read_tensors(folder, "a")


def test_file_missing_from_manifest_is_refused(folder: Path):
    edit_json(folder / "manifest.json", lambda manifest: manifest["files"].pop("a.safetensors"))
    with pytest.raises(RunError, match='has no "a"'):
        read_tensors(folder, "a")


def test_newest_folder_is_complete_and_has_largest_number(folder: Path):
    parent = folder.parent
    assert newest_folder(parent, "step") == folder
    for name in (
        "step-00000009",
        ".step-00000010.tmp",
        "step-00000011-copy",
        "step-old",
        "stepping-00000012",
    ):
        (parent / name).mkdir()
    for name in (".step-00000010.tmp", "step-00000011-copy", "step-old", "stepping-00000012"):
        (parent / name / "manifest.json").write_text("{}")
    assert newest_folder(parent, "step") == folder
    write_folder(parent / "step-100000000", {}, {})
    assert newest_folder(parent, "step") == parent / "step-100000000"
    assert newest_folder(parent, "best") is None
    assert newest_folder(parent / "nowhere", "best") is None


def test_prune_keeps_one_folder_and_unrelated_ones(folder: Path):
    parent = folder.parent
    for name in ("step-00000001", ".step-00000002.tmp", "step-00000004-copy", "best-00000001"):
        (parent / name).mkdir()
    prune_folders(parent, "step", keep=folder)
    assert {path.name for path in parent.iterdir()} == {folder.name, "step-00000004-copy", "best-00000001"}
    prune_folders(parent, "step", keep=None)
    assert {path.name for path in parent.iterdir()} == {"step-00000004-copy", "best-00000001"}


def test_interrupted_prune_leaves_no_partial_folder(folder: Path):
    (folder.parent / ".step-00000004.tmp").mkdir()  # of an earlier interruption
    with struck(Point("shutil:rmtree", 2), give_up), pytest.raises(Killed):
        prune_folders(folder.parent, "step", keep=None)
    assert newest_folder(folder.parent, "step") is None
    prune_folders(folder.parent, "step", keep=None)
    assert not list(folder.parent.iterdir())


@pytest.mark.parametrize(
    "point",
    [
        Point("allrounder.system.tensor_folders:save_file", 1),
        Point("allrounder.system.tensor_folders:save_file", 1, after=True),
        Point("allrounder.system.tensor_folders:write_json"),
        Point("pathlib:Path.replace"),
        Point("pathlib:Path.rename"),
    ],
)
def test_interrupted_write_leaves_no_complete_folder(point: Point, folder: Path):
    before = contents(folder)
    with struck(point, give_up), pytest.raises(Killed):
        write_folder(folder.parent / "step-00000008", {"a": WEIGHTS}, {"t": 8})
    assert newest_folder(folder.parent, "step") == folder
    assert contents(folder) == before
    write_folder(folder.parent / "step-00000008", {"a": WEIGHTS}, {"t": 8})
    assert newest_folder(folder.parent, "step") == folder.parent / "step-00000008"
    assert not list(folder.parent.glob(".*"))
