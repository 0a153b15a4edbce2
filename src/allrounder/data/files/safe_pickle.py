"""Read the plain data in a Python pickle without executing it.

A restricted `pickle.Unpickler` would still call what it allows. Here no name in the file is imported or
called: the few names with which numpy pickles an array are recognised by their text, and the array is built
from its bytes. Every other name, and every instruction that plain data does not need, is an error.
"""

from __future__ import annotations

import io
import math
import pickletools
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

from allrounder.config.text import shorten

MAX_BYTES = 2**28
"""Limit of the file, and of the bytes that are built from the texts in it."""
MAX_INSTRUCTIONS = 2_000_000
RECONSTRUCT = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
FROM_BUFFER = {"numpy.core.numeric _frombuffer", "numpy._core.numeric _frombuffer"}
ARRAY = "numpy ndarray"
DTYPE = "numpy dtype"
ENCODE = "_codecs encode"
ALLOWED_NAMES = {*RECONSTRUCT, *FROM_BUFFER, ARRAY, DTYPE, ENCODE}
ALLOWED_DTYPES = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}
BYTE_ORDERS = ("|", "<", ">")
LITERAL_OPCODES = {
    *("BININT", "BININT1", "BININT2", "LONG1"),
    *("BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
"""Instructions that push their argument, a number, text or bytes, onto the stack."""
CONSTANT_OPCODES: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


@final
@dataclass(frozen=True)
class GlobalName:
    """A name in the file, such as "numpy ndarray"; it is never imported."""

    text: str


@final
@dataclass(eq=False)
class PendingArray:
    """An array or a dtype whose state follows later in the file."""

    kind: str
    value: NDArray[Any] | np.dtype[Any] | None = None


def read_plain_dict(raw: bytes) -> dict[str, Any]:
    """Read a pickled dictionary of texts, numbers, lists and arrays; texts and bytes are kept as written.

    Raises ValueError for anything else. Nothing in the file is executed.
    """
    if len(raw) > MAX_BYTES:
        raise ValueError(f"got {len(raw)} bytes, expected at most {MAX_BYTES}")
    stream = io.BytesIO(raw)
    unpickler = PlainUnpickler()
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if number > MAX_INSTRUCTIONS:
                raise ValueError(f"has more than {MAX_INSTRUCTIONS} instructions")
            unpickler.step(opcode.name, argument)
    # Errors of pickletools quote texts of any length. A wrong escape is a warning, which -W error raises.
    except (ValueError, Warning) as error:
        raise ValueError(shorten(str(error))) from None
    # The stack is too short, or an item has a type that plain data does not have.
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(shorten(f"is not plain data ({type(error).__name__}: {error})")) from None
    if stream.read(1) or len(unpickler.stack) != 1 or type(unpickler.stack[0]) is not dict:
        raise ValueError("holds something other than one dictionary")
    table = cast(dict[str | bytes, Any], unpickler.stack[0])
    keys = [key.decode("latin-1") if isinstance(key, bytes) else key for key in table]
    return dict(zip(keys, map(_resolve, table.values()), strict=True))


def _resolve(item: object) -> object:
    resolved = item.value if isinstance(item, PendingArray) else item
    if isinstance(resolved, GlobalName | np.dtype) or (resolved is None and item is not None):
        raise ValueError("holds an array that is not finished")
    return resolved


def _global_name(text: str) -> GlobalName:
    if text not in ALLOWED_NAMES:
        name = text.replace(" ", ".")[:80]
        raise ValueError(f'names "{name}", which plain data does not need')
    return GlobalName(text)


@final
class PlainUnpickler:
    """A stack machine that interprets the instructions for plain data."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.bytes_left = MAX_BYTES

    def step(self, name: str, argument: Any) -> None:
        """Interpret one instruction."""
        push = self.stack.append
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _ if name in LITERAL_OPCODES:
                push(argument)
            case _ if name in CONSTANT_OPCODES:
                push(CONSTANT_OPCODES[name])
            case "EMPTY_LIST":
                push([])
            case "EMPTY_DICT":
                push({})
            case "GLOBAL" | "STACK_GLOBAL":
                push(_global_name(argument if name == "GLOBAL" else " ".join(self._pop(2))))
            case "MARK":
                self.marks.append(len(self.stack))
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                push(tuple(self._pop_marked() if name == "TUPLE" else self._pop(int(name[-1]))))
            case "APPEND" | "APPENDS":
                items = self._pop(1) if name == "APPEND" else self._pop_marked()
                self._top(list).extend(items)
            case "SETITEM" | "SETITEMS":
                self._set_items(self._pop(2) if name == "SETITEM" else self._pop_marked())
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                push(self.memo[argument])
            case "REDUCE":
                push(self._reduce(*self._pop(2)))
            case "BUILD":
                (state,) = self._pop(1)
                self._set_state(self._top(PendingArray), state)
            case _:
                raise ValueError(f"has the instruction {name}, which plain data does not need")

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

    def _top(self, kind: type[Any]) -> Any:
        if type(self.stack[-1]) is not kind:
            raise TypeError(f"got a {type(self.stack[-1]).__name__}, expected a {kind.__name__}")
        return self.stack[-1]

    def _set_items(self, pairs: list[Any]) -> None:
        keys, items = pairs[::2], pairs[1::2]
        if not all(type(key) in (str, bytes) for key in keys):
            raise TypeError("a key is not a text")
        self._top(dict).update(zip(keys, items, strict=True))

    def _reduce(self, function: object, raw_arguments: object) -> object:
        """Build what numpy would build; the function is recognised by its name and not called."""
        if not isinstance(function, GlobalName) or type(raw_arguments) is not tuple:
            raise TypeError("something without a name is called")
        arguments = cast(tuple[Any, ...], raw_arguments)
        if function.text in RECONSTRUCT and arguments[0] == GlobalName(ARRAY):
            return PendingArray("array")
        # The type is checked first: hashing a deeply nested tuple would overflow the stack of the process.
        if function.text == DTYPE and type(arguments[0]) is str and arguments[0] in ALLOWED_DTYPES:
            return PendingArray("dtype", np.dtype(arguments[0]))
        if function.text == ENCODE and type(arguments[0]) is str and arguments[1] in ("latin1", "latin-1"):
            return self._bytes(arguments[0])
        if function.text in FROM_BUFFER:
            content, dtype, shape, order = arguments
            return PendingArray("array", _array(self._bytes(content), dtype, shape, order == "F"))
        raise ValueError(f"uses {function.text.replace(' ', '.')} in a way that plain data does not")

    def _set_state(self, item: PendingArray, state: Any) -> None:
        if type(state) is not tuple:
            raise TypeError("a state is not what numpy writes")
        members = cast(tuple[Any, ...], state)
        if item.kind == "array":
            _, shape, dtype, fortran, content = members
            item.value = _array(self._bytes(content), dtype, shape, fortran is True)
        elif type(members[1]) is str and members[1] in BYTE_ORDERS and isinstance(item.value, np.dtype):
            item.value = item.value if members[1] == "|" else item.value.newbyteorder(cast(Any, members[1]))
        else:
            raise TypeError("a dtype has no byte order")

    def _bytes(self, content: object) -> bytes:
        """Convert a text or bytes to bytes; they are counted, because one text may be used many times."""
        if not isinstance(content, str | bytes | bytearray):
            raise TypeError(f"got a {type(content).__name__}, expected bytes")
        self.bytes_left -= len(content)
        if self.bytes_left < 0:
            raise ValueError(f"builds more than {MAX_BYTES} bytes")
        return content.encode("latin-1") if isinstance(content, str) else bytes(content)


def _array(raw: bytes, dtype: object, shape: object, fortran: bool) -> NDArray[Any]:
    if not isinstance(dtype, PendingArray) or not isinstance(dtype.value, np.dtype):
        raise TypeError("an array has no dtype")
    sides = cast(tuple[int, ...], shape if type(shape) is tuple else (-1,))
    if not all(type(side) is int and side >= 0 for side in sides):
        raise TypeError("an array has no shape")
    if len(raw) != math.prod(sides) * dtype.value.itemsize:
        raise ValueError(f"has {len(raw)} bytes for an array of shape {sides}")
    return np.frombuffer(raw, dtype.value).reshape(sides, order="F" if fortran else "C")
