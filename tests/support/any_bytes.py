"""Strategies for the bytes of files: valid files with other headers, shapes, types and members, and valid
files of which some bytes are changed."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import zlib
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from safetensors.numpy import save

from tests.support.any_text import HUGE, JSON_VALUES, TEXTS, altered
from tests.support.formats import python2_pickle

SIZES = st.sampled_from([0, 1, 2, 3, 10, 28, 32, 255, 2**31 - 1, 2**31, 2**32 - 1])
WORDS = [
    *(struct.pack(order + code, n) for order in "<>" for code, n in (("I", 2**32 - 1), ("i", 1))),
    *(struct.pack("<q", 2**63 - 1), struct.pack("<H", 2**16 - 1), bytes(4), bytes(8), b"\x80", b"\n"),
]


@st.composite
def edited(draw: DrawFn, whole: bytes) -> bytes:
    """A file of which up to four parts are flipped, cut, doubled, moved or overwritten."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        near = st.integers(0, min(len(content), 120))
        place = draw(near | st.integers(0, len(content)) | near.map(lambda offset: len(content) - offset))
        count = draw(st.integers(1, 40))
        match draw(st.sampled_from(["flip", "word", "bytes", "cut", "remove", "double", "insert"])):
            case "flip" if place < len(content):
                content[place] ^= 1 << draw(st.integers(0, 7))
            case "word":
                new = draw(st.sampled_from(WORDS))
                content[place : place + len(new)] = new
            case "bytes":
                new = draw(st.binary(min_size=1, max_size=8))
                content[place : place + len(new)] = new
            case "cut":
                del content[place:]
            case "remove":
                del content[place : place + count]
            case "double":
                content[place:place] = content[place : place + count]
            case _:
                content[place:place] = draw(st.binary(max_size=count))
    return bytes(content)


def packed(contents: SearchStrategy[bytes]) -> SearchStrategy[bytes]:
    """Contents that are compressed by gzip, bz2 or xz, or not."""
    packers = [lambda raw: gzip.compress(raw, 1), lambda raw: bz2.compress(raw, 1), lambda raw: raw]
    packers.append(lambda raw: lzma.compress(raw, preset=0))
    return st.builds(lambda pack, raw: pack(raw), st.sampled_from(packers), contents)


def gzipped(whole: bytes) -> SearchStrategy[bytes]:
    """A file in gzip, changed before or after it is compressed."""
    return edited(whole) | edited(gzip.decompress(whole)).map(lambda raw: gzip.compress(raw, 1))


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 28, 32]), max_size=5).filter(
    lambda sides: _count(sides) < 10**5
)
DTYPES = st.sampled_from(
    [
        "u1",
        "u1",
        "i8",
        "<i4",
        ">i2",
        "f4",
        "f8",
        ">f8",
        "f2",
        "?",
        "c8",
        "U3",
        "S2",
        "M8[s]",
        "m8",
        "V4",
        "u1,i2",
    ]
)


def _count(sides: list[int]) -> int:
    return int(np.prod(np.array(sides, float), initial=1.0))


@st.composite
def arrays(draw: DrawFn) -> np.ndarray[Any, Any]:
    """An array of any shape and type, filled with zeros, ones, nan or large numbers."""
    array = np.zeros(draw(SHAPES), draw(DTYPES))
    if array.dtype.kind in "uifc" and array.size:
        fills = [0, 1, np.iinfo(array.dtype).max] if array.dtype.kind in "ui" else [0.5, np.nan, np.inf, -1.0]
        array[...] = draw(st.sampled_from(fills))
    return array


@st.composite
def npy_files(draw: DrawFn) -> bytes:
    """An .npy file whose header may say something else than its bytes."""
    array = draw(arrays())
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    if draw(st.booleans()):
        return buffer.getvalue()
    fields = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    junk = (
        TEXTS
        | SHAPES.map(tuple)
        | st.sampled_from([*HUGE, (-1,), (2**62, 4), "O", "|V0", "<U0", [("a", "u1")]])
    )
    text = repr(draw(altered(fields, junk))).encode("latin-1", "replace")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", min(len(text), 2**16 - 1)) + text + array.tobytes()


@st.composite
def npz_files(draw: DrawFn) -> bytes:
    """An archive of arrays under the expected names, some of them odd, missing, doubled or compressed."""
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    ) as file:
        good = {
            "x_train": np.zeros((4, 3, 8, 8), np.uint8),
            "y_train": np.arange(4) % 2,
            "x_test": np.zeros((2, 3, 8, 8), np.uint8),
            "y_test": np.arange(2),
        }
        odd = draw(st.sets(st.sampled_from([*good, "classes", "more"]), max_size=2))
        for name in sorted({*good, *odd}):
            content = io.BytesIO()
            np.save(content, good.get(name, np.array(["a", "b"])))
            raw = draw(npy_files() | st.binary(max_size=20)) if name in odd else content.getvalue()
            file.writestr(f"{name}{draw(st.sampled_from(['.npy', '.npy', '.npy', '', '.NPY']))}", raw)
    return buffer.getvalue()


