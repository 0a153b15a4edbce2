"""Lines are kept in whole pages, each row on one of them, in a folder of one plan and one process."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from allrounder.errors import RunError, StorageError
from allrounder.evaluation.store import (
    FORMAT_VERSION,
    LOCK_FILE,
    PLAN_FILE,
    RESULTS_FOLDER,
    ResultStore,
    open_folder,
)
from allrounder.system.checked_files import add_digest, read_arrays
from tests.support.damage import damages
from tests.support.interruptions import Killed, Point, give_up, struck

IMAGES = 12
PLANNED = {"network": "0123", "seed": 0, "batch_size": 8, "images of data": IMAGES}
APGD, SQUARE = "Apgd(steps=3)@Linf:8/255", "Square(queries=9)@Linf:8/255"


def add_results(store: ResultStore, attack: str, *rows: int, shift: int = 0, x: bool = False) -> None:
    """Lines that can be told by their row: prediction and distance are the row, or near it."""
    index = torch.tensor(rows)
    images = index.float().view(-1, 1, 1, 1).expand(-1, 1, 2, 2) if x else None
    store.add(attack, index, index + shift, (index + shift).double() / 2, images)


def stored(store: ResultStore, attack: str) -> dict[int, tuple[int, float]]:
    lines = store.results(attack)
    rows = lines.done.nonzero().squeeze(1).tolist()
    return {row: (int(lines.predicted[row]), float(lines.distance[row])) for row in rows}


def expected(*rows: int, shift: int = 0) -> dict[int, tuple[int, float]]:
    return {row: (row + shift, (row + shift) / 2) for row in rows}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shards(folder: Path) -> list[Path]:
    return sorted((folder / RESULTS_FOLDER).glob("*/*"))


def test_missing_results_are_empty():
    lines = ResultStore(IMAGES).results(APGD)
    assert not lines.done.any()
    assert lines.predicted.tolist() == [-1] * IMAGES  # no class, so it equals no label
    assert bool(lines.distance.isnan().all()) and lines.distance.dtype == torch.float64


@pytest.mark.parametrize("kept", [False, True])
def test_results_are_stored_by_attack(kept: bool, tmp_path: Path):
    store = ResultStore(IMAGES, tmp_path if kept else None)
    add_results(store, APGD, 3, 1)
    add_results(store, APGD, 7)
    add_results(store, SQUARE, 1, shift=1)
    for reader in (store, ResultStore(IMAGES, tmp_path)) if kept else (store,):
        assert stored(reader, APGD) == expected(1, 3, 7)
        assert stored(reader, SQUARE) == expected(1, shift=1)
        assert stored(reader, "cw@L2:1") == {}
    assert bool(list(tmp_path.iterdir())) is kept


def test_results_round_trip_bit_by_bit(tmp_path: Path):
    rows, predicted = torch.tensor([2, 5, 0]), torch.tensor([9, 0, 3])
    distance = torch.tensor([1 / 3, math.nan, 5e-324], dtype=torch.float64)
    ResultStore(IMAGES, tmp_path).add(APGD, rows, predicted, distance)
    lines = ResultStore(IMAGES, tmp_path).results(APGD)
    assert torch.equal(lines.predicted[rows], predicted)
    assert torch.equal(lines.distance[rows].nan_to_num(-1), distance.nan_to_num(-1))
    assert lines.done.sum() == 3


def test_shard_is_named_by_its_first_row_and_names_its_attack(tmp_path: Path):
    store = ResultStore(IMAGES, tmp_path)
    add_results(store, APGD, 5, 2)
    add_results(store, APGD, 2, 5, 3, 0)  # only what is new is written: from 3 on
    assert [shard.name for shard in shards(tmp_path)] == ["0000003.safetensors", "0000005.safetensors"]
    arrays, fields = read_arrays(shards(tmp_path)[0])
    assert fields == {"attack": APGD} and arrays["row"].tolist() == [3, 0]
    assert stored(ResultStore(IMAGES, tmp_path), APGD) == expected(0, 2, 3, 5)


def test_first_result_of_a_row_counts(tmp_path: Path):
    store = ResultStore(IMAGES, tmp_path)
    add_results(store, APGD, 4, 6)
    before = files(tmp_path)
    add_results(store, APGD, 6, 4, shift=1)
    assert files(tmp_path) == before
    add_results(store, APGD, 4, 8, 6, shift=1)
    for reader in (store, ResultStore(IMAGES, tmp_path)):
        assert stored(reader, APGD) == expected(4, 6) | expected(8, shift=1)
    assert files(tmp_path).items() >= before.items()
    later = ResultStore(IMAGES, tmp_path)  # another process knows what is on disk
    add_results(later, APGD, 4, 9, shift=2)
    assert stored(later, APGD) == expected(4, 6) | expected(8, shift=1) | expected(9, shift=2)


def test_similar_attacks_have_separate_folders(tmp_path: Path):
    store = ResultStore(IMAGES, tmp_path)
    alike = ["Apgd(steps=3)@Linf:1", "Apgd(steps=4)@Linf:1", "apgd(steps=3)@Linf:1", "Apgd", "../../apgd/x"]
    for shift, attack in enumerate(alike):
        add_results(store, attack, 1, shift=shift)
    folders = {shard.parent for shard in shards(tmp_path)}
    assert len(folders) == len(alike) and all(
        folder.parent == tmp_path / RESULTS_FOLDER for folder in folders
    )
    for shift, attack in enumerate(alike):
        assert stored(ResultStore(IMAGES, tmp_path), attack) == expected(1, shift=shift)


def test_images_are_kept_where_they_are_given(tmp_path: Path):
    store = ResultStore(IMAGES, tmp_path)
    add_results(store, APGD, 3, 1, x=True)
    add_results(store, APGD, 1, 8, x=True)
    add_results(store, SQUARE, 2)
    kept = ResultStore(IMAGES, tmp_path).examples(APGD, {1, 3, 5})
    assert sorted(kept) == [1, 3]
    assert all(torch.equal(x, torch.full((1, 2, 2), float(row))) for row, x in kept.items())
    assert store.examples(SQUARE, {2}) == {}
    assert ResultStore(IMAGES).examples(APGD, {1}) == {}


def replacements() -> dict[str, bytes | None]:
    """What may become of a page; None cuts it short."""
    return {"empty": b"", "text": b"hello", "cut": None, "header": b"\xff" * 8 + b"{}"}


@pytest.mark.parametrize("damage", replacements())
def test_damaged_shard_is_set_aside_and_written_again(damage: str, tmp_path: Path):
    add_results(ResultStore(IMAGES, tmp_path), APGD, 3, 4)
    add_results(ResultStore(IMAGES, tmp_path), APGD, 7)
    shard = shards(tmp_path)[0]
    what = replacements()[damage]
    shard.write_bytes(shard.read_bytes()[:-5] if what is None else what)
    damaged = shard.read_bytes()
    message = r"0000003\.safetensors: cannot be read .*; moved to .*damaged.*, its results are computed again"
    for aside in ("0000003.safetensors.damaged", "0000003.safetensors.damaged-2"):
        with pytest.warns(UserWarning, match=message):
            store = ResultStore(IMAGES, tmp_path)
            assert stored(store, APGD) == expected(7)
        assert shard.with_name(aside).read_bytes() == damaged and not shard.exists()
        assert stored(ResultStore(IMAGES, tmp_path), APGD) == expected(7)  # without a warning
        add_results(store, APGD, 3, 4)
        assert stored(ResultStore(IMAGES, tmp_path), APGD) == expected(3, 4, 7)
        shard.write_bytes(damaged)


def test_shard_of_another_attack_or_split_is_set_aside(tmp_path: Path):
    store = ResultStore(IMAGES, tmp_path)
    add_results(store, APGD, 3)
    add_results(store, SQUARE, 3)
    one, other = shards(tmp_path)
    other.write_bytes(one.read_bytes())
    with pytest.warns(UserWarning, match="does not hold results of Square"):
        assert stored(ResultStore(IMAGES, tmp_path), SQUARE) == {}
    with pytest.warns(UserWarning, match="rows beyond the 3 images"):
        assert stored(ResultStore(3, tmp_path), APGD) == {}


def test_unreadable_shard_is_not_set_aside(tmp_path: Path):
    add_results(ResultStore(IMAGES, tmp_path), APGD, 3)
    shard = shards(tmp_path)[0]
    shard.rename(shard.with_name("kept"))
    shard.symlink_to("nowhere")
    with pytest.raises(RunError, match=r"0000003\.safetensors: cannot be read .*make it readable"):
        ResultStore(IMAGES, tmp_path).results(APGD)
    assert shard.is_symlink()


@pytest.mark.parametrize("what", ["shard", "plan"])
def test_damage_never_changes_a_number(what: str, tmp_path: Path):
    with open_folder(tmp_path, PLANNED):
        add_results(ResultStore(IMAGES, tmp_path), APGD, 3, 4, 7, x=True)
    file = shards(tmp_path)[0] if what == "shard" else tmp_path / PLAN_FILE
    content = file.read_bytes()
    for name, damaged in damages(content, 300):
        file.write_bytes(damaged)
        try:
            with warnings.catch_warnings(record=True) as raised, open_folder(tmp_path, PLANNED):
                warnings.simplefilter("always")
                results = stored(ResultStore(IMAGES, tmp_path), APGD)
            assert results == (expected(3, 4, 7) if not raised else {}), name
        except RunError as error:
            assert what == "plan" and "plan.json: " in str(error), name
    assert what == "plan" or len(list(file.parent.glob("*.damaged*"))) > 350


WRITES = {
    "before the page": Point("pathlib:Path.write_bytes"),
    "after the page": Point("pathlib:Path.write_bytes", after=True),
    "before it is in place": Point("pathlib:Path.replace", mentions=".0000005.safetensors.tmp"),
    "after it is in place": Point("pathlib:Path.replace", mentions=".0000005.safetensors.tmp", after=True),
}


@pytest.mark.parametrize("point", WRITES)
def test_interrupted_write_leaves_a_whole_shard_or_none(point: str, tmp_path: Path):
    store = ResultStore(IMAGES, tmp_path)
    add_results(store, APGD, 1)
    with struck(WRITES[point], give_up), pytest.raises(Killed):
        add_results(store, APGD, 5, 6)
    whole = expected(1, 5, 6) if point == "after it is in place" else expected(1)
    assert stored(ResultStore(IMAGES, tmp_path), APGD) == whole
    add_results(store, APGD, 5, 6, 9)  # a process that lives on after that may write again
    for reader in (store, ResultStore(IMAGES, tmp_path)):
        assert stored(reader, APGD) == expected(1, 5, 6, 9)
    assert not [shard for shard in shards(tmp_path) if shard.name.endswith(".tmp")]


def test_full_disk_leaves_earlier_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = ResultStore(IMAGES, tmp_path)
    add_results(store, APGD, 1)

    def full(file: Path, data: bytes) -> None:
        file.write_text("half a shard")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(StorageError, match=r"0000002\.safetensors: cannot be written, the disk is full"):
            add_results(store, APGD, 2)
    assert [shard.name for shard in shards(tmp_path)] == ["0000001.safetensors"]
    assert stored(ResultStore(IMAGES, tmp_path), APGD) == expected(1)


def test_folder_is_created_and_reopened_with_the_same_plan(tmp_path: Path):
    folder = tmp_path / "deep" / "eval"
    for _ in range(2):
        with open_folder(folder, PLANNED):
            plan = json.loads((folder / PLAN_FILE).read_text())
            assert plan == add_digest({**PLANNED, "format": FORMAT_VERSION})
    assert sorted(path.name for path in folder.iterdir()) == [LOCK_FILE, PLAN_FILE]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "holds an evaluation with seed = 0, this one has 1; choose another folder"),
        ({"network": "4567"}, "with network = 0123, this one has 4567"),
        ({"threads": 2}, "with threads = None, this one has 2"),
    ],
)
def test_another_plan_is_refused_and_nothing_is_changed(
    change: dict[str, object], message: str, tmp_path: Path
):
    with open_folder(tmp_path / "eval", PLANNED):
        add_results(ResultStore(IMAGES, tmp_path / "eval"), APGD, 1)
    before = files(tmp_path)
    with (
        pytest.raises(RunError, match=f"eval: .*{message}.*nothing was changed"),
        open_folder(tmp_path / "eval", {**PLANNED, **change}),
    ):
        pytest.fail("it was opened")
    assert files(tmp_path) == before


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, "1", None])
def test_a_folder_in_another_format_is_refused_and_nothing_is_changed(version: object, tmp_path: Path):
    with open_folder(tmp_path, PLANNED):
        add_results(ResultStore(IMAGES, tmp_path), APGD, 1)
    plan = {**PLANNED, "format": version} if version is not None else PLANNED
    (tmp_path / PLAN_FILE).write_text(json.dumps(plan))
    before = files(tmp_path)
    got = "no format version" if version is None else f"format version {version!r}"
    message = rf"plan\.json: got {got}, expected format version {FORMAT_VERSION}; use .*, or"
    with (
        pytest.raises(RunError, match=f"{message} choose another folder, nothing was changed"),
        open_folder(tmp_path, PLANNED),
    ):
        pytest.fail("it was opened")
    assert files(tmp_path) == before


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", '"text"'])
def test_a_plan_that_cannot_be_read_is_named(text: str, tmp_path: Path):
    (tmp_path / PLAN_FILE).write_text(text)
    with pytest.raises(RunError, match=r"plan\.json: cannot be read"), open_folder(tmp_path, PLANNED):
        pytest.fail("it was opened")
    assert (tmp_path / PLAN_FILE).read_text() == text


def test_a_folder_that_is_no_evaluation_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("all of it")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / PLAN_FILE).write_text("{}")
    for place in (tmp_path, tmp_path / "thesis.txt", tmp_path / "other" / PLAN_FILE):
        with (
            pytest.raises(
                RunError, match="exists and is not an evaluation; choose another folder, nothing was"
            ),
            open_folder(place, PLANNED),
        ):
            pytest.fail("it was opened")
    assert files(tmp_path) == {"thesis.txt": b"all of it", f"other/{PLAN_FILE}": b"{}"}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["allrounder.evaluation.store:write_json", "pathlib:Path.replace"])
def test_folder_of_an_interrupted_creation_can_be_used(call: str, after: bool, tmp_path: Path):
    folder = tmp_path / "eval"
    with struck(Point(call, after=after), give_up), pytest.raises(Killed), open_folder(folder, PLANNED):
        pytest.fail("it was opened")
    with open_folder(folder, PLANNED):
        pass
    assert files(folder).keys() == {LOCK_FILE, PLAN_FILE}


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_kept_out_until_the_first_has_ended(tmp_path: Path):
    with open_folder(tmp_path, PLANNED):
        pass
    words = [sys.executable, "-c", HOLD, str(tmp_path / LOCK_FILE)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with (
            pytest.raises(RunError, match="another process is evaluating here; wait for it or stop it"),
            open_folder(tmp_path, PLANNED),
        ):
            pytest.fail("it was opened")
        other.kill()  # whatever ends it, its lock ends with it
    twice = pytest.raises(RunError, match="another process")
    with open_folder(tmp_path, PLANNED), twice, open_folder(tmp_path, PLANNED):
        pytest.fail("it was opened twice")
    with open_folder(tmp_path, PLANNED):
        pass
