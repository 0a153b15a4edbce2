"""The commands data get, data check and data where, against a server on this machine."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from allrounder.data.files.catalog import IDX_FILES, PUBLISHED, PublishedDataset, PublishedFile
from tests.support import formats
from tests.support.formats import random_images
from tests.support.servers import Server, serve_files
from tests.unit.cli.test_main import Command, allrounder, flat

__all__ = ["allrounder"]  # a fixture

GREY = random_images(40, (28, 28), 10), random_images(20, (28, 28), 10, seed=1)
COLOUR = random_images(40, (3, 32, 32), 10), random_images(20, (3, 32, 32), 10, seed=1)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALLROUNDER_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Server]:
    """A server with a small MNIST and a small archive, published as the real ones are."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    formats.write_idx(tmp_path / "source", *GREY)
    files = {name: (tmp_path / "source" / name).read_bytes() for name in IDX_FILES}
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("tiny-imagenet-200/words.txt", "n01443537\tgoldfish")
    files["tiny-imagenet-200.zip"] = raw.getvalue()
    with serve_files(files) as shop:
        sums = [(name, hashlib.md5(files[name]).hexdigest()) for name in IDX_FILES]
        mnist = tuple(PublishedFile(name=name, md5=md5, urls=shop.urls(name)) for name, md5 in sums)
        tiny = PublishedFile(name="tiny-imagenet-200.zip", urls=shop.urls("tiny-imagenet-200.zip"))
        monkeypatch.setitem(PUBLISHED, "mnist", PublishedDataset(about="digits", files=mnist))
        entry = PublishedDataset(about="photographs", files=(tiny,), unpacked="tiny-imagenet-200")
        monkeypatch.setitem(PUBLISHED, "tiny-imagenet", entry)
        yield shop


def test_a_dataset_is_fetched_once_and_then_checked(allrounder: Command, server: Server, cache: Path):
    answer = allrounder("data", "get", "MNIST")
    assert answer.code == 0, answer.err
    assert f"mnist: digits; into {cache / 'mnist'}" in answer.out
    for file in PUBLISHED["mnist"].files:
        assert f"{file.name}: from {file.urls[0]}" in flat(answer.out)
        assert f"MD5 {file.md5} is right" in flat(answer.out)
    assert sorted(path.name for path in (cache / "mnist").iterdir()) == sorted(IDX_FILES)
    assert len(server.requests) == 4
    again = allrounder("data", "get", "mnist")
    assert again.code == 0 and again.out.count("already there, MD5") == 4 and len(server.requests) == 4
    checked = allrounder("data", "check", "Mnist")
    assert checked.code == 0, checked.err
    assert "mnist train: 40 images 1x28x28, 10 classes" in checked.out
    assert "mnist test: 20 images 1x28x28, 10 classes" in checked.out
    assert checked.out.count("is right") == 4 and "mnist: nothing is wrong" in checked.out
    assert "class" in checked.out and " 4 " in checked.out


def test_files_may_come_from_a_folder(allrounder: Command, server: Server, cache: Path, tmp_path: Path):
    answer = allrounder("data", "get", "mnist", "--from", str(tmp_path / "source"))
    assert answer.code == 0, answer.err
    assert (
        sorted(path.name for path in (cache / "mnist").iterdir()) == sorted(IDX_FILES)
        and server.requests == []
    )
    other = allrounder("data", "get", "tiny-imagenet", "--from", str(tmp_path / "source"))
    assert other.code == 1 and "tiny-imagenet-200.zip: is not there; get it from http" in flat(other.err)


def cifar_folders(version: str) -> tuple[str, dict[str, bytes]]:
    """A dataset, and the files of one of its versions as its archive has them."""
    fine = [f"name{number}" for number in range(100)]
    hundred = [(*split, split[1] % 20) for split in COLOUR]
    match version:
        case "cifar-10-batches-bin":
            return "cifar10", formats.cifar10_binary(*COLOUR)
        case "cifar-10-batches-py":
            return "cifar10", formats.cifar10_python(*COLOUR)
        case "cifar-100-binary":
            return "cifar100", formats.cifar100_binary(hundred[0], hundred[1], fine)
        case _:
            return "cifar100", formats.cifar100_python(hundred[0], hundred[1])


