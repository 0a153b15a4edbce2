"""The cache, downloads, and archives."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import random
import re
import shutil
import tarfile
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from allrounder.data.files import archives, download
from allrounder.data.files.archives import extract, read_members
from allrounder.data.files.cache import (
    cache_folder,
    dataset_folder,
    find_published,
    match_name,
    missing_error,
    verify,
)
from allrounder.data.files.catalog import PUBLISHED, PublishedFile
from allrounder.data.files.download import copy_verified, download_file
from allrounder.data.files.locks import partial_path
from allrounder.errors import DataError
from tests.support import formats
from tests.support.servers import Server, serve_files

RAW = b"\x9d\x00\x17" + bytes(range(256)) * 3000
MD5 = hashlib.md5(RAW).hexdigest()


def zipped(**members: bytes) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return raw.getvalue()


ZIP = zipped(a=b"1" * 5000, b=random.Random(0).randbytes(5000))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serve_files({"file": RAW, "other": RAW, "file.zip": ZIP, "file.gz": gzip.compress(RAW)}) as shop:
        yield shop


class Messages:
    """A progress that keeps what it receives."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.steps: list[int] = []
        self.logged: list[str] = []

    def begin(self, total: int, done: int) -> None:
        self.begun.append((total, done))

    def step(self, t: int) -> None:
        self.steps.append(t)

    def log(self, text: str) -> None:
        self.logged.append(text)


def file(server: Server, *names: str, md5: str | None = MD5) -> PublishedFile:
    """A published file with its first name, which the server has under all of them."""
    urls = tuple(url for name in names for url in server.urls(name))
    return PublishedFile(name=names[0], md5=md5, urls=urls)


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_cache_folder_is_the_variable_or_the_default_of_the_system(monkeypatch, tmp_path):
    monkeypatch.setenv("ALLROUNDER_DATA", str(tmp_path))
    assert cache_folder() == tmp_path and dataset_folder("svhn") == tmp_path / "svhn"
    assert dataset_folder("svhn", str(tmp_path / "own")) == tmp_path / "own"
    monkeypatch.setenv("ALLROUNDER_DATA", "~/sets")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sets"
    monkeypatch.setenv("ALLROUNDER_DATA", "")
    assert cache_folder() == platformdirs.user_cache_path("allrounder")


@pytest.mark.parametrize("text", ["CIFAR-10", "cifar10", "Cifar_10", "CIFAR10", "cifar-10"])
def test_names_match_regardless_of_case_and_dashes(text):
    assert find_published(text)[0] == "cifar10"
    assert match_name(text, ("cifar100", "cifar10")) == "cifar10" and match_name(text, ("mnist",)) is None


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(
        DataError, match=r'fashon-mnist: no such dataset \(known: mnist, .*did you mean "fashion-mnist"'
    ):
        find_published("fashon-mnist")


def test_every_published_file_has_addresses_and_all_but_one_a_checksum():
    files = [file for entry in PUBLISHED.values() for file in (*entry.files, *entry.alternatives)]
    assert len({file.md5 for file in files}) == len(files) == 17
    for published in files:
        assert published.urls and all(re.fullmatch(r"https?://\S+", url) for url in published.urls)
        assert all(published.name in url for url in published.urls)
        assert published.md5 is None or re.fullmatch("[0-9a-f]{32}", published.md5)
    assert [file.name for file in files if file.md5 is None] == ["tiny-imagenet-200.zip"]


def test_download_writes_the_file_and_reports_progress(server, tmp_path):
    messages, where = Messages(), tmp_path / "deep" / "folder"
    assert download_file(file(server, "file"), where, messages) == where / "file"
    assert (where / "file").read_bytes() == RAW and file_names(where) == ["file"]
    assert messages.begun == [(len(RAW), 0)] and messages.steps[-1] == len(RAW)
    assert messages.steps == sorted(set(messages.steps)) and len(messages.steps) > 2


def test_verified_file_is_not_downloaded_again(server, tmp_path):
    (tmp_path / "file").write_bytes(RAW)
    download_file(file(server, "file"), tmp_path)
    (tmp_path / "file.zip").write_bytes(ZIP)
    download_file(file(server, "file.zip", md5=None), tmp_path)
    assert server.requests == []


