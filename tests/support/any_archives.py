"""Strategies for archives and folders of images: odd names, links, devices, doubled and damaged members."""

from __future__ import annotations

import io
import os
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from PIL import Image

from tests.support.any_bytes import edited, packed
from tests.support.any_text import TEXTS

NAMES = st.sampled_from(
    [
        *("top/a", "top/b/c", "top", "top/", "top/a/d/e", "a", "", ".", "..", "/top/a", "./top/x", "top//y"),
        *("top/../x", "top/\u00e9", "top/\udcff", "top/" + "x" * 300, "top/" + "d/" * 600 + "e", "top/c:d"),
        *("top\\a", "top/a\nb", "top/\x01", "top/con", "top/ ", "top/" + "x" * 120),
    ]
) | TEXTS.map(lambda text: f"top/{text}")
KINDS = st.sampled_from(
    [
        *[tarfile.REGTYPE] * 6,
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        b"S",
        b"x",
        b"?",
    ]
)


@st.composite
def tar_files(draw: DrawFn) -> bytes:
    """A tar archive of any members."""
    form = draw(st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, errors="surrogateescape") as archive:
        for name in draw(st.lists(NAMES, max_size=4)):
            content = draw(st.binary(max_size=30))
            member = tarfile.TarInfo(name)
            member.type, member.linkname = draw(KINDS), draw(st.sampled_from(["", "a", "../x"]))
            member.size = draw(st.sampled_from([len(content)] * 5 + [2**33, 0]))
            if form == tarfile.PAX_FORMAT:
                sparse = [f"GNU.sparse.{name}" for name in ("major", "map", "size", "name")]
                keys = st.sampled_from(["path", "size", "mtime", "hdrcharset", "linkpath", *sparse])
                values = st.sampled_from(["", "-1", "x", "9" * 40, "nan", "1e400", "top/a\0b", "BINARY", "1"])
                member.pax_headers = draw(st.dictionaries(keys, values, max_size=1))
            try:
                archive.addfile(member)
            except (ValueError, UnicodeError):  # this name cannot be written
                continue
            buffer.write(content + bytes(-len(content) % 512))
            archive.offset += len(content) + -len(content) % 512
    return buffer.getvalue()


@st.composite
def zip_files(draw: DrawFn) -> bytes:
    """A zip archive of any members."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")  # about names that occur twice
        for name in draw(st.lists(NAMES, max_size=4)):
            info = zipfile.ZipInfo(name or "x")
            info.external_attr = draw(st.sampled_from([0, 0o100644, 0o120777, 0o040755, 0o020644])) << 16
            info.compress_type = draw(st.sampled_from([0, 8, 12, 14]))
            try:
                archive.writestr(info, draw(st.binary(max_size=30)))
            except (ValueError, UnicodeError, FileNotFoundError):  # this name cannot be written
                continue
    return buffer.getvalue()


def archives(whole: bytes) -> SearchStrategy[bytes]:
    """Archives of any members, some of them changed or compressed."""
    tars = packed(tar_files() | tar_files().flatmap(edited))
    return tars | zip_files() | zip_files().flatmap(edited) | edited(whole)


MODES = ("RGB", "L", "RGBA", "P", "1", "CMYK", "I;16", "LA", "I", "F", "YCbCr", "HSV")
SUFFIXES = {
    "png": "PNG",
    "jpg": "JPEG",
    "bmp": "BMP",
    "gif": "GIF",
    "tif": "TIFF",
    "ppm": "PPM",
    "webp": "WEBP",
}


def encode_image(suffix: str, mode: str, width: int, height: int) -> bytes:
    """An image file; as PNG in colour if the format cannot hold it."""
    buffer = io.BytesIO()
    rows = np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3)
    image = Image.fromarray(rows)
    try:
        (image.convert(mode) if mode != "I;16" else image.convert("I").convert("I;16")).save(
            buffer, SUFFIXES[suffix]
        )
    except (OSError, ValueError, KeyError):
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
    return buffer.getvalue()


SIDES = st.sampled_from([8, 8, 8, 8, 1, 9, 400])
IMAGES = st.builds(encode_image, st.sampled_from(list(SUFFIXES)), st.sampled_from(MODES), SIDES, SIDES)
GOOD = encode_image("png", "RGB", 8, 8)
Tree = dict[str, Any]


@st.composite
def image_folders(draw: DrawFn) -> Tree:
    """The files below a folder of images by path: bytes, None for a folder, or the target of a link."""
    tree: Tree = {f"{part}/{name}/1.png": GOOD for part in ("train", "val") for name in ("cat", "dog")}
    contents = (
        IMAGES | IMAGES.flatmap(edited) | st.sampled_from([b"", b"GIF89a", b"BM", None, "../1.png", "/"])
    )
    names = st.sampled_from(
        [
            ".hidden",
            "a.txt",
            "1.PNG",
            "Thumbs.db",
            "x.jpg/y.png",
            "a b.png",
            "\udcff.png",
            "e\u0301.webp",
            "1.png",
        ]
    ) | st.builds("{}.{}".format, TEXTS, st.sampled_from(list(SUFFIXES)))
    folders = st.sampled_from(
        ["train/cat", "train/dog", "val/cat", "train", "val", "", "train/new", "test/cat"]
    )
    for folder, name in draw(st.lists(st.tuples(folders, names), max_size=3)):
        tree[f"{folder}/{name}"] = draw(contents)
    for path in draw(st.sets(st.sampled_from(sorted(tree, key=repr)), max_size=1)):
        tree[path] = draw(contents)
    return tree


def write_tree(folder: Path, tree: Tree) -> None:
    """Write a folder; what the file system cannot hold is left out."""
    for name, content in tree.items():
        path = Path(os.path.join(folder, name.lstrip("/")))
        if ".." in path.parts:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir(exist_ok=True)
            elif isinstance(content, str):
                path.symlink_to(content)
            else:
                path.write_bytes(content)
        except (OSError, ValueError):
            continue
