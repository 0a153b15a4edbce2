"""Read archives in place or unpack them safely.

The standard library alone limits neither the number nor the total size of files, and its extraction filters
accept links; here a hostile archive can neither write outside its folder nor fill the disk.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager, nullcontext
from io import BufferedIOBase, BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, cast, final

from allrounder.config.text import shorten
from allrounder.data.files.locks import exclusive_write
from allrounder.errors import AllrounderError, DataError
from allrounder.system.files import temporary_path

MAX_BYTES = 8 * 2**30
"""Bytes of an archive that is unpacked."""
MAX_MEMBERS_BYTES = 2**30
"""Bytes of an archive that is read in place."""
MAX_FILES = 400_000
CHUNK_BYTES = 2**20
MAX_PADDING = 2**16
"""Zeros after the end of a compressed file."""
MAX_READ_BYTES = 2**24
"""The most that tarfile may decompress at once; only a header with a false length asks for more."""
MAX_NAME_BYTES = 1024
"""Bytes of the name of a file with its folders; this and the next are what common file systems accept."""
MAX_PART_BYTES = 255
"""Bytes of the name of a file or folder alone."""
MAX_PARTS = 64
"""A file and its folders; folders that are much deeper cannot be deleted again."""
# zipfile raises RuntimeError for an unknown compression method, and ValueError for names that are not UTF-8;
# tarfile raises ValueError for the headers of sparse files, and the system for names with a zero byte.
DAMAGE_ERRORS = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, RuntimeError, ValueError, IndexError, OverflowError),
)
DECOMPRESSORS = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
"""By the first two bytes of a compressed tar archive."""
Member = tuple[str, int, IO[bytes] | None]
"""Name, size, and the open file; None for a link, a device or an encrypted file."""


class DamagedArchive(DataError):
    """The archive is cut short or damaged."""


def read_members(
    archive: Path,
    names: Iterable[str],
    *,
    max_bytes: int = MAX_MEMBERS_BYTES,
    max_file_bytes: int = MAX_BYTES,
) -> dict[str, bytes]:
    """Read files of an archive by their names without folders; files that it does not have are left out."""
    wanted = set(names)
    contents: dict[str, bytes] = {}
    with _report_damage(archive), closing(_entries(archive, max_bytes)) as entries:
        for path, size, file in entries:
            if path.name in contents:
                raise DataError(f"{archive}: holds {path.name} twice, expected it once; pack it again")
            if path.name in wanted:
                if size > max_file_bytes:
                    got = f"{archive}: {path.name} has {size} bytes"
                    raise DataError(f"{got}, expected at most {max_file_bytes}; get it again")
                buffer = BytesIO()
                shutil.copyfileobj(file, buffer, CHUNK_BYTES)
                contents[path.name] = buffer.getvalue()
    return contents


def extract(archive: Path, target: Path, top: str = "", *, max_bytes: int = MAX_BYTES) -> None:
    """Unpack an archive, or its folder `top`, to the folder `target`, which appears complete or not at all.

    A `target` that exists and is not empty is left unchanged: another process may have unpacked it.
    """
    if archive.exists() and not archive.is_file():
        raise DataError(f"{archive}: is a folder, a pipe or a device, expected an archive; name another file")
    try:
        archive.open("rb").close()
    except OSError as error:
        raise DataError(
            f"{archive}: cannot be read ({error.strerror or error}); make it readable, or get it again"
        ) from error
    with exclusive_write(target):
        if not target.is_dir() or not any(target.iterdir()):
            _extract(archive, target, top, max_bytes)


def _extract(archive: Path, target: Path, top: str, max_bytes: int) -> None:
    temporary = temporary_path(target)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        with _report_damage(archive), closing(_entries(archive, max_bytes)) as entries:
            for path, _, source in entries:
                with _create_file(archive, temporary, path) as copy:
                    shutil.copyfileobj(source, copy, CHUNK_BYTES)
        if not (temporary / top).is_dir():
            raise DataError(f"{archive}: has no folder {top}; get it again")
        (temporary / top).rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _create_file(archive: Path, folder: Path, path: PurePosixPath) -> IO[bytes]:
    """Create a file of an archive; raise DataError if its name, or that of a folder of it, is a file."""
    file = folder / path
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("xb")
    except (FileExistsError, NotADirectoryError) as error:
        name = Path(error.filename).relative_to(folder)
        raise DataError(f"{archive}: holds a name twice ({name}); get it again") from None


@contextmanager
def _report_damage(archive: Path) -> Generator[None]:
    try:
        yield
    except AllrounderError:
        raise
    except (*DAMAGE_ERRORS, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk; gzip and bz2 raise OSError without a number for damaged files
        reason = str(error).partition("\n")[0].rstrip(":")
        raise DamagedArchive(f"{archive}: cut short or damaged ({reason}); get it again") from None


def _entries(archive: Path, max_bytes: int) -> Generator[tuple[PurePosixPath, int, IO[bytes]]]:
    """Yield the regular files of a tar or zip archive in order: path, size, and the file, open for reading.

    Raises DataError for names outside the folder, links, devices, and more than `max_bytes` in all. Headers
    may be false, but tarfile and zipfile never read more than the size in them.
    """
    members = _zip_members if zipfile.is_zipfile(archive) else _tar_members
    bytes_left = max_bytes
    with closing(members(archive)) as found:
        for number, (name, size, file) in enumerate(found, 1):
            bytes_left -= size
            with file or nullcontext():
                if number > MAX_FILES or bytes_left < 0:
                    limit = f"{MAX_FILES} files or {max_bytes} bytes"
                    problem = f"holds more files or bytes than is allowed ({limit})"
                    raise DataError(f"{archive}: {problem}; unpack it yourself")
                if file is None:
                    problem = "is a link, a device or encrypted, expected files; do not use it"
                    raise DataError(f"{archive}: {shorten(name)} {problem}")
                yield _check_name(archive, name), size, file


def _check_name(archive: Path, name: str) -> PurePosixPath:
    """Return the path of a member; raise DataError if it leads out of the folder, or is too long."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or not path.parts:
        raise DataError(f"{archive}: {shorten(name)!r} leads out of the folder; do not use this archive")
    sizes = [len(os.fsencode(part)) for part in path.parts]
    if sum(sizes) > MAX_NAME_BYTES or max(sizes) > MAX_PART_BYTES or len(sizes) > MAX_PARTS:
        limit = f"{MAX_PART_BYTES} bytes, {MAX_NAME_BYTES} with its folders, and {MAX_PARTS - 1} folders"
        got = f"the name {shorten(name)!r} is too long"
        raise DataError(f"{archive}: {got}, expected at most {limit}; pack it again")
    return path


