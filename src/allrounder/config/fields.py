"""How frozen values are declared, and how a recipe's tables and texts become them.

A value's fields are its configuration: there is no second class that describes it.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, cast, dataclass_transform

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

# beartype, which checks the package under test, does not know pydantic's own generics.
if TYPE_CHECKING:
    Adapter: TypeAlias = TypeAdapter[Any]
else:
    Adapter = TypeAdapter
T = TypeVar("T")
KINDS = "x-kinds"
CONFIG = ConfigDict(extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=True)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def value(cls: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass that checks its fields, from Python and from TOML alike.

    Numbers and flags are written with the strict types below, so that "4" or true is never read as a number.
    """
    return cast(type[T], pydantic_dataclass(frozen=True, kw_only=True, config=CONFIG)(cls))


def refuse(item: object, problems: Iterable[tuple[tuple[str | int, ...], str]]) -> None:
    """Raise what is wrong between a value's fields, each message at the field to mend; nothing for none."""
    details = [
        InitErrorDetails(type=PydanticCustomError("between", "{said}", {"said": said}), loc=at, input=None)
        for at, said in problems
    ]
    if details:
        raise ValidationError.from_exception_data(type(item).__name__, details)


@cache
def adapter(cls: type[Any]) -> Adapter:
    """The decoder of one value class, built once."""
    return TypeAdapter(cls)


def nearest(word: str, known: Iterable[str]) -> str:
    """A `; did you mean "x"?` for a word that is not among the known ones, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""


@dataclass(frozen=True)
class Kind:
    """Reads `{ kind = "pgd", ... }` as the class the table holds under that name, and writes it back so.

    Used as `Annotated[Attack, Kind(lambda: ATTACKS)]`; the table may mention classes defined later.
    """

    table: Callable[[], Mapping[str, type[Any]]]
    number: type[Any] | None = None
    """The class a bare number stands for, through its field `value`."""
    optional: bool = False
    """Whether nothing, written as false, is allowed."""

    def read(self, raw: object) -> object:
        """Decode a raw table or pass a value of the table through."""
        table = self.table()
        if self.optional and (raw is None or raw is False):
            return None
        if type(raw) in table.values():
            return raw
        if self.number is not None and isinstance(raw, int | float) and not isinstance(raw, bool):
            return adapter(self.number).validate_python({"value": raw})
        if not isinstance(raw, Mapping):
            said = {"names": ", ".join(table), "got": repr(raw)}
            raise PydanticCustomError("kind", "expected a table with a kind ({names}), got {got}", said)
        fields = dict(cast(Mapping[str, object], raw))
        kind = fields.pop("kind", None)
        if not isinstance(kind, str) or kind not in table:
            said = "has no kind" if kind is None else f'has unknown kind "{kind}"'
            hint = nearest(str(kind), table) if kind is not None else ""
            details = {"said": said, "names": ", ".join(table), "hint": hint}
            raise PydanticCustomError("kind", "{said} (known: {names}){hint}", details)
        return adapter(table[kind]).validate_python(fields)

    def write(self, item: object) -> object:
        """Encode a value as a plain table with its kind."""
        if item is None:
            return None
        name = kind_of(item, self.table())
        fields = adapter(type(item)).dump_python(item, mode="json", exclude_none=True)
        if self.number is type(item):
            return fields["value"]
        return {"kind": name, **fields}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read,
            serialization=core_schema.plain_serializer_function_ser_schema(self.write),
            metadata={"pydantic_js_functions": [self._json_schema]},
        )

    def _json_schema(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # Classes of a table may nest each other, so they are named here and filled in by `json_schema`.
        names = [definition(name, cls) for name, cls in self.table().items()]
        others = [{"type": "number"}] * (self.number is not None) + [{"const": False}] * self.optional
        return {KINDS: names, "others": others}


def deciding(item: T) -> T:
    """A value in which the fields that decide no result are as they are by default."""
    told: dict[str, FieldInfo] = getattr(type(item), "__pydantic_fields__", {})
    idle = {name: field.default for name, field in told.items() if IDLE in field.metadata}
    return cast(T, replace(cast(Any, item), **idle)) if idle else item


def kind_of(item: object, table: Mapping[str, type[Any]]) -> str:
    """The name under which a table holds the class of a value."""
    return next(name for name, cls in table.items() if cls is type(item))


def definition(kind: str, cls: type[Any]) -> str:
    """What a JSON Schema calls the tables of a kind that are read as a class."""
    return f"{cls.__module__}.{cls.__name__}.{kind}"


class Written(ABC):
    """A value that a recipe writes as one text or number: a threat, a time."""

    @classmethod
    @abstractmethod
    def read(cls, raw: object) -> Written:
        """Parse the written form; a value passes through. Raises ValueError with what was expected."""

    @abstractmethod
    def write(self) -> str | int | float:
        """The written form; `read(write())` is the value again."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.read,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda item: item.write()),
            metadata={"pydantic_js_functions": [lambda schema, handler: {"type": ["string", "number"]}]},  # pyright: ignore[reportUnknownLambdaType]
        )


def fraction(raw: object) -> Fraction:
    """Read a number or a text such as "8/255" exactly; floats are read as they are written."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str | Fraction):
        raise ValueError(f"expected a number or a fraction such as 8/255, got {raw!r}")
    try:
        if str(raw).count("/") > 1:
            raise ValueError
        # Fraction itself reads 1/510, but not 0.5/255.
        above, *below = (Fraction(part.strip()) for part in str(raw).split("/", 1))
        return above / below[0] if below else above
    except ZeroDivisionError:
        raise ValueError(f"{str(raw)!r} divides by zero") from None
    except ValueError:
        raise ValueError(f"expected a number or a fraction such as 8/255, got {str(raw)!r}") from None


def _ratio(raw: object) -> object:
    return float(fraction(raw)) if isinstance(raw, str) else raw


def _some(items: tuple[T, ...]) -> tuple[T, ...]:
    if not items:
        raise ValueError("expected at least one, got none")
    return items


Number = Annotated[float, Strict(), AllowInfNan(False)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, le=1)]
Whole = Annotated[int, Strict(), Field(ge=0)]
Count = Annotated[int, Strict(), Field(ge=1)]
Flag = Annotated[bool, Strict()]
IDLE = "decides no result"
"""Marks fields that are not part of what identifies a recipe: with others, results are the same."""
Workers = Annotated[Whole | None, IDLE]
Place = Annotated[str | None, IDLE]
"""Where something lies whose content is known by its name."""
# A minimal length would also complain where every member is wrong in itself.
Some = AfterValidator(_some)
"""Annotates a tuple that may not be empty."""
Ratio = Annotated[Number, BeforeValidator(_ratio), WithJsonSchema({"type": ["string", "number"]})]
"""A number that a recipe may also write as a fraction: 0.25 or "7/31"."""
