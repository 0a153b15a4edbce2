"""Downloads under trouble: several at once, pages in place of files, signals, damaged archives."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from allrounder.data.files import download
from allrounder.data.files.archives import DamagedArchive, extract
from allrounder.data.files.cache import verify
from allrounder.data.files.catalog import PublishedFile
from allrounder.data.files.download import DownloadError, copy_verified, download_file
from allrounder.data.files.locks import file_lock, partial_path
from allrounder.errors import DataError
from tests.support.pictures import ROOT
from tests.unit.data.files.test_cache import MD5, RAW, ZIP, Messages, file, file_names, server, write, zipped

__all__ = ["server"]  # a fixture


def test_concurrent_downloads_transfer_once(server, tmp_path, monkeypatch):
    begun, go_on, messages = threading.Event(), threading.Event(), Messages()
    connect = download._connect

    def slow(*given: Any) -> None:
        begun.set()
        assert go_on.wait(20)
        connect(*given)

    monkeypatch.setattr(download, "_connect", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(download_file, file(server, "file"), tmp_path)
        assert begun.wait(20)
        second = pool.submit(download_file, file(server, "file"), tmp_path, messages)
        late = time.monotonic() + 20
        while not messages.logged and time.monotonic() < late:
            time.sleep(0.01)
        go_on.set()
        assert first.result() == second.result() == tmp_path / "file"
    assert messages.logged == ["file: waiting for another process"]
    assert len(server.requests) == 1 and file_names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == RAW


def test_lock_is_exclusive_between_threads(tmp_path):
    inside, most = [0], [0]

    def work(_: int) -> None:
        with file_lock(tmp_path / "x"):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.002)
            inside[0] -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(40)))
    assert most == [1] and file_names(tmp_path) == []


def test_concurrent_extractions_unpack_once(tmp_path, monkeypatch):
    archive = write(tmp_path / "x.zip", {"top/a": b"1", "top/b": b"2"})
    copies: list[str] = []
    copy = shutil.copyfileobj

    def slow(*given: Any) -> None:
        copies.append(given[1].name)
        time.sleep(0.1)
        copy(*given)

    monkeypatch.setattr(shutil, "copyfileobj", slow)
    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(extract, archive, tmp_path / "out", "top") for _ in range(2)]:
            one.result()
    assert (
        len(copies) == 2
        and file_names(tmp_path) == ["out", "x.zip"]
        and file_names(tmp_path / "out") == ["a", "b"]
    )


def test_concurrent_copies_give_one_file(server, tmp_path):
    (tmp_path / "file").write_bytes(RAW)
    with ThreadPoolExecutor(4) as pool:
        for one in [
            pool.submit(copy_verified, tmp_path / "file", file(server, "file"), tmp_path / "c")
            for _ in range(8)
        ]:
            one.result()
    assert file_names(tmp_path / "c") == ["file"] and (tmp_path / "c" / "file").read_bytes() == RAW


def test_web_page_does_not_remove_the_kept_part(server, tmp_path):
    partial_path(tmp_path / "file").write_bytes(RAW[:1000])
    server.behaviors["file"] = "page"
    with pytest.raises(
        DownloadError, match=r"it sent a web page in place of the file\)\. 1000 bytes are kept"
    ):
        download_file(file(server, "file"), tmp_path)
    assert partial_path(tmp_path / "file").read_bytes() == RAW[:1000]
    server.behaviors["file"] = "good"
    download_file(file(server, "file"), tmp_path)
    assert server.requests[-1] == ("file", "bytes=1000-") and (tmp_path / "file").read_bytes() == RAW


def test_part_without_a_checksum_is_not_resumed(server, tmp_path):
    partial_path(tmp_path / "file.zip").write_bytes(b"PK of another version")
    download_file(file(server, "file.zip", md5=None), tmp_path)
    assert server.requests == [("file.zip", None)] and (tmp_path / "file.zip").read_bytes() == ZIP
    server.behaviors["file.zip"] = "drop"
    (tmp_path / "file.zip").unlink()
    with pytest.raises(DownloadError) as raised:
        download_file(file(server, "file.zip", md5=None), tmp_path)
    assert file_names(tmp_path) == [] and "are kept" not in str(raised.value)


def test_without_a_checksum_the_length_is_compared(server, tmp_path):
    wanted = PublishedFile(name="file.zip", urls=server.urls("file.zip"), size=len(ZIP))
    (tmp_path / "file.zip").write_bytes(zipped(a=b"another"))
    assert (verify(tmp_path / "file.zip", wanted) or "").endswith(f"bytes, expected {len(ZIP)}")
    download_file(wanted, tmp_path)
    assert (tmp_path / "file.zip").read_bytes() == ZIP and verify(tmp_path / "file.zip", wanted) is None


def test_dangling_link_is_reported(server, tmp_path):
    (tmp_path / "file").symlink_to(tmp_path / "gone")
    assert verify(tmp_path / "file", file(server, "file")) == (
        f"is a link to {tmp_path / 'gone'}, which is not there"
    )


KILLED = """
import sys
from pathlib import Path
from allrounder.data.files import download
from allrounder.data.files.catalog import PublishedFile
check = download.verify
def stopped(path, file):
    if path.suffix == ".part":
        print("whole", flush=True)
        sys.stdin.read()
    return check(path, file)
