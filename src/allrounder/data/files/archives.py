"""Archives, read in place or unpacked: nothing in one can write outside its folder or fill the disk."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from io import BufferedIOBase, BufferedWriter
from pathlib import Path, PurePosixPath
from typing import IO, Protocol, cast, final, runtime_checkable

from allrounder.data.files.locks import alone
from allrounder.errors import DataError
from allrounder.system.files import aside

MOST_BYTES = 8 * 2**30
MOST_FILES = 400_000
CHUNK = 2**20
LONGEST_READ = 2**24
"""Bytes that are unpacked in one go: more is asked for only by a header that lies about its length."""
# What zip archives are packed with that we do not know is a RuntimeError.
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)
PACKED = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
"""How the files of packed tar archives begin."""


class Damaged(ValueError):
    """An archive that is not whole."""


@runtime_checkable
class Stream(Protocol):
    """What can be read, piece by piece."""

    def read(self, size: int = -1, /) -> bytes:
        """So many bytes, fewer at the end; or all."""
        ...


def read_members(archive: Path, wanted: Iterable[str], *, most: int = 2**30) -> dict[str, bytes]:
    """The contents of files in an archive, by their names without folders; those not there are left out."""
    names, found = set(wanted), dict[str, bytes]()
    with _readable(archive):
        for path, file in _entries(archive, most):
            if path.name in found:
                raise ValueError(f"{archive}: holds {path.name} twice, expected it once; pack it again")
            if path.name in names:
                found[path.name] = b"".join(iter(lambda file=file: file.read(CHUNK), b""))
    return found


def extract(archive: Path, target: Path, top: str = "", *, most: int = MOST_BYTES) -> None:
    """Unpack an archive, or its folder `top`, as the folder `target`, which appears at once or not at all.

    A folder that is there already, and not empty, is left as it is: another process may have been faster.
    """
    _check_readable(archive)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target):
            if not target.is_dir() or not any(target.iterdir()):
                _extract(archive, target, top, most)
    except OSError as error:
        raise disk_error(target, error) from error


def _extract(archive: Path, target: Path, top: str, most: int) -> None:
    temporary = aside(target)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        with _readable(archive):
            for path, source in _entries(archive, most):
                file = temporary / path
                file.parent.mkdir(parents=True, exist_ok=True)
                # "x" also refuses a name that comes twice.
                with file.open("xb") as copy:
                    most -= _copy(archive, source, copy, most)
        if not (temporary / top).is_dir():
            raise ValueError(f"{archive}: has no folder {top}; get it again")
        (temporary / top).rename(target)
    except FileExistsError as error:
        raise ValueError(f"{archive}: holds a name twice ({error.filename}); get it again") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def disk_error(path: Path, error: OSError) -> DataError:
    """The error for a file or folder that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"{path}: the disk is full; free some space, or move the cache with ALLROUNDER_DATA")
    return DataError(
        f"{path}: cannot be written ({error.strerror or error}); make the folder writable, "
        "or move the cache with ALLROUNDER_DATA"
    )


def _check_readable(archive: Path) -> None:
    """Tell what is wrong with reading it apart from what is wrong with writing."""
    try:
        with archive.open("rb"):
            pass
    except OSError as error:
        raise DataError(
            f"{archive}: cannot be read ({error.strerror or error}); make it readable, or get it again"
        ) from error


@contextmanager
def _readable(archive: Path) -> Generator[None]:
    try:
        yield
    except (*DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk; what gzip and bz2 say of a damaged file has no number
        said = str(error).partition("\n")[0].rstrip(":")
        raise Damaged(f"{archive}: cut short or damaged ({said}); get it again") from None


def _entries(archive: Path, most: int) -> Generator[tuple[PurePosixPath, Stream]]:
    """The plain files of a tar or zip archive, in order, each open for reading.

    Raises ValueError for names that leave the folder, links, devices, and more than `most` bytes in all.
    """
    found = _zip if zipfile.is_zipfile(archive) else _tar
    for number, (name, size, file) in enumerate(found(archive), 1):
        if number > MOST_FILES or (most := most - size) < 0:
            raise ValueError(f"{archive}: holds more files or bytes than is allowed; unpack it yourself")
        yield _inside(archive, name), file


@final
class _Bounded:
    """A file that is unpacked while it is read, but never much of it at once."""

    def __init__(self, file: BufferedIOBase):
        self.file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int = -1, /) -> bytes:
        """So many bytes, fewer at the end."""
        if not 0 <= size <= LONGEST_READ:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self.file.read(size)


def _tar(archive: Path) -> Generator[tuple[str, int, Stream]]:
    with archive.open("rb") as file:
        unpack = PACKED.get(file.read(2))
    with archive.open("rb") if unpack is None else cast(BufferedIOBase, unpack(archive)) as file:
        bounded = _Bounded(file)
        opened = tarfile.TarFile(fileobj=cast(IO[bytes], bounded))
        for member in opened:
            if member.isdir():
                continue
            source = opened.extractfile(member) if member.isreg() else None
            if source is None:
                raise ValueError(
                    f"{archive}: {member.name} is a link or device, expected files; do not use it"
                )
            yield member.name, member.size, source
        # What stands behind the last file is a checksum of all, if the archive is packed.
        while bounded.read(CHUNK):
            pass


def _zip(archive: Path) -> Generator[tuple[str, int, Stream]]:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            if member.is_dir():
                continue
            if member.flag_bits & 1 or stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
                raise ValueError(
                    f"{archive}: {member.filename} is a link or encrypted, expected files; do not use it"
                )
            with opened.open(member) as file:
                yield member.filename, member.file_size, file


def _inside(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or not path.parts:
        raise ValueError(f"{archive}: {name!r} leads out of the folder; do not use this archive")
    return path


def _copy(archive: Path, source: Stream, copy: BufferedWriter, most: int) -> int:
    done = 0
    while chunk := source.read(CHUNK):
        done += len(chunk)
        if done > most:
            raise ValueError(f"{archive}: holds more bytes than is allowed; unpack it yourself")
        copy.write(chunk)
    return done
