"""TOML up to the limits is read, and beyond them it is not."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from allrounder.config.text import quote, shorten
from allrounder.config.toml import MAX_BYTES, MAX_DEPTH, MAX_INT, MIN_INT, load_toml, parse_toml, read_limited
from allrounder.errors import RecipeError


def test_a_text_keeps_its_beginning_and_its_end():
    assert shorten("x" * 200) == "x" * 200
    assert shorten("a" * 500 + "b" * 500, 10) == "aaaaa ... (990 more characters) ... bbbbb"
    assert quote("8/255") == "'8/255'"
    assert quote(10**5000) == "a value of type int that is too large to print"


def test_reading_a_small_file_takes_little_memory_whatever_the_limit(tmp_path: Path):
    (tmp_path / "small").write_bytes(b"abc")
    tracemalloc.start()
    try:
        assert read_limited(tmp_path / "small", 2**28) == b"abc"
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    assert read_limited(tmp_path / "small", 3) == b"abc"
    with pytest.raises(ValueError, match="it has more than 2 bytes"):
        read_limited(tmp_path / "small", 2)


def test_toml_at_the_limits_is_read():
    nested = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert load_toml(f"a = {nested}\nlow = {MIN_INT}\nhigh = {MAX_INT}")["high"] == MAX_INT
    assert len(load_toml(f"a = {[0.5] * 3000}")["a"]) == 3000
    assert load_toml("#" * MAX_BYTES) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * MAX_DEPTH + "]" * MAX_DEPTH, "has tables or lists more than 32 levels deep"),
        (f"a = {{ b = [{MAX_INT + 1}] }}", "has a whole number outside"),
        (f"a = {MIN_INT - 1}", "has a whole number outside"),
        ("#" * (MAX_BYTES + 1), "has 1,048,577 characters, expected at most 1,048,576"),
        ("= 1", "not TOML: Invalid statement"),
    ],
    ids=range(5),
)
def test_toml_beyond_the_limits_is_refused(text: str, message: str):
    with pytest.raises(RecipeError, match=f"^here: {message}"):
        parse_toml(text, "here")
