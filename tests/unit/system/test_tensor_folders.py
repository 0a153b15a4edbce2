"""Folders are complete or absent, and what is read is what was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from allrounder.errors import RunError
from allrounder.system.files import newest_folder
from allrounder.system.tensor_folders import prune_folders, read_manifest, read_tensors, write_folder
from tests.support.interruptions import Killed, Point, give_up, struck
from tests.support.trainings import contents

WEIGHTS = {"w": torch.arange(6.0).view(2, 3), "n": torch.tensor(4)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "step-00000004"
    write_folder(path, {"a": WEIGHTS, "b": {"w": torch.ones(2)}}, {"t": 4})
    return path


def test_tensors_and_facts_come_back(folder: Path):
    assert read_manifest(folder)["t"] == 4
    found = read_tensors(folder, "a")
    assert found.keys() == WEIGHTS.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in WEIGHTS.items())
    assert found["n"].dtype == torch.int64


def test_the_same_tensors_give_the_same_bytes(folder: Path, tmp_path: Path):
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


def test_tensors_that_share_memory_or_have_strides_are_written_as_what_they_hold(tmp_path: Path):
    write_folder(tmp_path / "x", {"views": views()}, {})
    found = read_tensors(tmp_path / "x", "views")
    for name, tensor in views().items():
        assert torch.equal(found[name], tensor), name
        assert found[name].dtype == tensor.dtype


def test_an_unknown_name_says_which_there_are(folder: Path):
    with pytest.raises(RunError, match=r'has no "c" \(it has: a, b\)'):
        read_tensors(folder, "c")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "differs from its manifest"),
        (lambda file: file.write_bytes(b""), "differs from its manifest"),
        (flip, "differs from its manifest"),
        (Path.unlink, "cannot be read"),
    ],
)
def test_a_damaged_tensor_file_is_refused(folder: Path, damage: Callable[[Path], object], said: str):
    damage(folder / "a.safetensors")
    with pytest.raises(RunError, match=said):
        read_tensors(folder, "a")
    assert torch.equal(read_tensors(folder, "b")["w"], torch.ones(2))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"t": 4}', "\x00"])
def test_a_damaged_manifest_is_refused(folder: Path, text: str):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(RunError, match="the manifest cannot be read"):
        read_tensors(folder, "a")


def test_a_file_that_no_manifest_knows_is_refused_even_if_it_is_sound(folder: Path):
    facts = json.loads((folder / "manifest.json").read_text())
    del facts["files"]["a.safetensors"]
    (folder / "manifest.json").write_text(json.dumps(facts))
    with pytest.raises(RunError, match='has no "a"'):
        read_tensors(folder, "a")


def test_the_newest_folder_is_whole_and_has_the_largest_number(folder: Path):
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


def test_pruning_keeps_one_and_everything_that_is_not_ours(folder: Path):
    parent = folder.parent
    for name in ("step-00000001", ".step-00000002.tmp", "step-00000004-copy", "best-00000001"):
        (parent / name).mkdir()
    prune_folders(parent, "step", keep=folder)
    assert {path.name for path in parent.iterdir()} == {folder.name, "step-00000004-copy", "best-00000001"}
    prune_folders(parent, "step", keep=None)
    assert {path.name for path in parent.iterdir()} == {"step-00000004-copy", "best-00000001"}


def test_a_folder_is_never_seen_half_deleted(folder: Path):
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
        Point("allrounder.system.tensor_folders:write_text"),
        Point("pathlib:Path.replace"),
        Point("pathlib:Path.rename"),
    ],
)
def test_an_interrupted_write_leaves_nothing_that_is_taken_for_whole(point: Point, folder: Path):
    before = contents(folder)
    with struck(point, give_up), pytest.raises(Killed):
        write_folder(folder.parent / "step-00000008", {"a": WEIGHTS}, {"t": 8})
    assert newest_folder(folder.parent, "step") == folder
    assert contents(folder) == before
    write_folder(folder.parent / "step-00000008", {"a": WEIGHTS}, {"t": 8})
    assert newest_folder(folder.parent, "step") == folder.parent / "step-00000008"
    assert not list(folder.parent.glob(".*"))
