"""Files of images that would take gigabytes to read are refused with one clear error, before memory is
allocated."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from allrounder.data.base import TensorSplit
from allrounder.data.corruptions.datasets import find_set
from allrounder.data.corruptions.generate import MARKER_FILE, make_set
from allrounder.data.datasets import cifar, npz, svhn
from allrounder.data.datasets.cifar import Cifar10
from allrounder.data.datasets.folder import Folder
from allrounder.data.datasets.mnist import read_idx
from allrounder.data.datasets.npz import Npz, read_arrays
from allrounder.data.datasets.svhn import read_mat
from allrounder.data.files import archives
from allrounder.data.streaming.decode import DecodeSpec
from allrounder.data.streaming.file_index import read_lines
from allrounder.system.memory import total_memory
from allrounder.training.record import FORMAT_FILE, METRICS_FILE, RECIPE_FILE, RunRecord
from tests.support import formats
from tests.support.formats import random_images
from tests.support.refusals import refusal
from tests.support.trainings import SOLO, go, recipe

COLOUR = random_images(40, (3, 32, 32), 10), random_images(20, (3, 32, 32), 10, seed=1)


def header(shape: object, dtype: str = "|u1", version: int = 1) -> bytes:
    """The start of an .npy file."""
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<I", len(text)) + text


def write_npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def test_an_npz_file_that_inflates_beyond_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    size = 2**26
    file = write_npz(tmp_path / "bomb.npz", x_train=header((size,)) + bytes(size))
    assert file.stat().st_size < size // 500
    monkeypatch.setattr(npz, "total_memory", lambda: size - 1)
    message = refusal(lambda: Npz(path=str(file)).load())
    assert "x_train cannot be read (it does not fit into the memory of this machine)" in message
    monkeypatch.setattr(npz, "total_memory", lambda: size)
    assert "no y_train" in refusal(lambda: Npz(path=str(file)).load())


def test_the_arrays_of_a_file_must_fit_into_memory_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parts = {name: header((600,)) + bytes(600) for name in ("x_train", "y_train")}
    file = write_npz(tmp_path / "parts.npz", **parts)
    monkeypatch.setattr(npz, "total_memory", lambda: 1000)
    assert "y_train cannot be read (it does not fit" in refusal(lambda: Npz(path=str(file)).load())


@pytest.mark.parametrize(
    "content",
    [
        header((10**12,)) + bytes(10),
        header((10**6, 10**6, 10**6)) + bytes(10),
        header((-1, -10)) + bytes(10),
        header((10**12,), "<U0"),
        header((10**12,), "|V0"),
        header((5,), version=2)[:8] + b"\xff\xff\xff\xff" + bytes(10),
        header((5,))[:6] + b"\x03\x00" + bytes(20),
        header("(" * 90),
        b"",
    ],
    ids=len,
)
def test_an_array_whose_header_is_false_is_refused(tmp_path: Path, content: bytes):
    file = write_npz(tmp_path / "false.npz", classes=content)
    message = refusal(lambda: read_arrays(file, ["classes"])[0]["classes"].tolist())
    assert "false.npz: classes cannot be read" in message


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sides", [(2**32 - 1, 2**32 - 1, 2**32 - 1), (1, 1, 2**30 - 1)])
def test_an_idx_file_with_a_false_header_is_refused(tmp_path: Path, sides: tuple[int, ...], packed: bool):
    content = bytes((0, 0, 8, 3)) + struct.pack(">3I", *sides) + bytes(1000)
    (tmp_path / "images").write_bytes(gzip.compress(content) if packed else content)
    message = refusal(lambda: read_idx(tmp_path / "images", ndim=3))
    assert "has the shape" in message or "holds 1000 bytes, expected" in message


def test_a_mat_file_that_inflates_beyond_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(svhn, "MAX_BYTES", 2**24)
    packed = zlib.compress(bytes(2**25))
    file = tmp_path / "test_32x32.mat"
    for order, mark in (("<", b"\0\x01IM"), (">", b"\x01\0MI")):
        file.write_bytes(bytes(124) + mark + struct.pack(f"{order}2I", 15, len(packed)) + packed)
        assert "more than 16777216 bytes" in refusal(lambda: read_mat(file))
    with file.open("wb") as large:
        large.write(bytes(124) + b"\0\x01IM")
        large.truncate(2**24)
    assert "more than 100 elements" in refusal(lambda: read_mat(file))
    with file.open("wb") as large:
        large.truncate(2**40)
    assert "more than 16777216 bytes" in refusal(lambda: read_mat(file))


def test_a_file_of_cifar_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "cifar-10-batches-bin"
    for name, content in formats.cifar10_binary(*COLOUR).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with (folder / "data_batch_2.bin").open("wb") as large:
        large.truncate(2**40)
    message = refusal(lambda: Cifar10(folder=str(tmp_path)).load())
    assert "data_batch_2.bin: it has more than 268,435,456 bytes" in message
    monkeypatch.setattr(cifar, "MAX_FILE_BYTES", 1000)
    formats.write_tar(tmp_path / "cifar-10-binary.tar.gz", formats.cifar10_binary(*COLOUR))
    message = refusal(lambda: Cifar10(folder=str(tmp_path)).load())
    assert "expected at most 1000; get it again" in message


@pytest.mark.parametrize("entry", ["folders", "zeros"])
def test_an_archive_without_an_end_is_refused(tmp_path: Path, entry: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "MAX_FILES", 1000)
    folder = tarfile.TarInfo("x/")
    folder.type = tarfile.DIRTYPE
    content = folder.tobuf() * 3000 if entry == "folders" else bytes(2**25)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(gzip.compress(folder.tobuf() + content, 1))
    message = refusal(lambda: Cifar10(folder=str(tmp_path)).load())
    assert ("too many folders" if entry == "folders" else "bytes after its end") in message


def test_a_list_of_images_that_is_too_large_is_refused(tmp_path: Path):
    with (tmp_path / "list.txt").open("wb") as large:
        large.truncate(2**40)
    assert "more than 268,435,456 bytes" in refusal(lambda: read_lines(tmp_path / "list.txt"))


def png(width: int, height: int) -> bytes:
    """A PNG file that has a header, and no pixels."""
    chunk = b"IHDR" + struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    end = b"IEND"
    parts = (chunk, end)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts
    )


@pytest.mark.parametrize("side", [9500, 100_000, 2**31 - 1])
def test_an_image_of_too_many_pixels_is_refused(tmp_path: Path, side: int):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "1.png").write_bytes(png(side, side))
    message = refusal(lambda: Folder(path=str(tmp_path), size=8, workers=0).load())
    assert "train/cat/1.png: " in message
    with pytest.raises(ValueError, match=r"1\.png: "):
        DecodeSpec(8, 8, resize=8).decode(str(tmp_path / "val" / "cat" / "1.png"))
    if side == 9500:
        assert "is 9500x9500, expected at most 89478485 pixels" in message


@pytest.mark.parametrize("content", ["header", "archive", "empty", "objects", "huge"])
def test_an_npy_file_that_is_no_array_is_refused(tmp_path: Path, content: str):
    objects = io.BytesIO()
    np.save(objects, np.array([{}, []], dtype=object), allow_pickle=True)
    raw = {
        "header": header((5,)).replace(b"{", b";"),
        "archive": WHOLE_NPZ,
        "empty": b"",
        "objects": objects.getvalue(),
        "huge": header((10**12,)) + bytes(10),
    }[content]
    (tmp_path / "fog.npy").write_bytes(raw)
    split = TensorSplit(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.arange(2), 2)
    assert "fog.npy: cannot be read (" in refusal(lambda: find_set(split, "c", ["fog"], tmp_path))


@pytest.mark.parametrize("text", ["[" * 10**5, "{}", '{"seed": "x"}', "x" * 2**17, "[1]"], ids=len)
def test_a_false_mark_of_a_generated_set_is_refused(tmp_path: Path, text: str):
    split = TensorSplit(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.arange(2), 2)
    make_set(split, tmp_path / "set", "c", names=["contrast"])
    (tmp_path / "set" / MARKER_FILE).write_text(text)
    message = refusal(lambda: find_set(split, "c", ["contrast"], tmp_path / "set"))
    assert f"{MARKER_FILE}: cannot be read (" in message and "generate it again" in message


@pytest.mark.parametrize("name", [RECIPE_FILE, METRICS_FILE, FORMAT_FILE])
def test_a_file_of_a_run_that_is_too_large_is_refused(tmp_path: Path, name: str):
    run = go(recipe(SOLO), tmp_path / "run")
    with (run.folder / name).open("wb") as large:
        large.truncate(2**40)
    assert f"{name}: cannot be read (it has more than " in refusal(lambda: RunRecord.read(run.folder))


def test_the_memory_of_the_machine_is_known():
    assert 2**28 < total_memory() < 2**50


def npz_bytes() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros((2, 4, 4), np.uint8), y=np.arange(2))
    return buffer.getvalue()


WHOLE_NPZ = npz_bytes()
