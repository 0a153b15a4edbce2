"""Whole sets on disk: their layout, their making and its interruption, and which set is used."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from allrounder.data.base import Split, Subset, TensorSplit
from allrounder.data.corruptions import corrupt, generate
from allrounder.data.corruptions.datasets import StoredSet, find_set
from allrounder.data.corruptions.generate import (
    MARKER_FILE,
    GeneratedSet,
    ShiftKind,
    batch_size_for,
    fetch_uint8,
    make_set,
    source_digest,
)
from allrounder.data.corruptions.perturbations import perturb_sequence
from allrounder.data.files.cache import cache_folder
from allrounder.errors import Interrupted, RunError, StorageError
from allrounder.system.files import LOCK_FILE
from allrounder.system.progress import ProgressEvent
from tests.support.damage import small_disk
from tests.support.images import scenes
from tests.support.interruptions import Killed, Point, give_up, struck

NAMES = ("fog", "gaussian_noise")
N = 10


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALLROUNDER_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(generate, "BATCH_SIZE", 4)
    return tmp_path / "cache"


def split(count: int = N, shift: int = 0, channels: int = 3) -> Split:
    x = torch.from_numpy(scenes(count + shift, 16, channels)[shift:]).permute(0, 3, 1, 2).contiguous()
    return TensorSplit(x, torch.arange(count) % 5, 5)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != LOCK_FILE}


def make_published(folder: Path, kind: ShiftKind = "c", *, given: Split | None = None) -> Path:
    """A set like those that one downloads: there is nothing about how it was made."""
    make_set(given or split(), folder, kind, names=NAMES if kind == "c" else ["scale"], seed=9)
    (folder / MARKER_FILE).unlink()
    return folder


def test_corruption_files_have_published_layout(tmp_path: Path):
    out = make_set(split(), tmp_path / "c", "c", names=NAMES)
    assert sorted(files(out)) == ["fog.npy", "gaussian_noise.npy", MARKER_FILE, "labels.npy"]
    x, labels = fetch_uint8(split(), torch.arange(N)), np.load(out / "labels.npy")
    assert labels.dtype == np.uint8 and labels.tolist() == (np.arange(N) % 5).tolist() * 5
    for name in NAMES:
        array = np.load(out / f"{name}.npy")
        assert array.shape == (5 * N, 16, 16, 3) and array.dtype == np.uint8
        for severity in (1, 5):
            part = array[(severity - 1) * N : severity * N]
            assert np.array_equal(part, corrupt(x, name, severity))
    marker = json.loads((out / MARKER_FILE).read_text())
    assert marker["generated"] is True and marker["seed"] == 0 and marker["source"] == source_digest(split())
    assert marker["by"].startswith("allrounder ") and "frost" in marker["note"]


def test_perturbation_files_have_published_layout(tmp_path: Path):
    out = make_set(split(), tmp_path / "p", "p", names=["gaussian_noise", "translate"])
    x = fetch_uint8(split(), torch.arange(N))
    assert np.array_equal(np.load(out / "translate.npy"), perturb_sequence(x, "translate"))
    assert np.load(out / "gaussian_noise.npy").shape == (N, 31, 16, 16, 3)
    assert np.load(out / "labels.npy").tolist() == (np.arange(N) % 5).tolist()


def test_one_channel_is_kept(tmp_path: Path):
    out = make_set(split(channels=1), tmp_path / "c", "c", names=["snow"])
    assert np.load(out / "snow.npy").shape == (5 * N, 16, 16, 1)


def test_finished_files_are_not_generated_again(tmp_path: Path):
    complete = files(make_set(split(), tmp_path / "whole", "c", names=NAMES))
    out, events = tmp_path / "c", list[ProgressEvent]()
    point = Point("allrounder.data.corruptions.generate:corrupt", 19)
    with pytest.raises(Killed), struck(point, give_up):
        make_set(split(), out, "c", names=NAMES)
    assert sorted(files(out)) == ["fog.npy", MARKER_FILE, "labels.npy"], "nothing half-written is left"
    written = (out / "fog.npy").stat().st_mtime_ns
    make_set(split(), out, "c", names=NAMES, progress=events.append)
    assert (out / "fog.npy").stat().st_mtime_ns == written
    assert files(out) == complete
    assert events[0].stage == "fog (already there)"
    assert [(event.done, event.total) for event in events if event.stage == "gaussian_noise"][-1] == (50, 50)


def test_signal_stops_after_a_batch_and_can_be_continued(tmp_path: Path):
    def send_signal(event: ProgressEvent) -> None:
        if event.stage == "gaussian_noise" and event.done == 14:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="SIGTERM, 1 of 2 files are finished; call again to continue"):
        make_set(split(), tmp_path / "c", "c", names=NAMES, progress=send_signal)
    assert sorted(files(tmp_path / "c")) == ["fog.npy", MARKER_FILE, "labels.npy"]
    make_set(split(), tmp_path / "c", "c", names=NAMES)
    assert "gaussian_noise.npy" in files(tmp_path / "c")


def test_second_process_cannot_generate_the_same_set(tmp_path: Path):
    messages = list[str]()

    def generate_again(event: ProgressEvent) -> None:
        with pytest.raises(
            RunError, match="c: another process is generating a set here; wait for it"
        ) as error:
            make_set(split(), tmp_path / "c", "c", names=["fog"])
        messages.append(str(error.value))

    make_set(split(), tmp_path / "c", "c", names=["fog"], progress=generate_again)
    assert len(messages) == 15
    complete = files(make_set(split(), tmp_path / "whole", "c", names=["fog"]))
    assert files(tmp_path / "c") == complete


@pytest.mark.parametrize(("change", "key"), [({"seed": 1}, "seed"), ({"split": split(shift=1)}, "source")])
def test_folder_of_another_set_is_refused(change: dict[str, Any], key: str, tmp_path: Path):
    out = make_set(split(), tmp_path / "c", "c", names=["fog"])
    before = files(out)
    with pytest.raises(RunError, match=f"holds a set with {key} .*, expected"):
        make_set(change.get("split", split()), out, "c", names=NAMES, seed=change.get("seed", 0))
    assert files(out) == before


def test_published_files_are_not_overwritten(tmp_path: Path):
    out = make_published(tmp_path / "CIFAR-10-C")
    before = files(out)
    with pytest.raises(RunError, match="holds files that were not generated here"):
        make_set(split(), out, "c")
    assert files(out) == before


def test_unknown_name_gets_a_suggestion(tmp_path: Path):
    with pytest.raises(ValueError, match='did you mean "fog"'):
        make_set(split(), tmp_path, "c", names=["frog"])
    with pytest.raises(ValueError, match='did you mean "tilt"'):
        make_set(split(), tmp_path, "p", names=["tlt"])
    with pytest.raises(ValueError, match="corruptions: got none"):
        make_set(split(), tmp_path, "c", names=[])


def test_environment_variable_sets_the_cache_folder(cache: Path, monkeypatch: pytest.MonkeyPatch):
    assert cache_folder() == cache
    monkeypatch.delenv("ALLROUNDER_DATA")
    assert cache_folder().name == "allrounder"


def test_without_files_a_set_is_generated_on_the_fly():
    result = find_set(split(), "c", NAMES)
    assert (
        isinstance(result, GeneratedSet) and result.source == "generated" and "seed 0" in result.description
    )


@pytest.mark.parametrize("kind", ["c", "p"])
def test_stored_set_equals_set_generated_on_the_fly(kind: Any, cache: Path):
    names, severity = (NAMES, 3) if kind == "c" else (("scale", "snow"), None)
    make_set(split(), cache / "mine", kind, names=names)
    stored, fresh = find_set(split(), kind, names), GeneratedSet(split(), kind)
    assert (
        isinstance(stored, StoredSet)
        and stored.description == fresh.description
        and stored.source == "generated"
    )
    rows = torch.tensor([7, 2, 3])
    for name in names:
        assert stored.content_id(name) == fresh.content_id(name)
        a, b = (one.fetch(name, severity, rows) for one in (stored, fresh))
        assert np.array_equal(a, b) and a.dtype == b.dtype == np.uint8
        assert ("frost" in stored.description) == (kind == "c")
        assert kind == "c" or stored.num_frames(name) == fresh.num_frames(name) == a.shape[1]


def test_published_set_is_preferred(cache: Path):
    make_set(split(), cache / "a", "c", names=NAMES)
    make_published(cache / "CIFAR-10-C")
    result = find_set(split(), "c", NAMES)
    assert result.source == "official" and "unmarked files, taken as official" in result.description
    rows = torch.tensor([1, 8])
    expected = corrupt(fetch_uint8(split(), rows), "fog", 4, seed=9, rows=[1, 8])
    assert np.array_equal(result.fetch("fog", 4, rows)[:, 0], expected)
    assert result.content_id("fog") != result.content_id("gaussian_noise")


def test_published_sequences_need_no_labels(tmp_path: Path):
    folder = make_published(tmp_path / "data" / "CIFAR-10-P", "p")
    (folder / "labels.npy").unlink()
    result = find_set(split(), "p", ["scale"], tmp_path / "data")
    assert result.source == "official" and result.num_frames("scale") == 31


@pytest.mark.parametrize("name", ["spatter", "shear", "gaussian_blur", "speckle_noise", "snow"])
def test_every_sequence_of_the_published_archive_is_read(name: str, tmp_path: Path):
    images = split(16)
    folder = make_set(images, tmp_path / "CIFAR-10-P", "p", names=[name], seed=9)
    (folder / MARKER_FILE).unlink()
    result = find_set(images, "p", [name], tmp_path)
    assert result.source == "official" and result.num_frames(name) == 31
    rows = torch.tensor([1, 8])
    expected = perturb_sequence(fetch_uint8(images, rows), name, seed=9, rows=[1, 8])
    assert np.array_equal(result.fetch(name, None, rows), expected)


@pytest.mark.parametrize("name", ["translate", "scale", "motion_blur", "gaussian_noise"])
def test_published_sequences_of_other_images_are_refused(name: str, tmp_path: Path):
    images = split(16)
    folder = make_set(images, tmp_path / "p", "p", names=[name])
    for file in (MARKER_FILE, "labels.npy"):
        (folder / file).unlink()
    assert find_set(images, "p", [name], folder).source == "official"
    with pytest.raises(RunError, match="images are not those of the data"):
        find_set(Subset(images, torch.arange(15, -1, -1)), "p", [name], folder)


def test_find_set_separates_both_kinds_in_one_folder(tmp_path: Path):
    make_published(tmp_path / "data" / "CIFAR-10-C")
    make_published(tmp_path / "data" / "CIFAR-10-P", "p")
    for kind, names in (("c", NAMES), ("p", ["scale"])):
        result: Any = find_set(split(), kind, names, tmp_path / "data")  # type: ignore[arg-type]
        assert result.folder.name == f"CIFAR-10-{kind.upper()}"


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (lambda folder: (folder / "fog.npy").unlink(), "has no fog.npy"),
    "no labels": (lambda folder: (folder / "labels.npy").unlink(), "has no labels.npy"),
    "no array": (lambda folder: (folder / "fog.npy").write_bytes(b"<html>"), "cannot be read"),
    "cut short": (lambda folder: os.truncate(folder / "fog.npy", 999), "cannot be read"),
    "too few": (
        lambda folder: save_fog(folder, np.zeros((9, 16, 16, 3), np.uint8)),
        r"shape \(9, 16, 16, 3\)",
    ),
    "floats": (lambda folder: save_fog(folder, np.zeros((50, 16, 16, 3))), "got float64"),
    "labels": (
        lambda folder: np.save(folder / "labels.npy", np.zeros(50, np.uint8)),
        "differs from the labels",
    ),
}


def save_fog(folder: Path, array: Any) -> None:
    np.save(folder / "fog.npy", array)


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=list(DAMAGES))
def test_damaged_set_in_given_folder_is_refused(damage: Any, message: str, tmp_path: Path):
    folder = make_published(tmp_path / "data")
    damage(folder)
    with pytest.raises(RunError, match=message):
        find_set(split(), "c", NAMES, folder)


@pytest.mark.parametrize(("damage", "message"), list(DAMAGES.values())[:3], ids=list(DAMAGES)[:3])
@pytest.mark.parametrize("is_generated", [False, True])
def test_unusable_official_set_gives_a_warning(damage: Any, message: str, is_generated: bool, cache: Path):
    if is_generated:
        make_set(split(), cache / "made", "c", names=NAMES)
    damage(make_published(cache / "CIFAR-10-C"))
    with pytest.warns(UserWarning, match=f"{message}.*; generated images are used instead of official ones"):
        result = find_set(split(), "c", NAMES)
    assert (
        isinstance(result, StoredSet if is_generated else GeneratedSet) and message in result.fallback_reason
    )
    assert result.description == GeneratedSet(split(), "c").description
    make_published(cache / "whole")
    assert find_set(split(), "c", NAMES).fallback_reason == ""


def test_damaged_set_of_other_images_gives_no_warning(cache: Path):
    (make_published(cache / "other", given=split(shift=5)) / "fog.npy").unlink()
    make_set(split(), cache / "made", "c", names=["fog"])
    result = find_set(split(), "c", NAMES)
    assert isinstance(result, GeneratedSet) and result.fallback_reason == ""


def test_official_sets_have_different_descriptions(tmp_path: Path):
    one = make_published(tmp_path / "one")
    same, other = make_published(tmp_path / "same"), make_published(tmp_path / "other")
    np.save(other / "gaussian_noise.npy", np.load(other / "gaussian_noise.npy") // 2)
    about = [find_set(split(), "c", ["fog"], folder).description for folder in (one, same, other)]
    assert about[0] == about[1] != about[2]


@pytest.mark.parametrize("kind", ["c", "p"])
def test_large_images_are_generated_in_small_batches(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    names, seen = (["fog", "snow"] if kind == "c" else ["scale", "snow"]), list[int]()
    make = partial(make_set, kind=kind, names=names)
    complete = files(make(split(), tmp_path / "whole"))
    monkeypatch.setattr(generate, "MAX_BATCH_VALUES", 2 * 16 * 16 * 3 + 5)
    original = TensorSplit.fetch

    def counted(self: TensorSplit, index: Any) -> Any:
        seen.append(len(index))
        return original(self, index)

    monkeypatch.setattr(TensorSplit, "fetch", counted)
    assert files(make(split(), tmp_path / "few")) == complete
    assert max(seen) == 2


def test_batch_size_bounds_memory():
    images = TensorSplit(torch.zeros(1, 3, 224, 224, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), 2)
    assert batch_size_for(images, 512) * 224 * 224 * 3 * 8 < 40e6
    assert (
        batch_size_for(images, 512, 31) == 1
        and batch_size_for(split(), 512) == 512
        and batch_size_for(split(), 512, 31) == 16
    )


def test_published_set_of_other_images_is_refused(tmp_path: Path):
    folder = make_published(tmp_path / "data", given=split(shift=5))
    with pytest.raises(RunError, match="of 10 images are not those of the data"):
        find_set(split(), "c", NAMES, folder)


def test_generated_set_of_other_images_is_not_used(cache: Path):
    make_set(split(shift=5), cache / "other", "c", names=NAMES)
    with pytest.raises(RunError, match="generated from other images"):
        find_set(split(), "c", NAMES, cache)
    assert isinstance(find_set(split(), "c", NAMES), GeneratedSet)


def test_set_of_another_seed_is_used_only_in_given_folder(cache: Path):
    make_set(split(), cache / "other", "c", names=NAMES, seed=3)
    assert isinstance(find_set(split(), "c", NAMES), GeneratedSet)
    named = find_set(split(), "c", NAMES, cache / "other")
    assert isinstance(named, StoredSet) and "seed 3" in named.description


def test_error_of_an_empty_folder_names_missing_files(tmp_path: Path):
    with pytest.raises(RunError, match=r"no set found, expected fog.npy as in CIFAR-10-C in it"):
        find_set(split(), "c", NAMES, tmp_path)
    with pytest.raises(RunError, match="no set found"):
        find_set(split(), "p", ["tilt"], tmp_path / "nowhere")


def test_fetch_uint8_returns_stored_bytes():
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    given = TensorSplit(levels, torch.zeros(1, dtype=torch.int64), 2)
    assert fetch_uint8(given, torch.arange(1)).ravel().tolist() == list(range(256))


def test_a_set_continues_after_a_full_disk(tmp_path: Path):
    with small_disk(tmp_path / "disk", 200) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"0" * (180 << 10))
        with pytest.raises(
            StorageError, match=r"\.npy: cannot be written, the disk is full; free some space"
        ):
            make_set(split(), disk / "c", "c", names=NAMES)
        assert not list((disk / "c").glob(".*.tmp"))
        ballast.unlink()
        make_set(split(), disk / "c", "c", names=NAMES)
        make_set(split(), tmp_path / "c", "c", names=NAMES)
        for name in NAMES:
            assert (disk / "c" / f"{name}.npy").read_bytes() == (tmp_path / "c" / f"{name}.npy").read_bytes()


def test_a_set_below_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/c: cannot be written \(Not a directory\)"):
        make_set(split(), tmp_path / "file" / "c", "c", names=NAMES)
