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
    """Read the named arrays of numbers that a file has; raise ValueError if it is damaged, or has more than
    `max_bytes`, compressed or not."""
    too_large = f"more than {max_bytes} bytes"
    if (file_bytes := path.stat().st_size) > max_bytes:
        raise ValueError(too_large)
    arrays: dict[str, NDArray[Any]] = {}
    bytes_left, elements = max_bytes, 0
    with path.open("rb") as file:
        order = "<" if file.read(HEADER_BYTES).endswith(b"IM") else ">"
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
                kind, content, _ = _split_element(content, order)
            elif kind == MATRIX:
                # `read` would allocate a false size before it finds that the file is shorter.
                content = memoryview(_check_length(file.read(min(size, file_bytes)), size))
            else:
                file.seek(size, 1)
                continue
            if kind == MATRIX and (found := _parse_matrix(content, order, names)) is not None:
                arrays[found[0]] = found[1]
    return arrays


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
    file.seek(size, 1)
    if not inflater.eof and len(content) <= max_bytes:
        raise ValueError("a compressed element has no end")
    return memoryview(content)


def _split_element(content: memoryview, order: str) -> tuple[int, memoryview, memoryview]:
    """Return the type and content of the first element, and what follows it."""
    kind, size = struct.unpack_from(f"{order}2I", content)
    start, end = 8, 8 + size + -size % 8
    if kind >> 16:  # up to four bytes, in the place of the size
        kind, size, start, end = kind & 0xFFFF, kind >> 16, 4, 8
    if start + size > len(content) or (end == 8 and size > 4 and start == 4):
        raise ValueError(f"an element has {len(content) - start} bytes, expected {size}")
    return kind, content[start : start + size], content[end:]


def _parse_matrix(content: memoryview, order: str, names: Collection[str]) -> tuple[str, NDArray[Any]] | None:
    """Return the name and the numbers of an array; None if it has another name, or is not one of numbers."""
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
    if len(raw) != math.prod(sides) * stored.itemsize or not np.can_cast(stored, wanted):
        got = f"{len(raw)} bytes of type {stored}"
        raise ValueError(f"{name} has {got}, expected type {wanted} and the shape {sides}")
    array = np.frombuffer(raw, stored).reshape(sides, order="F")
    return name, array.astype(wanted, copy=False)