def test_wrong_file_is_replaced_only_by_a_verified_one(server, tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    messages = Messages()
    server.behaviors["file"] = "missing"
    with pytest.raises(DataError):
        download_file(file(server, "file"), tmp_path, messages)
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert "has MD5" in messages.logged[0] and "downloaded again" in messages.logged[0]
    server.behaviors["file"] = "good"
    download_file(file(server, "file"), tmp_path)
    assert (tmp_path / "file").read_bytes() == RAW


def test_interrupted_download_is_resumed(server, tmp_path):
    partial_path(tmp_path / "file").write_bytes(RAW[:1000])
    messages = Messages()
    download_file(file(server, "file"), tmp_path, messages)
    assert server.requests == [("file", "bytes=1000-")] and messages.begun == [(len(RAW), 1000)]
    assert (tmp_path / "file").read_bytes() == RAW and file_names(tmp_path) == ["file"]


def test_dropped_connection_is_made_again(server, tmp_path):
    server.behaviors["file"] = "drop once"
    download_file(file(server, "file"), tmp_path)
    half = len(RAW) // 2 // download.CHUNK_BYTES * download.CHUNK_BYTES
    assert [wanted for _, wanted in server.requests] == [None, f"bytes={half}-"] and half > 0
    assert (tmp_path / "file").read_bytes() == RAW and file_names(tmp_path) == ["file"]


def test_part_of_a_failed_download_is_kept_for_the_next_call(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MAX_ATTEMPTS", 2)
    server.behaviors["file"] = "drop"
    with pytest.raises(DataError) as raised:
        download_file(file(server, "file"), tmp_path)
    kept = partial_path(tmp_path / "file").stat().st_size
    assert len(RAW) / 2 < kept < len(RAW) and file_names(tmp_path) == ["file.part"]
    assert f"{kept} bytes are kept in {tmp_path / 'file.part'}, and the next call resumes from there" in str(
        raised.value
    )
    server.behaviors["file"] = "good"
    download_file(file(server, "file"), tmp_path)
    assert server.requests[-1] == ("file", f"bytes={kept}-") and (tmp_path / "file").read_bytes() == RAW


@pytest.mark.parametrize("way", ["no range", "other range"])
def test_download_restarts_if_the_server_ignores_ranges(server, tmp_path, way):
    partial_path(tmp_path / "file").write_bytes(RAW[:1000])
    server.behaviors["file"] = way
    download_file(file(server, "file"), tmp_path)
    assert (tmp_path / "file").read_bytes() == RAW and file_names(tmp_path) == ["file"]


@pytest.mark.parametrize("kept", [b"", RAW, RAW + b"more", b"x" * 1000, b"x" * len(RAW)])
def test_download_is_verified_for_any_kept_part(server, tmp_path, kept):
    partial_path(tmp_path / "file").write_bytes(kept)
    download_file(file(server, "file"), tmp_path)
    assert (tmp_path / "file").read_bytes() == RAW and file_names(tmp_path) == ["file"]
    assert kept != RAW or server.requests == [("file", f"bytes={len(RAW)}-")]


def test_redirects_are_followed_and_compressed_files_stay_compressed(server, tmp_path):
    server.behaviors = {"file": "moved", "file.gz": "packed"}
    assert download_file(file(server, "file"), tmp_path).read_bytes() == RAW
    packed = server.files["file.gz"]
    download_file(file(server, "file.gz", md5=hashlib.md5(packed).hexdigest()), tmp_path)
    assert (tmp_path / "file.gz").read_bytes() == packed


@pytest.mark.parametrize("way", ["missing", "page", "lying"])
def test_next_address_is_tried(server, tmp_path, way):
    server.behaviors["file"] = way
    download_file(file(server, "file", "other"), tmp_path)
    assert (tmp_path / "file").read_bytes() == RAW and file_names(tmp_path) == ["file"]
    assert [name for name, _ in server.requests][-1] == "other"


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("missing", "404"),
        ("page", "it sent a web page in place of the file"),
        ("lying", f"expected {MD5}"),
        ("short", f"expected {MD5}"),
    ],
)
def test_wrong_content_is_refused_and_leaves_nothing(server, tmp_path, way, message):
    server.behaviors["file"] = way
    with pytest.raises(DataError) as raised:
        download_file(file(server, "file"), tmp_path)
    assert message in str(raised.value) and file_names(tmp_path) == []
    assert f"put it at {tmp_path / 'file'} (MD5 {MD5}, from {server.url}/file)" in str(raised.value)