@pytest.mark.parametrize(
    "version", ["cifar-10-batches-bin", "cifar-10-batches-py", "cifar-100-binary", "cifar-100-python"]
)
@pytest.mark.parametrize("inner", [False, True])
def test_an_unpacked_folder_of_cifar_may_be_given(
    version: str,
    inner: bool,
    allrounder: Command,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    name, files = cifar_folders(version)
    for path, raw in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(raw)
    source = tmp_path / version if inner else tmp_path
    refused = allrounder("data", "get", name, "--from", str(source))
    assert refused.code == 1 and "has 40 training images, the published set 50000" in flat(refused.err)
    assert not (cache / name).exists()
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], num_images=(40, 20)))
    answer = allrounder("data", "get", name, "--from", str(source))
    assert answer.code == 0, answer.err
    target = cache / name / version
    assert f"{target}: " in flat(answer.out) and "no published checksum" in flat(answer.out)
    assert "readme.html" not in [path.name for path in target.iterdir()]
    assert [path.name for path in (cache / name).iterdir()] == [version]
    again = allrounder("data", "get", name, "--from", str(source))
    assert again.code == 0 and "already there" in again.out
    checked = allrounder("data", "check", name)
    assert checked.code == 0 and f"{name} train: 40 images 3x32x32" in checked.out
    assert "complete" in allrounder("data", "where").out


def test_an_incomplete_unpacked_folder_is_not_copied(allrounder: Command, cache: Path, tmp_path: Path):
    _, files = cifar_folders("cifar-10-batches-bin")
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "data_batch_1.bin").write_bytes(files["cifar-10-batches-bin/data_batch_1.bin"])
    answer = allrounder("data", "get", "cifar10", "--from", str(tmp_path))
    assert answer.code == 1 and "has no data_batch_2.bin" in flat(answer.err)
    assert not (cache / "cifar10").exists()
    nowhere = allrounder("data", "get", "cifar10", "--from", str(tmp_path / "nowhere"))
    assert nowhere.code == 1 and "nowhere: no such folder" in flat(nowhere.err)


def test_the_archive_of_the_other_version_may_be_given(
    allrounder: Command, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive = tmp_path / "cifar-10-python.tar.gz"
    formats.write_tar(archive, cifar_folders("cifar-10-batches-py")[1])
    refused = allrounder("data", "get", "cifar10", "--from", str(tmp_path))
    assert refused.code == 1 and "cifar-10-python.tar.gz: has MD5" in flat(refused.err)
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    other = replace(PUBLISHED["cifar10"].alternatives[0], md5=md5)
    monkeypatch.setitem(PUBLISHED, "cifar10", replace(PUBLISHED["cifar10"], alternatives=(other,)))
    for source in (tmp_path, archive):
        answer = allrounder("data", "get", "cifar10", "--from", str(source))
        assert answer.code == 0, answer.err
    assert [path.name for path in (cache / "cifar10").iterdir()] == [archive.name]


def test_an_archive_is_fetched_and_unpacked(allrounder: Command, server: Server, cache: Path):
    answer = allrounder("data", "get", "Tiny-ImageNet")
    assert answer.code == 0, answer.err
    assert "no published checksum" in flat(answer.out)
    words = cache / "tiny-imagenet" / "tiny-imagenet-200" / "words.txt"
    assert words.read_text() == "n01443537\tgoldfish"
    (cache / "tiny-imagenet" / "tiny-imagenet-200.zip").unlink()
    again = allrounder("data", "get", "tiny-imagenet")
    assert again.code == 0 and "already there, unpacked" in again.out and len(server.requests) == 1


def test_a_failed_download_prints_instructions_for_every_missing_file(
    allrounder: Command, server: Server, cache: Path
):
    server.behaviors = {IDX_FILES[1]: "missing"}
    answer = allrounder("data", "get", "mnist")
    assert answer.code == 1 and "Traceback" not in answer.err
    assert "404" in answer.err and f"{IDX_FILES[1]}: cannot be downloaded" in flat(answer.err)
    for file in PUBLISHED["mnist"].files[1:]:
        assert f"put it at {cache / 'mnist' / file.name} (MD5 {file.md5}, from {file.urls[0]})" in flat(
            answer.err
        )
    assert f"put it at {cache / 'mnist' / IDX_FILES[0]}" not in answer.err
    assert [path.name for path in (cache / "mnist").iterdir()] == [IDX_FILES[0]]


@pytest.mark.parametrize("verb", ["get", "check"])
def test_an_unknown_name_is_refused_with_the_nearest(allrounder: Command, cache: Path, verb: str):
    answer = allrounder("data", verb, "cifar11")
    assert answer.code == 1 and 'did you mean "cifar10"?' in flat(answer.err)
    assert "no such dataset (known: " in flat(answer.err) and not cache.exists()


def test_a_changed_file_is_found(allrounder: Command, cache: Path):
    formats.write_idx(cache / "mnist", *GREY)  # not the published ones
    answer = allrounder("data", "check", "mnist")
    assert answer.code == 1
    assert "mnist train: 40 images" in answer.out and "nothing is wrong" not in answer.out
    for file in PUBLISHED["mnist"].files:
        assert (
            f"error: {cache / 'mnist' / file.name}: has MD5" in answer.err
            and f"expected {file.md5}" in answer.err
        )
    (cache / "mnist" / IDX_FILES[3]).write_bytes(b"<html>")
    answer = allrounder("data", "check", "mnist")
    assert f"{IDX_FILES[3]}: is a web page" in answer.err and "begins with 3c68746d" in answer.err


def test_missing_data_is_reported_with_the_command_that_downloads_it(allrounder: Command, cache: Path):
    for name, file in (("cifar10", "cifar-10-binary.tar.gz"), ("cifar10-c", "CIFAR-10-C.tar")):
        answer = allrounder("data", "check", name)
        assert answer.code == 1
        message = f"{cache / name}: has no {file}; put it there, or get it with: allrounder data get {name}"
        assert message in flat(answer.err)


def test_embedded_data_files_and_folders_are_checked_too(allrounder: Command, cache: Path, tmp_path: Path):
    answer = allrounder("data", "check", "Embedded")
    assert answer.code == 0 and "embedded train: 4000 images 1x28x28, 10 classes" in answer.out
    (x, y), (test, labels) = COLOUR
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=test, y_test=labels)
    own = allrounder("data", "check", str(tmp_path / "own.npz"))
    assert own.code == 0 and "own train: 40 images 3x32x32, 10 classes" in own.out
    np.savez(tmp_path / "test.npz", x=test, y=labels)
    alone = allrounder("data", "check", str(tmp_path / "test.npz"))
    assert alone.code == 0 and "test test: 20 images" in alone.out and "train" not in alone.out
    (tmp_path / "own.npz").write_bytes(b"PK")
    damaged = allrounder("data", "check", str(tmp_path / "own.npz"))
    assert damaged.code == 1 and "not an .npz file, or one cut short" in flat(damaged.err)
    for name, raw in formats.cifar10_binary(*COLOUR).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    folder = allrounder("data", "check", str(tmp_path / "cifar-10-batches-bin"))
    assert folder.code == 1 and "cifar10 train: 40 images 3x32x32, 10 classes" in folder.out
    for message in (
        "has 40 training images, the published set 50000",
        "has 20 test images, the published set 10000",
    ):
        assert f"error: cifar10: {message}" in flat(folder.err)
    (tmp_path / "empty").mkdir()
    empty = allrounder("data", "check", str(tmp_path / "empty"))
    assert empty.code == 1 and "empty: has no folders, expected one for each class" in flat(empty.err)


