"""The plain data in a Python pickle, read without running it.

Nothing that such a file names is looked up or called. The few names with which numpy writes an array are
known here by their text, and an array is made from its bytes; every other name, and every instruction that
plain data does not need, is refused.
"""

from __future__ import annotations

import io
import math
import pickletools
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 2**28
"""Of a file, and of the bytes that are made from texts in it."""
MOST_STEPS = 2_000_000
RECONSTRUCT = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
FROM_BUFFER = {"numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer"}
ARRAY, DTYPE, ENCODE = "numpy ndarray", "numpy dtype", "_codecs encode"
NAMES = {*RECONSTRUCT, *FROM_BUFFER, ARRAY, DTYPE, ENCODE}
NUMBERS = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}
ORDERS = ("|", "<", ">")
PLAIN = {
    *(
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "BINSTRING",
        "SHORT_BINSTRING",
        "BINUNICODE",
        "SHORT_BINUNICODE",
    ),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
"""Instructions that put the number, text or bytes in them on the stack."""
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@final
@dataclass(frozen=True)
class Name:
    """A name in the file, as a text and nothing more."""

    text: str


@final
@dataclass(eq=False)
class Unfinished:
    """An array or a type of number of which the file tells the rest later."""

    what: str
    made: NDArray[Any] | np.dtype[Any] | None = None


def read_plain(raw: bytes) -> dict[str, Any]:
    """The dictionary in a pickle, with texts, numbers, lists and arrays; its texts and bytes are as written.

    Raises ValueError for anything else, whole or in part, without having run any of it.
    """
    if len(raw) > MOST_BYTES:
        raise ValueError(f"got {len(raw)} bytes, expected at most {MOST_BYTES}")
    stream, machine = io.BytesIO(raw), Machine()
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if number > MOST_STEPS:
                raise ValueError(f"has more than {MOST_STEPS} steps")
            machine.step(opcode.name, argument)
    # A stack that is too short, or a member of another type than plain data has.
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"is no plain data ({type(error).__name__}: {error})") from None
    if stream.read(1) or len(machine.stack) != 1 or type(machine.stack[0]) is not dict:
        raise ValueError("holds something else than one dictionary")
    return {_key(key): _finished(item) for key, item in cast(dict[Any, Any], machine.stack[0]).items()}


def _key(key: str | bytes) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else key


def _finished(item: object) -> object:
    unfinished = isinstance(item, Unfinished) and not isinstance(item.made, np.ndarray)
    if unfinished or isinstance(item, Name):
        raise ValueError("holds an array that is not finished")
    return item.made if isinstance(item, Unfinished) else item


