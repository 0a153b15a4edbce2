"""Files from the network: resumed where a connection broke off, checked, and whole or not there at all."""

from __future__ import annotations

import errno
import logging
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, final

import pooch

from allrounder.data.archives import disk_error
from allrounder.data.published import PublishedFile
from allrounder.data.store import PAGE, by_hand, wrong
from allrounder.errors import DataError
from allrounder.progress import Progress, Silent
from allrounder.storage import sync

CHUNK = 2**16
TRIES = 5
"""How often a connection may break off within one call, as long as every one brings something."""
DISK = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EACCES", "EPERM", "EROFS", "EISDIR", "ENOTDIR", "EEXIST", "EIO")
}
"""Errors of a disk; those of a network have other numbers or none."""


class Refused(Exception):
    """What came is not the file, so that nothing of it is kept."""


def fetch(file: PublishedFile, folder: Path, progress: Progress = Silent()) -> Path:
    """Make sure that a file is in a folder and is the published one; the places are tried in order.

    What an interrupted call has fetched is kept in a `.part` beside it, and the next call goes on from there.
    """
    target = folder / file.name
    part = part_of(target)
    reasons: list[str] = []
    with _disk(target, part):
        if (said := wrong(target, file)) is None:
            return target
        if target.exists():
            progress.say(f"{target}: {said}; it is fetched again")
        folder.mkdir(parents=True, exist_ok=True)
        for url in file.urls:
            try:
                _retrieve(url, file, target, progress)
                return target
            except Refused as error:
                part.unlink(missing_ok=True)
                reasons.append(f"{url}: {error}")
            except OSError as error:
                if _of_disk(error):
                    raise
                reasons.append(f"{url}: {_plain(error)}")
        kept = part.stat().st_size if part.is_file() else 0
        if not kept:
            part.unlink(missing_ok=True)
    resumable = f" {kept} bytes are kept in {part}, and the next call goes on from there." if kept else ""
    raise DataError(
        f"{file.name}: cannot be fetched ({'; '.join(reasons)}).{resumable} "
        f"Call again, or without a network: {by_hand(file, folder)}"
    )


def copy_in(source: Path, file: PublishedFile, folder: Path) -> Path:
    """Put a file that somebody has already into a folder, after a check that it is the published one."""
    target = folder / file.name
    if (said := wrong(source, file)) is not None:
        raise DataError(f"{source}: {said}; get it from {' or '.join(file.urls)}")
    with _disk(target, part_of(target)):
        if source.resolve() != target.resolve():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, part_of(target))
            sync(part_of(target))
            part_of(target).replace(target)
    return target


def part_of(target: Path) -> Path:
    """Where a file lies that is not whole yet."""
    return target.with_name(f"{target.name}.part")


@contextmanager
def _disk(target: Path, part: Path) -> Generator[None]:
    """Tell errors of the disk as such, and leave nothing on a disk that is full."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            part.unlink(missing_ok=True)
        raise disk_error(target, error) from error


def _of_disk(error: OSError) -> bool:
    return isinstance(error, PermissionError) or error.errno in DISK


def _plain(error: OSError) -> str:
    """What a network error says, without what lower layers wrap around it and print into it."""
    inner: object = getattr(error.args[0], "reason", error) if error.args else error
    text = re.sub(r"^(?:<[^<>]*>|\w+\([^()]*\)): ", "", " ".join(str(inner).split()))
    return text[:300] or type(error).__name__


def _retrieve(url: str, file: PublishedFile, target: Path, progress: Progress) -> None:
    """Fetch from one place; begin anew where what was kept from before does not fit."""
    known = None if file.md5 is None else f"md5:{file.md5}"
    if known is None:
        target.unlink(missing_ok=True)  # pooch would take it as it is
    again = part_of(target).exists()
    for last in (False, True) if again else (True,):
        loader: Any = Resuming(part_of(target), file, progress)
        try:
            with _silent_pooch():
                pooch.retrieve(url, known, fname=target.name, path=target.parent, downloader=loader)
            return
        except ValueError:
            if last:
                raise Refused(f"what came has another MD5 than the published {file.md5}") from None
            progress.say(f"{target.name}: what was kept of it does not fit; it is fetched anew")


@contextmanager
def _silent_pooch() -> Generator[None]:
    """pooch tells every step to its own log; here the listener is told."""
    log: logging.Logger = pooch.get_logger()
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


@final
class Resuming:
    """A downloader for pooch that goes on where a `.part` file ends, if the server can."""

    def __init__(self, part: Path, file: PublishedFile, progress: Progress):
        """The file that grows, what it is to become, and who is told."""
        self.part, self.file, self.progress = part, file, progress

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        """Fetch, over several connections if need be, and hand the whole over to pooch, which checks it."""
        for left in reversed(range(TRIES)):
            before = self._size()
            try:
                self._connect(url)
                break
            except OSError as error:
                # A connection that changed nothing will not do better the next time.
                if not left or _of_disk(error) or self._size() == before:
                    raise
        if self.file.md5 is None and (said := wrong(self.part, self.file)) is not None:
            raise Refused(f"what came {said}")
        sync(self.part)
        self.part.replace(output_file)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _connect(self, url: str) -> None:
        start = self._size()
        # As it is: a .gz that is unpacked on the way has another checksum.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        with self.part.open("ab") as file:
            sink = Sink(file, start, self.file.size, self.progress)
            try:
                loader: Callable[..., object] = pooch.HTTPDownloader(
                    chunk_size=CHUNK, headers=headers, hooks={"response": sink.hear}
                )
                loader(url, sink, None)
            except OSError:
                if not sink.complete:
                    raise
        if sink.total is not None and self._size() != sink.total:
            raise ConnectionError(f"the connection broke off at {self._size()} of {sink.total} bytes")


@final
class Sink:
    """The growing file, as pooch writes to it; it hears the server's answer before the first byte comes."""

    def __init__(self, file: IO[bytes], start: int, size: int | None, progress: Progress):
        """What is there already, and how much there may be in all."""
        self.file, self.done, self.size, self.progress = file, start, size, progress
        self.total: int | None = None
        self.complete = False

    def hear(self, response: Any, **settings: object) -> None:
        """Go on with what is there, begin anew, or find that all is there already."""
        code, length = response.status_code, response.headers.get("Content-Length")
        span = re.match(r"bytes (?:(\d+)-\d+|\*)/(\d+)", response.headers.get("Content-Range", ""))
        if code == 416:
            self.complete = span is not None and int(span[2]) == self.done
            if not self.complete:
                self._begin_anew()
            return
        if code not in (200, 206):
            return  # a redirection, or an error that requests raises
        if code == 206 and (span is None or span[1] != str(self.done)):
            self._begin_anew()
            raise ConnectionError(f"the server sent another part than was asked for ({span and span[0]})")
        if code == 206 and span is not None:
            self.total = int(span[2])
        else:
            self._begin_anew()
            self.total = None if length is None else int(length)
        response.raw.headers.pop("Content-Encoding", None)  # of the file, not of the way
        self.progress.begin(self.total or self.size or 0, self.done)

    def _begin_anew(self) -> None:
        self.file.truncate(0)
        self.done = 0

    def write(self, chunk: bytes) -> None:
        """More of the file."""
        if self.done == 0 and re.match(PAGE, chunk[:64].lower()):
            raise Refused("a web page came in place of the file")
        self.file.write(chunk)
        self.done += len(chunk)
        self.progress.step(self.done)

    def flush(self) -> None:
        """Whatever is here, an interruption leaves on disk."""
        self.file.flush()
