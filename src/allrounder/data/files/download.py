"""Download dataset files: interrupted downloads are resumed, and a file appears verified or not at all."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, final

import pooch

from allrounder.data.files.archives import DamagedArchive, disk_error, extract
from allrounder.data.files.cache import HTML_START, manual_instructions, verify
from allrounder.data.files.catalog import PublishedFile
from allrounder.data.files.locks import file_lock
from allrounder.errors import DataError
from allrounder.system.files import fsync
from allrounder.system.progress import NullProgress, Progress

CHUNK_BYTES = 2**16
MAX_ATTEMPTS = 5
"""Connections per call and address; only one that transferred something is followed by another."""
DISK_ERRNOS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EACCES", "EPERM", "EROFS", "EISDIR", "ENOTDIR", "EEXIST", "EIO")
}
"""Errors of the disk; errors of the network have other numbers or none."""


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
    with _exclusive_write(target, progress):
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
        with _exclusive_write(target, progress):
            shutil.copyfile(source, partial_path(target))
            fsync(partial_path(target))
            partial_path(target).replace(target)
    return target


def unpack(file: PublishedFile, folder: Path, name: str) -> None:
    """Unpack the folder `name` of an archive beside it.

    A damaged archive without a checksum is renamed, so that the next call downloads it again.
    """
    archive = folder / file.name
    try:
        extract(archive, folder / name, name)
    except DamagedArchive as error:
        if file.md5 is not None:
            raise
        renamed = archive.replace(archive.with_name(f"{archive.name}.damaged"))
        raise DataError(
            f"{error}; it was renamed to {renamed.name}, and the next call downloads it again"
        ) from error


def partial_path(target: Path) -> Path:
    """The path of the incomplete download of a file."""
    return target.with_name(f"{target.name}.part")


@contextmanager
def _exclusive_write(target: Path, progress: Progress) -> Generator[None]:
    """Hold the lock of a file; convert disk errors to DataError, and remove the part if the disk is full."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(target, lambda: progress.log(f"{target.name}: waiting for another process")):
            try:
                yield
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    partial_path(target).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise disk_error(target, error) from error


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


def _connect(url: str, published: PublishedFile, part: Path, progress: Progress) -> None:
    """Download over one connection, from the end of the part if the server supports ranges."""
    start = _size(part)
    # "identity": a .gz that is decompressed in transit would have another checksum.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with part.open("ab") as file:
        sink = Sink(file, start, published.size, progress)
        try:
            loader: Callable[..., object] = pooch.HTTPDownloader(
                chunk_size=CHUNK_BYTES, headers=headers, hooks={"response": sink.on_response}
            )
            loader(url, sink, None)
        except OSError:
            if not sink.complete:
                raise
    if sink.total is not None and _size(part) != sink.total:
        raise ConnectionError(f"the connection broke off at {_size(part)} of {sink.total} bytes")


@final
class Sink:
    """The file that pooch writes to; it inspects the response of the server before the first byte."""

    def __init__(self, file: IO[bytes], start: int, size: int | None, progress: Progress):
        """`start` bytes are in the file already; `size` is the published length."""
        self.file = file
        self.done = start
        self.size = size
        self.progress = progress
        self.total: int | None = None
        self.complete = False

    def on_response(self, response: Any, **settings: object) -> None:
        """Decide from the headers whether to append, to start again, or that the file is complete."""
        code, length = response.status_code, response.headers.get("Content-Length")
        span = re.match(r"bytes (?:(\d+)-\d+|\*)/(\d+)", response.headers.get("Content-Range", ""))
        if code == 416:
            self.complete = span is not None and int(span[2]) == self.done
            if not self.complete:
                self._restart()
            return
        if code not in (200, 206):
            return  # a redirect, or an error that requests raises
        if code == 206 and (span is None or span[1] != str(self.done)):
            self._restart()
            raise ConnectionError(f"the server sent another range than requested ({span and span[0]})")
        if code == 206 and span is not None:
            self.total = int(span[2])
        else:
            self.done = 0  # `write` drops the part only when the file itself arrives, not a web page
            self.total = None if length is None else int(length)
        response.raw.headers.pop("Content-Encoding", None)  # the file is compressed, not the transfer
        self.progress.begin(self.total or self.size or 0, self.done)

    def _restart(self) -> None:
        self.file.truncate(0)
        self.done = 0

    def write(self, chunk: bytes) -> None:
        """Append a chunk. Raises WrongContent for a web page."""
        if self.done == 0:
            if re.match(HTML_START, chunk[:64].lower()):
                raise WrongContent("it sent a web page in place of the file")
            self._restart()
        self.file.write(chunk)
        self.done += len(chunk)
        self.progress.step(self.done)

    def flush(self) -> None:
        """Write to disk, so that an interruption keeps what was downloaded."""
        self.file.flush()
