"""Archives with names and headers that the libraries or the file system do not accept: one clear error, and
nothing is left."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from allrounder.data.files.archives import extract
from allrounder.errors import DataError


def make_tar(*names: str, **pax_headers: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            member.pax_headers = {key.replace("_", "."): value for key, value in pax_headers.items()}
            archive.addfile(member, io.BytesIO(b"abc"))
    return buffer.getvalue()


def make_zip(name: str, other: bytes) -> bytes:
    """A zip archive whose file has another name of the same length in the end."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, "abc")
    return buffer.getvalue().replace(name.encode(), other)


CASES = {
    "a file that is a folder": (make_tar("top/a", "top/a/b"), r"holds a name twice \(top/a\)"),
    "a file above a folder": (make_tar("top/a", "top/a/d/e"), r"holds a name twice \(top/a/d\)"),
    "a long name": (make_tar("top/" + "x" * 300), "is too long, expected at most 255 bytes"),
    "many folders": (make_tar("top/" + "d/" * 3000 + "e"), "is too long, expected at most 255 bytes"),
    "64 folders": (make_tar("top/" + "d/" * 63 + "e"), "is too long, .* and 63 folders"),
    "a zero in a name": (make_tar("top/a", path="top/a\0b"), "damaged .embedded null byte"),
    "no sparse map": (make_tar("top/a", GNU_sparse_major="1", GNU_sparse_minor="0"), "cut short or damaged"),
    "a false sparse map": (make_tar("top/a", GNU_sparse_map="x,1"), "cut short or damaged"),
    "a false sparse size": (make_tar("top/a", GNU_sparse_size="x"), "cut short or damaged"),
    "a zip name that is not UTF-8": (make_zip("top/\u00e9", b"top/\xff\xfe"), "cut short or damaged"),
    "an empty zip name": (make_zip("top/a", b"\0op/a"), "leads out of the folder"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_archive_with_odd_names_or_headers_is_refused(case: str, tmp_path: Path):
    content, message = CASES[case]
    (tmp_path / "pack").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        extract(tmp_path / "pack", tmp_path / "out", "top")
    assert str(caught.value).startswith(f"{tmp_path / 'pack'}: ")
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".lock"} == {"pack"}
