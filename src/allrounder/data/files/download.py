"""Download dataset files: interrupted downloads are resumed, and a file appears verified or not at all."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from allrounder.data.files.archives import DamagedArchive, extract
from allrounder.data.files.cache import is_html, manual_instructions, verify
from allrounder.data.files.catalog import PublishedDataset, PublishedFile
from allrounder.data.files.locks import FULL_ERRNOS, exclusive_write, partial_path
from allrounder.errors import DataError
from allrounder.system.files import fsync, temporary_path
from allrounder.system.progress import NullProgress, Progress

CHUNK_BYTES = 2**16
TIMEOUT = 30
"""Seconds without an answer of the server."""
MAX_ATTEMPTS = 5
"""Connections per call and address; only one that transferred something is followed by another."""
DISK_ERRNOS = {*FULL_ERRNOS, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EIO}
"""Errors of the disk, beside PermissionError; errors of the network have other numbers or none."""


class WrongContent(Exception):
    """The server sent something other than the file."""


class DownloadError(DataError):
    """No address provides the file."""


def download_file(file: PublishedFile, folder: Path, progress: Progress = NullProgress()) -> Path:
    """Download a file into a folder unless a verified copy is there; the addresses are tried in order.

    An interrupted download leaves a `.part` file, which the next call resumes. Without a checksum it starts
    again, because nothing shows that both parts belong together.
    """
    target = folder / file.name
    part = partial_path(target)
    reasons: list[str] = []
    if verify(target, file) is None:
        return target
    with exclusive_write(target, lambda: progress.log(f"{target.name}: waiting for another process")):
        if (problem := verify(target, file)) is None:
            return target  # another process downloaded it meanwhile
        if target.exists():
            progress.log(f"{target}: {problem}; it is downloaded again")
        for url in file.urls:
            try:
                _download_from(url, file, part, progress)
                part.replace(target)
                return target
            except WrongContent as error:
                reasons.append(f"{url}: {error}")
            except OSError as error:
                if _is_disk_error(error):
                    raise
                reasons.append(f"{url}: {_plain_message(error)}")
        kept = _size(part)
        if not kept or file.md5 is None:
            part.unlink(missing_ok=True)
    resumable = f" {kept} bytes are kept in {part}, and the next call resumes from there." if kept else ""
    raise DownloadError(
        f"{file.name}: cannot be downloaded ({'; '.join(reasons)}).{resumable if file.md5 else ''} "
        f"Call again, or without a network: {manual_instructions(file, folder)}"
    )


def copy_verified(
    source: Path, file: PublishedFile, folder: Path, progress: Progress = NullProgress()
) -> Path:
    """Copy a local file into a folder if it is the published one; else raise DataError."""
    target = folder / file.name
    if (problem := verify(source, file)) is not None:
        raise DataError(f"{source}: {problem}; get it from {' or '.join(file.urls)}")
    if source.resolve() != target.resolve():
        with exclusive_write(target, lambda: progress.log(f"{target.name}: waiting for another process")):
            part = partial_path(target)
            shutil.copyfile(source, part)
            fsync(part)
            part.replace(target)
    return target


def find_unpacked(source: Path, entry: PublishedDataset) -> tuple[Path, str] | None:
    """Find an unpacked dataset in a folder, or the folder itself: (its path, its usual name)."""
    for name, files in entry.readable_folders:
        for place in (source / name, source):
            if (place / files[0]).is_file():
                return place, name
    return None


def copy_unpacked(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy files of a folder to another folder, which appears complete or not at all."""
    temporary = temporary_path(target)
    with exclusive_write(target):
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            for name in names:
                shutil.copyfile(source / name, temporary / name)
                fsync(temporary / name)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def unpack(file: PublishedFile, folder: Path, name: str) -> None:
    """Unpack a folder of an archive beside it; rename a damaged archive that has no checksum to check."""
    archive = folder / file.name
    try:
        extract(archive, folder / name, name)
    except DamagedArchive as error:
        if file.md5 is not None:
            raise
        renamed = archive.replace(archive.with_name(f"{archive.name}.damaged"))
        outcome = f"it was renamed to {renamed.name}, and the next call downloads it again"
        raise DataError(f"{error}; {outcome}") from error


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _is_disk_error(error: OSError) -> bool:
    return isinstance(error, PermissionError) or error.errno in DISK_ERRNOS


def _plain_message(error: OSError) -> str:
    """The message of a network error without the wrappers and object names that libraries add."""
    inner: object = getattr(error.args[0], "reason", error) if error.args else error
    text = re.sub(r"^(?:<[^<>]*>|\w+\([^()]*\)): ", "", " ".join(str(inner).split()))
    return text[:300] or type(error).__name__


def _download_from(url: str, file: PublishedFile, part: Path, progress: Progress) -> None:
    """Download from one address and verify; start again if an earlier part does not match."""
    if file.md5 is None:
        part.unlink(missing_ok=True)
    for is_last in (False, True) if part.exists() else (True,):
        _transfer(url, file, part, progress)
        if (problem := verify(part, file)) is None:
            fsync(part)
            return
        part.unlink()
        if is_last:
            raise WrongContent(f"what it sent {problem}")
        progress.log(f"{file.name}: the kept part does not match; it is downloaded again")


def _transfer(url: str, file: PublishedFile, part: Path, progress: Progress) -> None:
    """Download a file to its end, over several connections if necessary."""
    for attempts_left in reversed(range(MAX_ATTEMPTS)):
        before = _size(part)
        try:
            return _connect(url, file, part, progress)
        except OSError as error:
            # After a connection that transferred nothing, another one is not expected to do better.
            if not attempts_left or _is_disk_error(error) or _size(part) == before:
                raise


def _connect(url: str, file: PublishedFile, part: Path, progress: Progress) -> None:
    """Download over one connection, from the end of the part if the server supports ranges."""
    import requests  # takes long to import

    done = _size(part)
    # "identity": a .gz that is decompressed in transit would have another checksum.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with (
        requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response,
        part.open("ab") as copy,
    ):
        code, length = response.status_code, response.headers.get("Content-Length")
        span = re.match(r"bytes (?:(\d+)-\d+|\*)/(\d+)", response.headers.get("Content-Range", ""))
        if code == 416 and span is not None and int(span[2]) == done:
            return  # the part is the whole file
        if code == 416 or (code == 206 and (span is None or span[1] != str(done))):
            copy.truncate(0)
            response.raise_for_status()
            raise ConnectionError(f"the server sent another range than requested ({span and span[0]})")
        response.raise_for_status()
        if code == 206 and span is not None:
            total = int(span[2])
        else:
            done, total = 0, None if length is None else int(length)
        response.raw.headers.pop("Content-Encoding", None)  # the file is compressed, not the transfer
        progress.begin(total or file.size or 0, done)
        for chunk in response.iter_content(CHUNK_BYTES):
            if done == 0:
                if is_html(chunk):
                    raise WrongContent("it sent a web page in place of the file")
                copy.truncate(0)  # only now, because a web page must not cost the kept part
            copy.write(chunk)
            copy.flush()  # an interruption keeps what was downloaded
            done += len(chunk)
            progress.step(done)
    if total is not None and done != total:
        raise ConnectionError(f"the connection broke off at {done} of {total} bytes")