@final
class Machine:
    """A stack of plain data."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.left = MOST_BYTES

    def step(self, name: str, argument: Any) -> None:
        """One instruction of the file."""
        if name in PLAIN:
            self.stack.append(argument)
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in TUPLES:
            self._push(tuple(self._pop(TUPLES[name])))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            self._name(argument if name == "GLOBAL" else " ".join(self._texts()))
        elif name in ("PROTO", "FRAME", "STOP"):
            pass
        else:
            self._gather(name, argument)

    def _gather(self, name: str, argument: Any) -> None:
        match name:
            case "MARK":
                self.marks.append(len(self.stack))
            case "TUPLE":
                self._push(tuple(self._pop_marked()))
            case "EMPTY_LIST":
                self._push([])
            case "EMPTY_DICT":
                self._push({})
            case "APPEND" | "APPENDS":
                items = self._pop(1) if name == "APPEND" else self._pop_marked()
                self._last(list).extend(items)
            case "SETITEM" | "SETITEMS":
                pairs = self._pop(2) if name == "SETITEM" else self._pop_marked()
                self._set(pairs)
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                self._push(self.memo[argument])
            case "REDUCE":
                function, arguments = self._pop(2)
                self._push(self._make(function, arguments))
            case "BUILD":
                (state,) = self._pop(1)
                self._finish(self._last(Unfinished), state)
            case _:
                raise ValueError(f"has the instruction {name}, which plain data does not need")

    def _push(self, item: object) -> None:
        self.stack.append(item)

    def _pop(self, count: int) -> list[Any]:
        floor = self.marks[-1] if self.marks else 0
        if len(self.stack) - count < floor:
            raise IndexError("the stack is too short")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def _pop_marked(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def _last(self, kind: type[Any]) -> Any:
        if type(self.stack[-1]) is not kind:
            raise TypeError(f"got a {type(self.stack[-1]).__name__}, expected a {kind.__name__}")
        return self.stack[-1]

    def _texts(self) -> list[str]:
        texts = self._pop(2)
        if not all(type(text) is str for text in texts):
            raise TypeError("a name is no text")
        return texts

    def _set(self, pairs: list[Any]) -> None:
        keys, items = pairs[::2], pairs[1::2]
        if not all(type(key) in (str, bytes) for key in keys):
            raise TypeError("a key is no text")
        self._last(dict).update(zip(keys, items, strict=True))

    def _name(self, text: str) -> None:
        if text not in NAMES:
            said = text.replace(" ", ".")[:80]
            raise ValueError(f'names "{said}", which plain data does not need')
        self._push(Name(text))

    def _make(self, function: object, given: object) -> object:
        """What numpy would make, from the text of its name; nothing is called."""
        if not isinstance(function, Name) or type(given) is not tuple:
            raise TypeError("something is called that has no name")
        arguments = cast(tuple[Any, ...], given)
        if function.text in RECONSTRUCT and arguments[0] == Name(ARRAY):
            return Unfinished("array")
        # The type first: looking up a tuple that is nested deeply enough would exhaust the process's stack.
        if function.text == DTYPE and type(arguments[0]) is str and arguments[0] in NUMBERS:
            return Unfinished("dtype", np.dtype(arguments[0]))
        if function.text == ENCODE and type(arguments[0]) is str and arguments[1] in ("latin1", "latin-1"):
            return self._bytes(arguments[0])
        if function.text in FROM_BUFFER:
            content, kind, shape, order = arguments
            return Unfinished("array", _array(self._bytes(content), kind, shape, order == "F"))
        raise ValueError(f"uses {function.text.replace(' ', '.')} in another way than plain data does")

    def _finish(self, item: Unfinished, state: Any) -> None:
        if type(state) is not tuple:
            raise TypeError("something is finished with another state than numpy writes")
        members = cast(tuple[Any, ...], state)
        if item.what == "array":
            _, shape, kind, fortran, content = members
            item.made = _array(self._bytes(content), kind, shape, fortran is True)
        elif type(members[1]) is str and members[1] in ORDERS and isinstance(item.made, np.dtype):
            item.made = item.made if members[1] == "|" else item.made.newbyteorder(cast(Any, members[1]))
        else:
            raise TypeError("a type of number has no order of bytes")

    def _bytes(self, content: object) -> bytes:
        """The bytes that a text or bytes hold, counted, as one text may be used many times."""
        if not isinstance(content, str | bytes | bytearray):
            raise TypeError(f"got a {type(content).__name__}, expected bytes")
        self.left -= len(content)
        if self.left < 0:
            raise ValueError(f"makes more than {MOST_BYTES} bytes")
        return content.encode("latin-1") if isinstance(content, str) else bytes(content)


def _array(raw: bytes, kind: object, shape: object, fortran: bool) -> NDArray[Any]:
    if not isinstance(kind, Unfinished) or not isinstance(kind.made, np.dtype):
        raise TypeError("an array has no type of number")
    sides = cast(tuple[int, ...], shape if type(shape) is tuple else (-1,))
    if not all(type(side) is int and side >= 0 for side in sides):
        raise TypeError("an array has no shape")
    if len(raw) != math.prod(sides) * kind.made.itemsize:
        raise ValueError(f"has {len(raw)} bytes for an array of shape {sides}")
    return np.frombuffer(raw, kind.made).reshape(sides, order="F" if fortran else "C")