@pytest.mark.parametrize("way", ["page", "lying", "short"])
def test_archive_without_a_checksum_must_be_complete(server, tmp_path, way):
    wanted = file(server, "file.zip", md5=None)
    server.behaviors["file.zip"] = way
    (tmp_path / "file.zip").write_bytes(ZIP[:100])
    with pytest.raises(DataError, match=r"web page|is no zip archive, or one cut short"):
        download_file(wanted, tmp_path)
    assert not partial_path(tmp_path / "file.zip").exists()
    server.behaviors["file.zip"] = "good"
    assert (
        download_file(wanted, tmp_path).read_bytes() == ZIP and verify(tmp_path / "file.zip", wanted) is None
    )


def test_error_without_a_network_names_the_file_and_its_place(tmp_path):
    nowhere = PublishedFile(name="set.zip", urls=("http://127.0.0.1:9/set.zip",))
    with pytest.raises(DataError) as raised:
        download_file(nowhere, tmp_path)
    assert "set.zip: cannot be downloaded (http://127.0.0.1:9/set.zip: " in str(raised.value)
    assert "object at 0x" not in str(raised.value) and "refused" in str(raised.value)
    assert (
        f"put it at {tmp_path / 'set.zip'} (no published checksum, from http://127.0.0.1:9/set.zip)"
        in str(raised.value)
    )
    assert file_names(tmp_path) == []


def test_full_disk_is_reported_and_leaves_nothing(server, tmp_path):
    class FullDisk(Messages):
        def step(self, t: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        DataError, match=r"file: the disk is full; free some space, or move .* ALLROUNDER_DATA"
    ):
        download_file(file(server, "file", "other"), tmp_path, FullDisk())
    assert file_names(tmp_path) == [] and len(server.requests) == 1


def test_unwritable_cache_raises_an_error(server, tmp_path, monkeypatch):
    (tmp_path / "taken").write_bytes(b"a file")
    with pytest.raises(
        DataError, match=r"cannot be written \(.*\); make the folder writable, or move the cache"
    ):
        download_file(file(server, "file"), tmp_path / "taken")

    def forbidden(self: Path, *settings: Any, **words: Any) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(DataError, match=r"cannot be written \(Read-only file system\)"):
        download_file(file(server, "file"), tmp_path / "new")
    assert server.requests == []


def test_download_prints_nothing(server, tmp_path, capsys):
    download_file(file(server, "file"), tmp_path)
    assert capsys.readouterr() == ("", "")


def test_local_file_is_verified_and_copied(server, tmp_path):
    source, cache = tmp_path / "disk", tmp_path / "cache"
    source.mkdir()
    (source / "file").write_bytes(RAW)
    assert copy_verified(source / "file", file(server, "file"), cache).read_bytes() == RAW and file_names(
        cache
    ) == ["file"]
    assert copy_verified(cache / "file", file(server, "file"), cache).read_bytes() == RAW
    (source / "file").write_bytes(RAW[:-1])
    with pytest.raises(DataError, match=rf"disk/file: has MD5 [0-9a-f]+, expected {MD5}; get it from http"):
        copy_verified(source / "file", file(server, "file"), tmp_path / "other")
    with pytest.raises(DataError, match="nothing: is not there"):
        copy_verified(source / "nothing", file(server, "file"), tmp_path / "other")
    assert not (tmp_path / "other").exists() and server.requests == []


def test_verify_names_the_problem(tmp_path, server):
    for raw, message in (
        (b" <html>", "is a web page"),
        (b"", "has MD5 d41d8cd98f00b204e9800998ecf8427e, expected"),
    ):
        (tmp_path / "file").write_bytes(raw)
        assert message in (verify(tmp_path / "file", file(server, "file")) or "")
    assert verify(tmp_path / "none", file(server, "file")) == "is not there"
    assert verify(tmp_path / ("x" * 300), file(server, "file")) == "cannot be read (File name too long)"
    assert "allrounder data get mnist" in str(missing_error("mnist", tmp_path, ["x"]))


