"""Files with digests: read as written, and every damage shows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allrounder.errors import RunError
from allrounder.system.checked_files import (
    add_digest,
    parse_json_lines,
    parse_with_digest,
    read_arrays,
    read_json,
    read_toml_text,
    write_arrays,
    write_json,
    write_toml_text,
)
from tests.support.damage import damages

FIELDS: dict[str, Any] = {"b": [1, 2.5, None], "a": {"2": 1e-300, "10": "\u00fc"}, "format": 3}
ARRAYS = {"x": np.arange(6.0).reshape(2, 3), "y": np.array([True]), "z": np.zeros((0, 2), np.int16)}


def read_back(kind: str, file: Path) -> object:
    match kind:
        case "json":
            return read_json(file, "go", 3)
        case "toml":
            return read_toml_text(file, "go")
        case _:
            arrays, fields = read_arrays(file)
            return {name: (str(a.dtype), a.shape, a.tolist()) for name, a in arrays.items()}, fields


WRITERS: dict[str, Callable[[Path], None]] = {
    "json": lambda file: write_json(file, FIELDS),
    "toml": lambda file: write_toml_text(file, "a = 1\nb = '\u00fc'\n"),
    "arrays": lambda file: write_arrays(file, ARRAYS, FIELDS),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_flipped_bit_and_every_cut_shows_or_changes_nothing(kind: str, tmp_path: Path):
    file = tmp_path / "file"
    WRITERS[kind](file)
    content, intact = file.read_bytes(), read_back(kind, file)
    if kind == "json":
        assert intact == FIELDS
    flipped = (
        (
            f"bit {bit} of byte {position}",
            content[:position] + bytes([byte ^ 1 << bit]) + content[position + 1 :],
        )
        for position, byte in enumerate(content)
        for bit in range(8)
    )
    cut = ((f"cut to {size} bytes", content[:size]) for size in range(len(content)))
    refused = 0
    for name, damaged in (*flipped, *cut):
        file.write_bytes(damaged)
        try:
            assert read_back(kind, file) == intact, name
        except (RunError, ValueError):
            refused += 1
    assert refused > 8 * len(content)


def test_numbers_that_json_has_no_word_for_keep_their_digest():
    fields = parse_with_digest(json.dumps(add_digest({"a": math.nan, "b": math.inf})))
    assert math.isnan(fields["a"]) and fields["b"] == math.inf


def test_a_damaged_line_is_named(tmp_path: Path):
    lines = [json.dumps(add_digest({"event": "epoch", "t": t})) for t in range(3)]
    content = "".join(f"{line}\n" for line in lines).encode()
    assert [event["t"] for event in parse_json_lines(tmp_path, content + b"{half", "go")] == [0, 1, 2]
    damaged = content.replace(b'"t": 1', b'"t": 7')
    with pytest.raises(
        RunError, match=r"line 2: it was damaged or changed .*; restore it from a copy, or go"
    ):
        parse_json_lines(tmp_path, damaged, "go")
    for name, text in damages(content, 100):
        try:
            events = parse_json_lines(tmp_path, text, "go")
        except RunError:
            continue
        assert [event["t"] for event in events] == list(range(len(events))), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 2}', "got format version 2, expected format version 3; use the version .* or go"),
        ("{}", "got no format version"),
        ('{"format": 3}', "it has no digest"),
        ("[]", "it is not a JSON object"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_files_of_other_versions_and_other_files_are_explained(text: str, message: str, tmp_path: Path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(RunError, match=f"file: .*{message}"):
        read_json(tmp_path / "file", "go", 3)


def test_equal_arrays_give_equal_bytes_in_whatever_layout_and_order(tmp_path: Path):
    turned = {name: np.asfortranarray(array) for name, array in reversed(ARRAYS.items())}
    write_arrays(tmp_path / "one", ARRAYS, FIELDS)
    write_arrays(tmp_path / "two", turned, dict(reversed(FIELDS.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_missing_arrays_are_no_damage(tmp_path: Path):
    with pytest.raises(OSError, match="No such file"):
        read_arrays(tmp_path / "none")
