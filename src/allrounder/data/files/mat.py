"""Read arrays of numbers from a .mat file of version 5.

An own reader: that of scipy ends the process on some damaged files, and it allocates what a header asks for.
Cells, structures, texts and sparse arrays are skipped; nothing in the file is executed.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 128
BYTE_ORDERS = {b"IM": "<", b"MI": ">"}
"""The last two bytes of the header, and the byte order that they mean."""
VERSION = 0x0100
MATRIX, COMPRESSED = 14, 15
"""Types of the elements of a file."""
STORED_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Types of the numbers inside an array; they may be smaller than those of its class."""
CLASSES = dict(enumerate(("f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), start=6))
"""Classes of arrays of numbers."""
COMPLEX = 0x0800
CHUNK_BYTES = 2**20
MAX_ELEMENTS = 100
"""Elements of a file; those of SVHN have two."""
MAX_DIMENSIONS = 32


def read_mat_arrays(path: Path, names: Collection[str], max_bytes: int) -> dict[str, NDArray[Any]]:
    """Read the named arrays of numbers that a file has.

    Raises ValueError if the file is damaged, or if it, its decompressed content or its arrays have more than
    `max_bytes`.
    """
    try:
        return _read_arrays(path, names, max_bytes)
    except (struct.error, zlib.error) as error:
        raise ValueError(str(error)) from None


def _read_arrays(path: Path, names: Collection[str], max_bytes: int) -> dict[str, NDArray[Any]]:
    too_large = f"more than {max_bytes} bytes"
    if (file_bytes := path.stat().st_size) > max_bytes:
        raise ValueError(too_large)
    arrays: dict[str, NDArray[Any]] = {}
    bytes_left, elements = max_bytes, 0
    with path.open("rb") as file:
        order = _read_byte_order(file)
        while tag := file.read(8):
            elements += 1
            if elements > MAX_ELEMENTS:
                raise ValueError(f"more than {MAX_ELEMENTS} elements")
            kind, size = struct.unpack(f"{order}2I", _check_length(tag, 8))
            if kind == COMPRESSED:
                content = _inflate(file, size, bytes_left)
                if len(content) > bytes_left:
                    raise ValueError(too_large)
                bytes_left -= len(content)
                kind, content, rest = _split_element(content, order)
                if rest:
                    raise ValueError(f"a compressed element has {len(rest)} bytes behind its array")
            elif kind == MATRIX:
                # `read` would allocate a false size before it finds that the file is shorter.
                content = memoryview(_check_length(file.read(min(size, file_bytes)), size))
            else:
                file.seek(size, 1)
                continue
            parsed = _parse_matrix(content, order, names) if kind == MATRIX else None
            if parsed is not None:
                name, stored, dtype = parsed
                bytes_left -= stored.size * dtype.itemsize
                if bytes_left < 0:
                    raise ValueError(too_large)
                arrays[name] = stored.astype(dtype, copy=False)
    return arrays


def _read_byte_order(file: BinaryIO) -> str:
    header = _check_length(file.read(HEADER_BYTES), HEADER_BYTES)
    order = BYTE_ORDERS.get(header[-2:])
    version = None if order is None else int(struct.unpack(f"{order}H", header[-4:-2])[0])
    if order is None or version != VERSION:
        raise ValueError("not a .mat file of version 5; version 7.3 is saved as version 5 with -v7")
    return order


def _check_length(raw: bytes, size: int) -> bytes:
    if len(raw) != size:
        raise ValueError(f"got {len(raw)} bytes, expected {size}")
    return raw


def _inflate(file: BinaryIO, size: int, max_bytes: int) -> memoryview:
    """Decompress the next `size` bytes of a file; stop soon after `max_bytes`."""
    inflater, content = zlib.decompressobj(), bytearray()
    while size and not inflater.eof and len(content) <= max_bytes:
        chunk = file.read(min(CHUNK_BYTES, size))
        if not chunk:
            raise ValueError(f"ends {size} bytes too early")
        size -= len(chunk)
        while chunk and not inflater.eof and len(content) <= max_bytes:
            content += inflater.decompress(chunk, CHUNK_BYTES)
            chunk = inflater.unconsumed_tail
    if len(content) <= max_bytes and (size or inflater.unused_data or not inflater.eof):
        raise ValueError("a compressed element has another length than its header says")
    return memoryview(content)


def _split_element(content: memoryview, order: str) -> tuple[int, memoryview, memoryview]:
    """Return the type and content of the first element, and what follows it."""
    if len(content) < 8:
        raise ValueError(f"an element has {len(content)} bytes, expected 8 or more")
    kind, size = struct.unpack_from(f"{order}2I", content)
    start, end = 8, 8 + size + -size % 8
    if kind >> 16:  # a small element has its content in the place of its size
        kind, size, start, end = kind & 0xFFFF, kind >> 16, 4, 8
        if size > 4:
            raise ValueError(f"a small element has {size} bytes, expected at most 4")
    if start + size > len(content):
        raise ValueError(f"an element has {len(content) - start} bytes, expected {size}")
    return kind, content[start : start + size], content[end:]


def _parse_matrix(
    content: memoryview, order: str, names: Collection[str]
) -> tuple[str, NDArray[Any], np.dtype[Any]] | None:
    """Return the name of an array, its numbers as they are stored, and the type of its class, which may be
    larger; None if it has another name, or is not one of numbers."""
    _, raw_flags, content = _split_element(content, order)
    flags = int(struct.unpack_from(f"{order}I", raw_flags)[0])
    _, raw_sides, content = _split_element(content, order)
    _, raw_name, content = _split_element(content, order)
    name = bytes(raw_name).decode("ascii", "replace")
    if name not in names or (flags & 0xFF) not in CLASSES or flags & COMPLEX:
        return None
    sides = struct.unpack(f"{order}{len(raw_sides) // 4}i", raw_sides)
    kind, raw, _ = _split_element(content, order)
    if not 2 <= len(sides) <= MAX_DIMENSIONS or min(sides) < 0 or kind not in STORED_TYPES:
        raise ValueError(f"{name} has no numbers, or no shape")
    stored, wanted = np.dtype(order + STORED_TYPES[kind]), np.dtype(CLASSES[flags & 0xFF])
    if not np.can_cast(stored, wanted):
        raise ValueError(f"{name} is stored as {stored}, expected {wanted}")
    if len(raw) != (expected := math.prod(sides) * stored.itemsize):
        raise ValueError(f"{name} has {len(raw)} bytes, expected {expected} for the shape {sides}")
    return name, np.frombuffer(raw, stored).reshape(sides, order="F"), wanted
