"""Pickles of plain data are read; whatever else a pickle could do is refused, and nothing of it happens."""

from __future__ import annotations

import ast
import builtins
import copyreg
import importlib.util
import os
import pickle
import struct
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allrounder.data.files import safe_pickle
from allrounder.data.files.safe_pickle import read_plain_dict
from tests.support.formats import python2_pickle

SYSTEM: Any = vars(os)["system"]
X = np.arange(24, dtype=np.uint8).reshape(4, 6)


class Calls:
    """Pickled as a call of something."""

    def __init__(self, function: Any, *arguments: Any):
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Stateful:
    """Pickled as an object with a state."""

    def __init__(self) -> None:
        self.x = 1


def short(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return b"U" + bytes([len(raw)]) + raw


def test_pickle_of_python_2_is_read():
    result = read_plain_dict(python2_pickle({"data": X, "labels": [3, 1, 2, 300], "name": "x" * 300}))
    assert np.array_equal(result["data"], X) and result["data"].dtype == np.uint8
    assert result["labels"] == [3, 1, 2, 300] and result["name"] == "x" * 300


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["uint8", "<i4", ">i8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_pickle_of_python_3_is_read(protocol, dtype, order):
    array = np.array(X, dtype=dtype, order=order)
    table = {"data": array, b"labels": [0, -1, 70000, 2**40], "t": (1, (2,)), "n": None, "f": [True, False]}
    result = read_plain_dict(pickle.dumps(table, protocol))
    assert np.array_equal(result["data"], array) and result["data"].dtype == array.dtype
    assert result["labels"] == table[b"labels"]
    assert result["t"] == (1, (2,)) and result["n"] is None and result["f"] == [True, False]


def test_array_used_twice_is_one_object():
    result = read_plain_dict(pickle.dumps({"one": X, "two": X}, 4))
    assert result["one"] is result["two"] and np.array_equal(result["two"], X)


HARMFUL = {
    "system": Calls(SYSTEM, "touch harm"),
    "eval": Calls(eval, "open('harm', 'w')"),
    "exec": Calls(exec, "open('harm', 'w')"),
    "getattr": Calls(getattr, Calls(__import__, "os"), "system"),
    "import": Calls(__import__, "os"),
    "open": Calls(open, "harm", "w"),
    "nested": Calls(Calls, Calls(SYSTEM, "touch harm")),
    "numpy's own loader": Calls(np.load, "harm"),
    "numpy's own file": Calls(np.fromfile, "harm"),
    "numpy's own files": Calls(np.memmap, "harm", "uint8", "w+", 0, (1,)),
    "an object": Stateful(),
    "another dictionary": OrderedDict(a=1),
    "partial": Calls(__import__("functools").partial, SYSTEM, "touch harm"),
    "extension": Calls(copyreg.add_extension, "os", "system", 1),
    "an object array": np.array([{}, []], dtype=object),
    "floats": np.array([1.5]),
    "a set": {1, 2},
    "a float": 1.5,
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("what", HARMFUL)
def test_call_or_object_is_refused_and_not_executed(tmp_path, monkeypatch, what, protocol):
    monkeypatch.chdir(tmp_path)
    for table in ({"data": HARMFUL[what]}, [HARMFUL[what]], {"labels": [HARMFUL[what]] * 2, "data": X}):
        raw = pickle.dumps(table, protocol)
        with pytest.raises(ValueError):
            read_plain_dict(raw)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_name_that_is_allowed_stays_a_text(protocol):
    with pytest.raises(ValueError, match="not finished"):
        read_plain_dict(pickle.dumps({"data": np.ndarray}, protocol))
    result = read_plain_dict(pickle.dumps({"labels": [np.ndarray]}, protocol))
    assert result == {"labels": [safe_pickle.GlobalName("numpy ndarray")]}


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
NDARRAY = b"cnumpy\nndarray\n"
ARRAY = RECONSTRUCT + NDARRAY + b"K\x00\x85" + short("b") + b"\x87R"
ENCODE = b"c_codecs\nencode\n"
U1 = b"cnumpy\ndtype\n" + short("u1") + b"K\x00K\x01\x87R"
CRAFTED = {
    "a name with a dot": b"cnumpy\nndarray.tofile\n" + short("harm") + b"\x85R",
    "a name in a name": b"cnumpy.core.multiarray\n_reconstruct.__globals__\n",
    "names from the stack": short("os") + short("system") + b"\x93" + short("touch harm") + b"\x85R",
    "a name from the memo": short("os") + b"q\x00" + short("system") + b"q\x01h\x00h\x01\x93" + b"(tR",
    "a class by name": b"(" + short("touch harm") + b"ios\nsystem\n",
    "a class from the stack": b"(cos\nsystem\n" + short("touch harm") + b"o",
    "a new object": NDARRAY + b")\x81",
    "a new object with words": NDARRAY + b")}\x92",
    "a persistent name": b"Pharm\n",
    "a persistent object": short("harm") + b"Q",
    "an extension": b"\x82\x01",
    "a buffer from outside": b"\x97",
    "a subclass of arrays": RECONSTRUCT + b"cnumpy\nmatrix\nK\x00\x85" + short("b") + b"\x87R",
    "an array of something else": RECONSTRUCT + ENCODE + b"K\x00\x85" + short("b") + b"\x87R",
    "a call of what was made": ENCODE + short("os") + short("latin1") + b"\x86R" + b"(tR",
    "a call of a text": short("os") + b"(tR",
    "a call with a list": ENCODE + b"](" + short("a") + short("latin1") + b"eR",
    "another coding": ENCODE + short("aa") + short("hex") + b"\x86R",
    "attributes of a name": ENCODE + b"}" + short("__code__") + b"Nsb",
    "attributes of a dictionary": b"}}" + short("__class__") + b"Nsb",
    "slots of a name": ENCODE + b"N}" + short("__defaults__") + b"Ns\x86b",
    "an array finished twice, the second time with objects": (
        ARRAY + b"(K\x01K\x01\x85" + U1 + b"\x89" + short("a") + b"tb"
        b"(K\x01K\x01\x85cnumpy\ndtype\n" + short("O8") + b"K\x00K\x01\x87R\x89]tb"
    ),
    "a type of objects": b"cnumpy\ndtype\n" + short("O") + b"K\x00K\x01\x87R",
    "a type as a tuple": b"cnumpy\ndtype\n" + b"K\x01\x85" + b"K\x00K\x01\x87R",
    "too few bytes": ARRAY + b"(K\x01K\x05\x85" + U1 + b"\x89" + short("a") + b"tb",
    "a negative side": ARRAY + b"(K\x01J\xff\xff\xff\xff\x85" + U1 + b"\x89" + short("") + b"tb",
    "an array never finished": b"}" + short("data") + ARRAY + b"s",
    "an empty memo": b"h\x07",
    "a stack too short": b"R",
    "below a mark": b"}(K\x01s",
    "no mark": b"}u",
    "an odd number of members": b"}(" + short("a") + b"u",
    "a key that is a number": b"}K\x01K\x01s",
    "appending to a text": short("a") + b"K\x01a",
    "a length beyond the end": b"T\xff\xff\xff\x7f",
    "a negative length": b"T\xff\xff\xff\xff",
    "a length of 8 bytes beyond the end": b"\x8e" + b"\xff" * 7 + b"\x00",
    "a memo of 4 billion places": b"}r\xff\xff\xff\xff0",
    "a huge number in words": b"L" + b"9" * 10_000 + b"L\n",
    "an instruction of none": b"\xfe",
}


@pytest.mark.parametrize("what", CRAFTED)
def test_a_crafted_pickle_is_refused(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)
    for protocol in (b"", b"\x80\x02", b"\x80\x04"):
        with pytest.raises(ValueError):
            read_plain_dict(protocol + CRAFTED[what] + b".")
    assert not list(tmp_path.iterdir())


def test_no_module_is_imported(monkeypatch):
    def looked(name: str, *settings: Any) -> Any:
        raise AssertionError(f"{name} was imported")

    monkeypatch.setattr(builtins, "__import__", looked)
    with pytest.raises(ValueError, match=r'names "os\.system", which plain data does not need'):
        read_plain_dict(b"\x80\x02cos\nsystem\n" + short("touch harm") + b"\x85R.")


def test_high_memo_position_needs_no_memory():
    assert read_plain_dict(b"\x80\x02}r\xff\xff\xff\xff.") == {}


def test_a_text_used_many_times_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(safe_pickle, "MAX_BYTES", 10_000)
    text = b"T" + struct.pack("<i", 5000) + b"a" * 5000
    start = b"\x80\x02" + ENCODE + b"q\x00" + text + b"q\x01" + short("latin1") + b"\x86q\x02R"
    again = b"h\x00h\x02R"
    with pytest.raises(ValueError, match="builds more than 10000 bytes"):
        read_plain_dict(start + 9 * again + b".")


def test_a_file_too_large_or_with_too_many_steps_is_refused(monkeypatch):
    monkeypatch.setattr(safe_pickle, "MAX_INSTRUCTIONS", 100)
    with pytest.raises(ValueError, match="more than 100 instructions"):
        read_plain_dict(b"\x80\x02](" + b"N" * 200 + b"e.")
    monkeypatch.setattr(safe_pickle, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="got 50 bytes, expected at most 10"):
        read_plain_dict(b"N" * 50)


def test_deep_nesting_does_not_overflow_the_stack():
    # A copy of the module whose annotations are not checked at every one of the steps.
    spec = importlib.util.spec_from_file_location("unchecked", safe_pickle.__file__)
    assert spec is not None and spec.loader is not None
    unchecked = importlib.util.module_from_spec(spec)
    sys.modules["unchecked"] = unchecked
    spec.loader.exec_module(unchecked)
    deep = b"N" + b"\x85" * 200_000
    for raw in (b"}" + deep + b"Ns.", b"cnumpy\ndtype\n" + deep + b"R.", U1 + deep + b"b."):
        with pytest.raises(ValueError, match="plain data"):
            unchecked.read_plain_dict(b"\x80\x02" + raw)
    assert list(unchecked.read_plain_dict(b"\x80\x02}" + short("data") + deep + b"s.")) == ["data"]
    del sys.modules["unchecked"]


def test_list_that_contains_itself_is_read():
    result = read_plain_dict(b"\x80\x02}" + short("labels") + b"]q\x00h\x00as.")
    assert result["labels"][0] is result["labels"]


@pytest.mark.parametrize("end", [1, 5, 40, -2, -1])
def test_truncated_or_longer_pickle_is_refused(end):
    whole = python2_pickle({"data": X, "labels": [1, 2]})
    with pytest.raises(ValueError):
        read_plain_dict(whole[:end])
    with pytest.raises(ValueError, match="something other than one dictionary"):
        read_plain_dict(whole + b"N.")


@pytest.mark.parametrize("instruction", [b"S", b"F", b"I", b"c"], ids=["text", "float", "integer", "name"])
def test_errors_do_not_quote_long_texts(instruction: bytes):
    with pytest.raises(ValueError) as caught:
        read_plain_dict(b"\x80\x02" + instruction + bytes(100_000) + b"\nend\n.")
    assert 0 < len(str(caught.value)) < 300


def test_a_wrong_escape_in_a_name_is_refused():
    with pytest.raises(ValueError, match="invalid escape sequence"):
        read_plain_dict(b"\x80\x02c\\umpy\nndarray\n.")  # warnings are errors in the tests


@given(raw=st.binary(max_size=60), cut=st.integers(0, 200))
def test_noise_is_read_or_raises_value_error(raw: bytes, cut: int):
    whole = pickle.dumps({"data": X, "labels": [1, 2, 3]}, 4)
    for content in (raw, b"\x80\x04" + raw + b".", whole[:cut] + raw + whole[cut + len(raw) :]):
        try:
            assert type(read_plain_dict(content)) is dict
        except ValueError as error:
            assert str(error)


MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "importlib", "torch"}


def test_reader_imports_no_module_that_executes_pickles():
    tree = ast.parse(Path(safe_pickle.__file__).read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    taken = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    taken |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert taken and not {name.split(".")[0] for name in taken} & MODULES
    words = {node.id for node in nodes if isinstance(node, ast.Name)}
    words |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert words and not words & {"find_class", "__import__", "import_module", "eval", "exec"}