download.verify = stopped
file = PublishedFile(name="file", md5=sys.argv[2], urls=(sys.argv[3],))
download.download_file(file, Path(sys.argv[1]))
"""


def test_killed_download_keeps_the_part(server, tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path), MD5, *server.urls("file")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline() == b"whole\n"
        process.send_signal(signal.SIGKILL)
    assert file_names(tmp_path) == [".file.lock", "file.part"]
    download_file(file(server, "file"), tmp_path)
    assert file_names(tmp_path) == ["file"] and server.requests[-1] == ("file", f"bytes={len(RAW)}-")


def test_huge_header_is_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", compresslevel=1) as archive:
        info = tarfile.TarInfo("long")
        info.type, info.size = tarfile.XHDTYPE, 2**25
        archive.addfile(info, io.BytesIO(b"9 a=aaaa\n" + bytes(2**25)))
    with pytest.raises(DamagedArchive, match=r"cut short or damaged \(a header of 33554432 bytes\)"):
        extract(tmp_path / "x.tar.gz", tmp_path / "out")
    assert file_names(tmp_path) == ["x.tar.gz"]


@pytest.mark.parametrize("name", ["x.tar.bz2", "x.tar.xz"])
def test_bz2_and_xz_are_read_and_damage_raises_an_error(tmp_path, name):
    with tarfile.open(tmp_path / name, "w:xz" if name.endswith("xz") else "w:bz2") as archive:
        info = tarfile.TarInfo("a")
        info.size = 5000
        archive.addfile(info, io.BytesIO(os.urandom(5000)))
    extract(tmp_path / name, tmp_path / "out")
    assert (tmp_path / "out" / "a").stat().st_size == 5000
    raw = bytearray((tmp_path / name).read_bytes())
    raw[len(raw) // 2] ^= 255
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(DamagedArchive):
        extract(tmp_path / name, tmp_path / "other")
    assert file_names(tmp_path) == ["out", name]


def test_unknown_compression_raises_an_error(tmp_path):
    raw = bytearray(zipped(a=b"1" * 50))
    for head, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        raw[raw.index(head) + at] = 99
    (tmp_path / "x.zip").write_bytes(raw)
    with pytest.raises(DamagedArchive, match=r"x\.zip: cut short or damaged \(.*compression"):
        extract(tmp_path / "x.zip", tmp_path / "out")


def test_unreadable_archive_is_named_in_the_error(tmp_path):
    with pytest.raises(DataError, match=r"gone\.zip: cannot be read \(No such file or directory\)"):
        extract(tmp_path / "gone.zip", tmp_path / "out")
    assert file_names(tmp_path) == []