FILES = {"top/a.txt": b"one", "top/deep/b.bin": bytes(3000)}


def write(path: Path, members: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        path.write_bytes(zipped(**members))
    else:
        formats.write_tar(path, members)
    return path


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz"])
def test_archive_is_unpacked_completely(tmp_path, name):
    archive = write(tmp_path / name, FILES)
    extract(archive, tmp_path / "whole")
    extract(archive, tmp_path / "part", "top")
    for file_name, raw in FILES.items():
        assert (tmp_path / "whole" / file_name).read_bytes() == raw
        assert (tmp_path / "part" / Path(file_name).relative_to("top")).read_bytes() == raw
    assert file_names(tmp_path) == sorted([name, "part", "whole"])
    assert read_members(archive, ["b.bin", "none"]) == {"b.bin": bytes(3000)}
    with pytest.raises(ValueError, match="has no folder elsewhere"):
        extract(archive, tmp_path / "not", "elsewhere")
    assert file_names(tmp_path) == sorted([name, "part", "whole"])


@pytest.mark.parametrize("bad", ["../out", "top/../../out", "/out", "a\\..\\out", "c:out"])
@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
def test_name_outside_the_folder_is_refused(tmp_path, name, bad):
    archive = write(tmp_path / name, {"good": b"1", bad: b"2"})
    with pytest.raises(ValueError, match=r"leads out of the folder; do not use this archive"):
        extract(archive, tmp_path / "target")
    assert file_names(tmp_path) == [name] and "out" not in file_names(tmp_path.parent)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(ValueError, match="link is a link, a device or encrypted, expected files"):
        extract(tmp_path / "x.tar", tmp_path / "target")
    assert file_names(tmp_path) == ["x.tar"]


def test_a_link_in_a_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(ValueError, match="link is a link, a device or encrypted, expected files"):
        extract(tmp_path / "x.zip", tmp_path / "target")
    assert file_names(tmp_path) == ["x.zip"]


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
def test_archive_above_the_limits_is_refused(tmp_path, name, monkeypatch):
    archive = write(tmp_path / name, FILES)
    for refused in (
        lambda: extract(archive, tmp_path / "t", max_bytes=2999),
        lambda: read_members(archive, [], max_bytes=2999),
    ):
        with pytest.raises(ValueError, match="holds more files or bytes than is allowed"):
            refused()
    monkeypatch.setattr(archives, "MAX_FILES", 1)
    with pytest.raises(ValueError, match="holds more files or bytes than is allowed"):
        extract(archive, tmp_path / "t")
    assert file_names(tmp_path) == [name]


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz"])
def test_a_damaged_archive_leaves_nothing(tmp_path, name):
    archive = write(tmp_path / name, {**FILES, "top/noise": os.urandom(9000)})
    whole = archive.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 255
    for raw in (whole[: len(whole) // 2], bytes(damaged), b"nonsense" * 100):
        archive.write_bytes(raw)
        with pytest.raises(ValueError, match=rf"{name}: cut short or damaged \(.*\); get it again"):
            extract(archive, tmp_path / "target")
        assert file_names(tmp_path) == [name]


def test_duplicate_name_is_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for raw in (b"one", b"two"):
            info = tarfile.TarInfo("same")
            info.size = 3
            archive.addfile(info, io.BytesIO(raw))
    with pytest.raises(ValueError, match="holds a name twice"):
        extract(tmp_path / "x.tar", tmp_path / "target")
    with pytest.raises(ValueError, match="holds same twice"):
        read_members(tmp_path / "x.tar", ["same"])
    assert file_names(tmp_path) == ["x.tar"]


def test_unpacking_onto_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*settings: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    archive = write(tmp_path / "x.zip", FILES)
    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(DataError, match="target: the disk is full"):
        extract(archive, tmp_path / "target")
    assert file_names(tmp_path) == ["x.zip"]


def test_false_size_in_a_zip_header_does_not_get_around_the_limit(tmp_path):
    archive = write(tmp_path / "x.zip", {"long": bytes(5000)})
    archive.write_bytes(
        archive.read_bytes().replace((5000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    )
    with pytest.raises(ValueError, match="cut short or damaged"):
        extract(archive, tmp_path / "target", max_bytes=100)
    assert file_names(tmp_path) == ["x.zip"]
