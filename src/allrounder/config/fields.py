"""Declare frozen configuration values and decode a recipe's tables and texts into them.

The fields of a value are its configuration; no second class describes it.
"""

from __future__ import annotations

import difflib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, final

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
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from allrounder.config.interrupts import delay_interrupts
from allrounder.config.text import quote, shorten
from allrounder.errors import RecipeError

T = TypeVar("T")
MAX_SUGGESTIONS = 6
"""The largest number of names in an error message that suggests them."""
KINDS_KEY = "x-kinds"
MAX_WORD = 100
"""Characters of an unknown word that is compared with the known ones."""
MAX_CHOICES = 1000
"""Known words that an unknown word is compared with."""
MAX_DIGITS = 1000
"""Digits of an exact number, before and after the point: 1e9999999999 would fill the memory."""
CONFIG = ConfigDict(
    extra="forbid",
    arbitrary_types_allowed=True,
    validate_by_name=True,
    validate_by_alias=True,
    serialize_by_alias=True,
)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def frozen_config(cls: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass that validates its fields, from Python and from TOML.

    Declare numbers and flags with the strict types below, which never accept "4" or true as a number.
    """
    with delay_interrupts():
        return cast(type[T], pydantic_dataclass(frozen=True, kw_only=True, config=CONFIG)(cls))


def raise_field_errors(item: object, problems: Iterable[tuple[tuple[str | int, ...], str]]) -> None:
    """Raise a ValidationError listing cross-field problems, each located at the field to fix.

    No-op for an empty list.
    """
    details = [
        InitErrorDetails(
            type=PydanticCustomError("cross_field", "{message}", {"message": message}), loc=path, input=None
        )
        for path, message in problems
    ]
    if details:
        raise ValidationError.from_exception_data(type(item).__name__, details)


@final
class Adapter:
    """The decoder of a value class. Interrupts are delayed, because pydantic ignores them while it builds a
    decoder, which decoding may do for a member, and raises another error while it encodes a value."""

    def __init__(self, cls: type[Any]):
        with delay_interrupts():
            self._adapter: Any = TypeAdapter(cls)  # beartype, in the tests, does not support its type

    def validate_python(self, raw: object, **options: bool) -> Any:
        """Decode a raw value; raise pydantic's ValidationError for a wrong one."""
        with delay_interrupts():
            return self._adapter.validate_python(raw, **options)

    def dump_python(self, item: object) -> Any:
        """Encode a value in the types of JSON, without the fields that are None."""
        with delay_interrupts():
            return self._adapter.dump_python(item, mode="json", exclude_none=True)

    def json_schema(self, generator: type[GenerateJsonSchema]) -> dict[str, Any]:
        """Return the JSON Schema of the raw values."""
        with delay_interrupts():
            return self._adapter.json_schema(schema_generator=generator)


@cache
def adapter(cls: type[Any]) -> Adapter:
    """Return the decoder of a value class, built once."""
    return Adapter(cls)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `; did you mean "x"?` with the choice closest to an unknown word, or "" if none is close. For a
    word without a folder, these are the choices FOLDER/NAME whose NAME is the word or closest to it."""
    if len(word) > MAX_WORD:
        return ""
    names = [choice for choice in islice(choices, MAX_CHOICES) if len(choice) <= MAX_WORD]
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if "/" not in word:
        in_folders = dict.fromkeys(name.rpartition("/")[2] for name in names if "/" in name)
        for last_part in difflib.get_close_matches(word, in_folders, n=1, cutoff=0.7):
            close = [name for name in names if name.endswith(f"/{last_part}")][:MAX_SUGGESTIONS]
    quoted = " or ".join(f'"{name}"' for name in close)
    return f"; did you mean {quoted}?" if quoted else ""


@dataclass(frozen=True)
class OneOf:
    """Decodes `{ kind = "pgd", ... }` to the class that a table holds under that name, and encodes it again.
    The bare text "pgd" is short for `{ kind = "pgd" }`.

    Used as `Annotated[Attack, OneOf(lambda: ATTACKS)]`; the table may contain classes defined later.
    """

    table: Callable[[], Mapping[str, type[Any]]]
    number_type: type[Any] | None = None
    """The class that a bare number is decoded to, as its field `value`."""
    optional: bool = False
    """Whether None, written as false, is allowed."""

    def decode(self, raw: object) -> object:
        """Decode a raw table; return a value of one of the classes unchanged."""
        table = self.table()
        if self.optional and (raw is None or raw is False):
            return None
        if type(raw) in table.values():
            return raw
        if self.number_type is not None and isinstance(raw, int | float) and not isinstance(raw, bool):
            return adapter(self.number_type).validate_python({"value": raw})
        if isinstance(raw, str) and raw in table:
            raw = {"kind": raw}
        if not isinstance(raw, Mapping):
            hint = did_you_mean(raw, table) if isinstance(raw, str) else ""
            details = {"names": ", ".join(table), "got": quote(raw), "hint": hint}
            message = "expected a table with a kind ({names}), got {got}{hint}"
            raise PydanticCustomError("kind", message, details)
        fields = dict(cast(Mapping[str, object], raw))
        kind = fields.pop("kind", None)
        if not isinstance(kind, str) or kind not in table:
            problem = "has no kind" if kind is None else f'has unknown kind "{shorten(str(kind))}"'
            hint = did_you_mean(str(kind), table) if kind is not None else ""
            details = {"problem": problem, "names": ", ".join(table), "hint": hint}
            raise PydanticCustomError("kind", "{problem} (known: {names}){hint}", details)
        return adapter(table[kind]).validate_python(fields, by_alias=True, by_name=False)

    def encode(self, item: object) -> object:
        """Encode a value as a raw table with its kind."""
        if item is None:
            return None
        name = kind_of(item, self.table())
        fields = adapter(type(item)).dump_python(item)
        if self.number_type is type(item):
            return fields["value"]
        return {"kind": name, **fields}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.decode,
            serialization=core_schema.plain_serializer_function_ser_schema(self.encode),
            metadata={"pydantic_js_functions": [self._json_schema]},
        )

    def _json_schema(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # Classes of a table may contain each other: only names are listed, which `json_schema` resolves.
        names = [definition_name(name, cls) for name, cls in self.table().items()]
        others: list[JsonSchemaValue] = [{"enum": list(self.table())}]
        others += [{"type": "number"}] * (self.number_type is not None) + [{"const": False}] * self.optional
        return {KINDS_KEY: names, "others": others}


def canonical(item: T) -> T:
    """Return a copy with every field that cannot change results (workers, paths) reset to its default.

    Fingerprints are computed from it.
    """
    fields: dict[str, FieldInfo] = getattr(type(item), "__pydantic_fields__", {})
    defaults = {name: field.default for name, field in fields.items() if NOT_IN_FINGERPRINT in field.metadata}
    return cast(T, replace(cast(Any, item), **defaults)) if defaults else item


def kind_of(item: object, table: Mapping[str, type[Any]]) -> str:
    """Return the name under which a table holds the class of a value."""
    return next(name for name, cls in table.items() if cls is type(item))


def definition_name(kind: str, cls: type[Any]) -> str:
    """Return the name in a JSON Schema of the tables of a kind that are decoded to a class."""
    return f"{cls.__module__}.{cls.__name__}.{kind}"


class TextValue(ABC):
    """A value that a recipe writes as one text or number, such as a threat or a time."""

    @classmethod
    @abstractmethod
    def parse(cls, raw: object) -> TextValue:
        """Parse the text or number; return a value unchanged. Raises ValueError with what was expected."""

    @abstractmethod
    def to_toml(self) -> str | int | float:
        """Return the text or number of a recipe; `parse(to_toml())` is the value again."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda item: item.to_toml()),
            metadata={"pydantic_js_functions": [lambda schema, handler: {"type": ["string", "number"]}]},  # pyright: ignore[reportUnknownLambdaType]
        )