def check_no_padding(file: Path) -> None:
    """Raise DataError if a compressed file ends with many zeros, which gzip reads one byte at a time."""
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(size - MAX_PADDING, 0))
        if size > MAX_PADDING and not any(opened.read(MAX_PADDING)):
            raise DataError(f"{file}: ends with more than {MAX_PADDING} zeros; get it again")


@final
class _BoundedReader:
    """A file that is decompressed while it is read, at most MAX_READ_BYTES at once."""

    def __init__(self, file: BufferedIOBase):
        self.file = file
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes."""
        if not 0 <= size <= MAX_READ_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self.file.read(size)


def _tar_members(archive: Path) -> Generator[Member]:
    with archive.open("rb") as file:
        decompress = DECOMPRESSORS.get(file.read(2))
    if decompress is not None:
        check_no_padding(archive)
    with archive.open("rb") if decompress is None else cast(BufferedIOBase, decompress(archive)) as file:
        bounded = _BoundedReader(file)
        tar = tarfile.TarFile(fileobj=cast(IO[bytes], bounded))
        for number, member in enumerate(tar, 1):
            if number > 2 * MAX_FILES:
                raise tarfile.ReadError("too many folders")
            if not member.isdir():
                yield member.name, member.size, tar.extractfile(member) if member.isreg() else None
        # A compressed archive ends with a checksum, which is verified when the end is read.
        end = bounded.tell() + MAX_READ_BYTES
        while bounded.read(CHUNK_BYTES):
            if bounded.tell() > end:
                raise tarfile.ReadError("bytes after its end")


def _zip_members(archive: Path) -> Generator[Member]:
    with zipfile.ZipFile(archive) as zip_file:
        for member in zip_file.infolist():
            is_encrypted, file_type = member.flag_bits & 1, stat.S_IFMT(member.external_attr >> 16)
            is_plain = not is_encrypted and file_type in (0, stat.S_IFREG)
            if not member.filename.endswith("/"):  # `is_dir` fails for an empty name
                yield member.filename, member.file_size, zip_file.open(member) if is_plain else None