def test_a_folder_is_recognised_by_checksums_first(
    allrounder: Command, server: Server, cache: Path, tmp_path: Path
):
    answer = allrounder("data", "check", str(tmp_path / "source"))
    assert answer.code == 0 and "mnist train: 40 images" in answer.out
    both = PUBLISHED["mnist"], PUBLISHED["fashion-mnist"]
    PUBLISHED["mnist"], PUBLISHED["fashion-mnist"] = both[1], both[0]
    try:
        answer = allrounder("data", "check", str(tmp_path / "source"))
    finally:
        PUBLISHED["mnist"], PUBLISHED["fashion-mnist"] = both
    assert answer.code == 0 and "fashion-mnist train: 40 images" in answer.out


def test_where_lists_the_content_of_the_cache(allrounder: Command, server: Server, cache: Path):
    empty = allrounder("data", "where")
    assert empty.code == 0 and f"cache: {cache} (set by ALLROUNDER_DATA)" in empty.out
    assert (
        "allrounder data get NAME downloads: mnist, fashion-mnist, cifar10" in empty.out
        and not cache.exists()
    )
    assert allrounder("data", "get", "mnist").code == 0
    (cache / "svhn").mkdir()
    (cache / "svhn" / "train_32x32.mat.part").write_bytes(bytes(20_000))
    (cache / "faces").mkdir()
    (cache / "faces" / "x").write_bytes(bytes(5))
    (cache / "cifar10").mkdir()
    answer = allrounder("data", "where")
    lines = {line.split()[1]: line for line in answer.out.splitlines() if line.count("\u2502") > 2}
    assert (
        "4 files, " in lines["mnist"] and "complete" in lines["mnist"] and "incomplete" not in lines["mnist"]
    )
    assert "1 files, 20 kB" in lines["svhn"] and "unfinished" in lines["svhn"]
    assert "1 files, 5 bytes" in lines["faces"] and "not a known dataset" in lines["faces"]
    assert "cifar10" not in lines and "downloads: fashion-mnist, cifar10, " in answer.out


def test_without_the_variable_where_names_it(allrounder: Command, cache: Path, tmp_path: Path, monkeypatch):
    monkeypatch.delenv("ALLROUNDER_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "system"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    answer = allrounder("data", "where")
    assert (
        answer.code == 0 and "(set ALLROUNDER_DATA to move it)" in answer.out and str(tmp_path) in answer.out
    )