def parse_fraction(raw: object) -> Fraction:
    """Parse a number or a text such as "8/255" exactly; 0.1 is parsed as 1/10."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str | Fraction):
        raise RecipeError(f"expected a number or a fraction such as 8/255, got {quote(raw)}")
    got = quote(raw if isinstance(raw, int) else str(raw))
    try:
        text = str(raw)
        if text.count("/") > 1:
            raise ValueError
        # Fraction itself parses 1/510, but not 0.5/255.
        numerator, *denominator = (_parse_decimal(part.strip()) for part in text.split("/", 1))
        number = numerator / denominator[0] if denominator else numerator
        if abs(number) > sys.float_info.max or number.denominator >= 10**MAX_DIGITS:
            raise OverflowError
    except ZeroDivisionError:
        raise RecipeError(f"{got} divides by zero") from None
    except OverflowError:
        limit = f"expected less than 1.8e308, and at most {MAX_DIGITS} digits"
        raise RecipeError(f"{got} is too large or has too many digits, {limit}") from None
    except ValueError:
        raise RecipeError(f"expected a number or a fraction such as 8/255, got {got}") from None
    return number


def _parse_decimal(text: str) -> Fraction:
    """Parse a number exactly; raise OverflowError if it has too many digits, written or as an exponent."""
    _, e, exponent = text.lower().rpartition("e")
    if len(text) > MAX_DIGITS or (e and abs(int(exponent)) > MAX_DIGITS):
        raise OverflowError
    return Fraction(text)


def _parse_ratio(raw: object) -> object:
    return float(parse_fraction(raw)) if isinstance(raw, str) else raw


def _check_not_empty(items: tuple[T, ...]) -> tuple[T, ...]:
    if not items:
        raise ValueError("expected at least one, got none")
    return items


FiniteFloat = Annotated[float, Strict(), AllowInfNan(False)]
PositiveFloat = Annotated[FiniteFloat, Field(gt=0)]
NonNegativeFloat = Annotated[FiniteFloat, Field(ge=0)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
NonNegativeInt = Annotated[int, Strict(), Field(ge=0)]
PositiveInt = Annotated[int, Strict(), Field(ge=1)]
Flag = Annotated[bool, Strict()]
NOT_IN_FINGERPRINT = "decides no result"
"""Marks fields that cannot change results, and so do not belong to a recipe's fingerprint."""
Workers = Annotated[NonNegativeInt | None, NOT_IN_FINGERPRINT]
Switch = Annotated[Flag | None, NOT_IN_FINGERPRINT]
"""Turns something on that changes no result; off by default."""
PathField = Annotated[str | None, NOT_IN_FINGERPRINT]
"""The location of something whose content is identified by its name."""
# Field(min_length=1) would also report an empty tuple if all members are invalid.
NonEmpty = AfterValidator(_check_not_empty)
"""Annotates a tuple that must not be empty."""
Ratio = Annotated[FiniteFloat, BeforeValidator(_parse_ratio), WithJsonSchema({"type": ["string", "number"]})]
"""A number that a recipe may also write as a fraction: 0.25 or "7/31"."""