def idx_files(ndim: int) -> SearchStrategy[bytes]:
    """An idx file with any type, number of dimensions, sides and number of bytes."""
    return st.builds(
        lambda start, kind, dims, sides, count: (
            start + bytes((kind, dims)) + struct.pack(f">{len(sides)}I", *sides) + bytes(count)
        ),
        st.sampled_from([b"\0\0", b"\0\0", b"\1\0"]),
        st.sampled_from([8, 8, 8, 9, 0x0D, 0]),
        st.sampled_from([ndim, ndim, 0, 255]),
        st.lists(SIZES, min_size=max(ndim - 1, 0), max_size=ndim + 1),
        st.sampled_from([0, 1, 12, 28 * 28 * 12, 28 * 28 * 12 + 1]),
    )


PLAIN = st.recursive(
    JSON_VALUES.filter(lambda value: "\\ud" not in repr(value)) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=3,
)


@st.composite
def cifar_pickles(draw: DrawFn) -> bytes:
    """A pickled batch of CIFAR with other fields, as Python 2 or 3 writes it; it is never unpickled."""
    rows = draw(st.sampled_from([0, 1, 3]))
    table: dict[str, Any] = {
        "data": draw(st.just(np.zeros((rows, 3072), np.uint8)) | arrays()),
        "labels": list(range(rows)),
        "label_names": ["a"] * 10,
        "batch_label": "x",
    }
    if draw(st.booleans()):
        table["labels"] = draw(st.lists(st.integers(-1, 300) | PLAIN, max_size=4))
        return pickle.dumps(table | draw(st.dictionaries(TEXTS, PLAIN, max_size=2)), draw(st.integers(0, 5)))
    table["data"] = np.zeros(table["data"].shape, np.uint8) if table["data"].ndim else 3
    return draw(st.just(python2_pickle(table)) | edited(python2_pickle(table)))


@st.composite
def mat_files(draw: DrawFn) -> bytes:
    """A .mat file of any arrays, cells, structures and texts; its elements are compressed or changed."""
    from scipy.io import savemat

    good = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [10]], np.uint8)}
    things = arrays().filter(lambda array: array.dtype.kind in "uifc?") | st.just({"a": 1}) | TEXTS
    things |= st.just(np.array([[1, "a"]], object))
    content = good | draw(st.dictionaries(st.sampled_from(["X", "y", "z"]), things, max_size=2))
    buffer = io.BytesIO()
    savemat(buffer, content, do_compression=draw(st.booleans()))
    return draw(st.just(buffer.getvalue()) | edited(buffer.getvalue()))


@st.composite
def packed_elements(draw: DrawFn, whole: bytes) -> bytes:
    """A .mat file whose elements are changed and then compressed."""
    place, parts = 128, [whole[:128]]
    while place + 8 <= len(whole):
        kind, size = struct.unpack_from("<2I", whole, place)
        element = whole[place + 8 : place + 8 + size]
        inner = draw(edited(zlib.decompress(element))) if kind == 15 else element
        raw = zlib.compress(inner, 1)
        parts.append(struct.pack("<2I", 15, len(raw)) + raw)
        place += 8 + size
    return b"".join(parts)


@st.composite
def safetensors_files(draw: DrawFn, whole: bytes) -> bytes:
    """A file whose header has other names, types, shapes, offsets or a false length."""
    size = int.from_bytes(whole[:8], "little")
    header, body = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    junk = st.sampled_from(["F64", "I8", "BOOL", "F8_E4M3", [2, 2], [0, 4], [4, 0], *HUGE]) | JSON_VALUES
    text = json.dumps(draw(altered(header, junk))).encode("utf-8", "replace")
    length = draw(st.sampled_from([len(text)] * 6 + [0, len(text) - 1, len(text) + 1, 2**30, 2**64 - 1]))
    return (
        struct.pack("<Q", length) + text + draw(st.sampled_from([body, body, body[:-1], body + b"\0", b""]))
    )


def other_tensors(whole: bytes) -> SearchStrategy[bytes]:
    """A valid file of other tensors."""
    kinds = arrays().filter(lambda array: array.dtype.kind in "uif?" and array.dtype.isnative)
    names = st.sampled_from(["conv1.weight", "linear.bias", "mean", "", "a/b"]) | TEXTS
    return st.dictionaries(names.filter(str.isascii), kinds, max_size=3).map(save)
