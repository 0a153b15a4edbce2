"""Files from the network: resumed where a connection broke off, checked, and whole or not there at all."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, final

import pooch

from allrounder.data.files.archives import Damaged, disk_error, extract
from allrounder.data.files.cache import PAGE, by_hand, wrong
from allrounder.data.files.catalog import PublishedFile
from allrounder.data.files.locks import alone
from allrounder.errors import DataError
from allrounder.system.files import sync
from allrounder.system.progress import Progress, Silent

CHUNK = 2**16
TRIES = 5
"""How often a connection may break off within one call, as long as every one brings something."""
DISK = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EACCES", "EPERM", "EROFS", "EISDIR", "ENOTDIR", "EEXIST", "EIO")
}
"""Errors of a disk; those of a network have other numbers or none."""


class Refused(Exception):
    """What came is not the file."""


class Unfetched(DataError):
    """A file that no place would give."""


def fetch(file: PublishedFile, folder: Path, progress: Progress = Silent()) -> Path:
    """Make sure that a file is in a folder and is the published one; the places are tried in order.

    What an interrupted call has fetched is kept in a `.part` beside it, and the next call goes on from there,
    unless no checksum would tell that both belong together.
    """
    target = folder / file.name
    part = part_of(target)
    reasons: list[str] = []
    if wrong(target, file) is None:
        return target
    with _writing(target, progress):
        if (said := wrong(target, file)) is None:
            return target  # somebody else fetched it meanwhile
        if target.exists():
            progress.say(f"{target}: {said}; it is fetched again")
        for url in file.urls:
            try:
                _retrieve(url, file, part, progress)
                part.replace(target)
                return target
            except Refused as error:
                reasons.append(f"{url}: {error}")
            except OSError as error:
                if _of_disk(error):
                    raise
                reasons.append(f"{url}: {_plain(error)}")
        kept = _size(part)
        if not kept or file.md5 is None:
            part.unlink(missing_ok=True)
    resumable = f" {kept} bytes are kept in {part}, and the next call goes on from there." if kept else ""
    raise Unfetched(
        f"{file.name}: cannot be fetched ({'; '.join(reasons)}).{resumable if file.md5 else ''} "
        f"Call again, or without a network: {by_hand(file, folder)}"
    )


def copy_in(source: Path, file: PublishedFile, folder: Path, progress: Progress = Silent()) -> Path:
    """Put a file that somebody has already into a folder, after a check that it is the published one."""
    target = folder / file.name
    if (said := wrong(source, file)) is not None:
        raise DataError(f"{source}: {said}; get it from {' or '.join(file.urls)}")
    if source.resolve() != target.resolve():
        with _writing(target, progress):
            shutil.copyfile(source, part_of(target))
            sync(part_of(target))
            part_of(target).replace(target)
    return target


def unpack(file: PublishedFile, folder: Path, name: str) -> None:
    """Unpack the folder `name` of an archive beside it.

    An archive without a checksum may turn out to be damaged; it is put away, so that it is fetched again.
    """
    archive = folder / file.name
    try:
        extract(archive, folder / name, name)
    except Damaged as error:
        if file.md5 is not None:
            raise
        away = archive.replace(archive.with_name(f"{archive.name}.damaged"))
        raise DataError(f"{error}; it is {away.name} now, and the next call fetches another") from error


def part_of(target: Path) -> Path:
    """Where a file lies that is not whole yet."""
    return target.with_name(f"{target.name}.part")


@contextmanager
def _writing(target: Path, progress: Progress) -> Generator[None]:
    """Write a file alone; tell errors of the disk as such, and leave nothing on a disk that is full."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target, lambda: progress.say(f"{target.name}: another process fetches it; waiting")):
            try:
                yield
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    part_of(target).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise disk_error(target, error) from error


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _of_disk(error: OSError) -> bool:
    return isinstance(error, PermissionError) or error.errno in DISK


def _plain(error: OSError) -> str:
    """What a network error says, without what lower layers wrap around it and print into it."""
    inner: object = getattr(error.args[0], "reason", error) if error.args else error
    text = re.sub(r"^(?:<[^<>]*>|\w+\([^()]*\)): ", "", " ".join(str(inner).split()))
    return text[:300] or type(error).__name__


def _retrieve(url: str, file: PublishedFile, part: Path, progress: Progress) -> None:
    """Fetch from one place and check; begin anew where what was kept from before does not fit."""
    if file.md5 is None:
        part.unlink(missing_ok=True)
    for last in (False, True) if part.exists() else (True,):
        _transfer(url, file, part, progress)
        if (said := wrong(part, file)) is None:
            sync(part)
            return
        part.unlink()
        if last:
            raise Refused(f"what came {said}")
        progress.say(f"{file.name}: what was kept of it does not fit; it is fetched anew")


def _transfer(url: str, file: PublishedFile, part: Path, progress: Progress) -> None:
    """Fetch a file to its end, over several connections if need be."""
    for left in reversed(range(TRIES)):
        before = _size(part)
        try:
            return _connect(url, file, part, progress)
        except OSError as error:
            # A connection that changed nothing will not do better the next time.
            if not left or _of_disk(error) or _size(part) == before:
                raise


def _connect(url: str, published: PublishedFile, part: Path, progress: Progress) -> None:
    """Go on where the part ends, if the server can."""
    start = _size(part)
    # As it is: a .gz that is unpacked on the way has another checksum.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with part.open("ab") as file:
        sink = Sink(file, start, published.size, progress)
        try:
            loader: Callable[..., object] = pooch.HTTPDownloader(
                chunk_size=CHUNK, headers=headers, hooks={"response": sink.hear}
            )
            loader(url, sink, None)
        except OSError:
            if not sink.complete:
                raise
    if sink.total is not None and _size(part) != sink.total:
        raise ConnectionError(f"the connection broke off at {_size(part)} of {sink.total} bytes")


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
            self.done = 0  # what is there is dropped when the file comes, and not a page in its place
            self.total = None if length is None else int(length)
        response.raw.headers.pop("Content-Encoding", None)  # of the file, not of the way
        self.progress.begin(self.total or self.size or 0, self.done)

    def _begin_anew(self) -> None:
        self.file.truncate(0)
        self.done = 0

    def write(self, chunk: bytes) -> None:
        """More of the file."""
        if self.done == 0:
            if re.match(PAGE, chunk[:64].lower()):
                raise Refused("a web page came in place of the file")
            self._begin_anew()
        self.file.write(chunk)
        self.done += len(chunk)
        self.progress.step(self.done)

    def flush(self) -> None:
        """Whatever is here, an interruption leaves on disk."""
        self.file.flush()
