from __future__ import annotations

import dataclasses
import signal
from abc import ABC
from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any, final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import GetCoreSchemaHandler, PlainSerializer, ValidationError
from pydantic_core import CoreSchema, core_schema

from allrounder.attacks import ATTACKS
from allrounder.config.fields import (
    FiniteFloat,
    Flag,
    NonEmpty,
    NonNegativeInt,
    OneOf,
    PositiveFloat,
    PositiveInt,
    Ratio,
    Share,
    adapter,
    did_you_mean,
    frozen_config,
    kind_of,
    parse_fraction,
    raise_field_errors,
)
from allrounder.config.schedules import DECAYS, SCHEDULES
from allrounder.data import AUGMENTS, DATASETS
from allrounder.models import MODELS
from allrounder.nn.mixing import MIXES
from allrounder.objectives import OBJECTIVES
from allrounder.optim import UPDATES
from allrounder.optim.optimizers import OPTIMIZERS
from allrounder.recipe.init import INITS
from allrounder.recipe.mix import Exchange, Mix, Shares
from allrounder.recipe.recipe import Recipe, Validation
from allrounder.recipe.task import Task

TABLES: tuple[dict[str, Any], ...] = (
    ATTACKS,
    AUGMENTS,
    DATASETS,
    DECAYS,
    INITS,
    MIXES,
    MODELS,
    OBJECTIVES,
    OPTIMIZERS,
    SCHEDULES,
    UPDATES,
)
EVERY_VALUE = sorted(
    {cls for table in TABLES for cls in table.values()} | {Recipe, Validation, Task, Mix, Shares, Exchange},
    key=lambda cls: f"{cls.__module__}.{cls.__name__}",
)


class Shape(ABC):  # noqa: B024
    pass


@final
@frozen_config
class Dot(Shape):
    value: FiniteFloat = 0.0


@final
@frozen_config
class Box(Shape):
    side: PositiveFloat = 1.0
    inner: Annotated[Shape, OneOf(lambda: SHAPES, number_type=Dot)] = Dot()
    lid: Annotated[Shape | None, OneOf(lambda: SHAPES, optional=True)] = None


SHAPES: dict[str, type[Shape]] = {"dot": Dot, "box": Box}


@frozen_config
class Holder:
    shape: Annotated[Shape, OneOf(lambda: SHAPES)]


@frozen_config
class Numbers:
    number: FiniteFloat = 0.0
    positive: PositiveFloat = 1.0
    share: Share = 0.0
    whole: NonNegativeInt = 0
    count: PositiveInt = 1
    flag: Flag = False
    ratio: Ratio = 0.0
    texts: Annotated[tuple[str, ...], NonEmpty] = ("a",)


def read(cls: type[Any], **raw: object) -> Any:
    return adapter(cls).validate_python(raw)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *[("number", bad) for bad in ("1", True, None, float("nan"), float("inf"), [1.0])],
        *[("positive", bad) for bad in (0, -1.0)],
        *[("share", bad) for bad in (-0.1, 1.1)],
        *[("whole", bad) for bad in (-1, 1.0, "1", True)],
        *[("count", bad) for bad in (0, 2.0, "2", False)],
        *[("flag", bad) for bad in (0, 1, "true", "yes")],
        *[("ratio", bad) for bad in ("1/0", "half", True, "", [1], "nan")],
        *[("texts", bad) for bad in ((), (1,), "abc", 3)],
    ],
)
def test_numbers_flags_and_texts_are_never_guessed(field: str, bad: object):
    with pytest.raises(ValidationError, match=field):
        read(Numbers, **{field: bad})
    with pytest.raises(ValidationError, match=field):
        Numbers(**{field: bad})  # pyright: ignore[reportArgumentType]


def test_whole_numbers_are_numbers():
    made = read(Numbers, number=3, positive=2, share=1, ratio=2)
    assert made == Numbers(number=3.0, positive=2.0, share=1.0, ratio=2.0)
    assert all(type(getattr(made, name)) is float for name in ("number", "positive", "share", "ratio"))


def test_a_ratio_may_be_written_as_a_fraction():
    assert read(Numbers, ratio="7/31").ratio == 7 / 31
    assert read(Numbers, ratio=" 0.25 ").ratio == 0.25


def test_values_are_frozen_keyword_only_and_closed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Dot().value = 1.0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValidationError, match="positional"):
        Dot(1.0)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValidationError, match="size"):
        Dot(size=1.0)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("cls", EVERY_VALUE, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_no_field_of_the_package_reads_a_text_or_a_flag_as_a_number(cls: type[Any]):
    for name, default in _defaults(cls):
        wrong: tuple[object, ...] = ()
        if isinstance(default, bool):
            wrong = (1, "true")
        elif isinstance(default, int | float):
            wrong = (True, "four", *((float(default),) if isinstance(default, int) else ()))
        elif isinstance(default, str):
            wrong = (1, True)
        for bad in wrong:
            with pytest.raises(ValidationError) as caught:
                read(cls, **{name: bad})
            assert (name,) in [error["loc"] for error in caught.value.errors()], (name, bad)


@pytest.mark.parametrize("cls", EVERY_VALUE, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_every_value_of_the_package_refuses_unknown_keys(cls: type[Any]):
    with pytest.raises(ValidationError) as caught:
        read(cls, no_such_key=1)
    assert [e["type"] for e in caught.value.errors() if e["loc"] == ("no_such_key",)] == [
        "unexpected_keyword_argument"
    ]


def _defaults(cls: type[Any]) -> Iterator[tuple[str, object]]:
    for field in dataclasses.fields(cls):
        default = field.default
        if default is dataclasses.MISSING:
            continue
        yield field.name, getattr(default, "default", default)


def test_a_kind_is_read_and_written_back():
    raw = {"kind": "box", "side": 2, "inner": 0.5, "lid": {"kind": "dot", "value": 1}}
    made = read(Holder, shape=raw)
    assert made == Holder(shape=Box(side=2.0, inner=Dot(value=0.5), lid=Dot(value=1.0)))
    plain = adapter(Holder).dump_python(made)
    assert plain == {
        "shape": {"kind": "box", "side": 2.0, "inner": 0.5, "lid": {"kind": "dot", "value": 1.0}}
    }
    assert read(Holder, **plain) == made


def test_a_value_passes_through_and_the_raw_table_is_left_alone():
    dot, raw = Dot(value=3.0), {"kind": "dot", "value": 1}
    assert read(Holder, shape=dot).shape is dot
    read(Holder, shape=raw)
    assert raw == {"kind": "dot", "value": 1}


@pytest.mark.parametrize("nothing", [None, False])
def test_nothing_is_written_as_false_where_it_is_allowed(nothing: object):
    assert read(Box, lid=nothing).lid is None
    with pytest.raises(ValidationError, match="expected a table with a kind"):
        read(Holder, shape=nothing)


def test_the_bare_name_of_a_kind_is_a_table_with_this_kind():
    for raw in ("dot", "box"):
        written_out = adapter(Holder).validate_python({"shape": {"kind": raw}})
        assert adapter(Holder).validate_python({"shape": raw}) == written_out


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"kind": "bxo"}, r'has unknown kind "bxo" \(known: dot, box\); did you mean "box"\?'),
        ({"kind": 3}, r'has unknown kind "3" \(known: dot, box\)'),
        ({}, r"has no kind \(known: dot, box\)"),
        ("dto", r"expected a table with a kind \(dot, box\), got 'dto'; did you mean \"dot\"\?"),
        (1.0, r"expected a table with a kind \(dot, box\), got 1.0"),
        (True, r"expected a table with a kind \(dot, box\), got True"),
        ({"kind": "dot", "value": "x"}, "shape.value"),
        ({"kind": "box", "inner": {"kind": "dot", "vlaue": 1}}, "shape.inner.vlaue"),
    ],
)
def test_an_unknown_kind_is_refused_with_the_known_ones(raw: object, message: str):
    with pytest.raises(ValidationError, match=message):
        read(Holder, shape=raw)


def test_the_kind_of_a_value_is_its_name_in_the_table():
    assert kind_of(Box(), SHAPES) == "box"


def test_problems_between_fields_are_raised_together_at_their_places():
    with pytest.raises(ValidationError) as caught:
        raise_field_errors(Dot(), [(("a", 0), "one {brace}"), (("b",), "two")])
    assert caught.value.title == "Dot"
    assert [(e["loc"], e["msg"]) for e in caught.value.errors()] == [
        (("a", 0), "one {brace}"),
        (("b",), "two"),
    ]
    raise_field_errors(Dot(), [])


@pytest.mark.parametrize(
    ("raw", "exact"),
    [
        ("8/255", Fraction(8, 255)),
        (" 8/255 ", Fraction(8, 255)),
        (0.1, Fraction(1, 10)),
        ("0.1", Fraction(1, 10)),
        ("1e-2", Fraction(1, 100)),
        (3, Fraction(3)),
        (Fraction(1, 3), Fraction(1, 3)),
        ("-1/2", Fraction(-1, 2)),
        ("0.5/255", Fraction(1, 510)),
        ("8 / 255", Fraction(8, 255)),
    ],
)
def test_fractions_are_read_exactly(raw: object, exact: Fraction):
    assert parse_fraction(raw) == exact


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("8/0", "'8/0' divides by zero"),
        *[(raw, "expected a number or a fraction such as 8/255") for raw in ("", "x", "8/", "1/2/3", "nan")],
        *[(raw, "expected a number or a fraction such as 8/255") for raw in (True, None, [1], float("inf"))],
    ],
)
def test_an_invalid_fraction_is_refused(raw: object, message: str):
    with pytest.raises(ValueError, match=message):
        parse_fraction(raw)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_read_as_they_are_written(number: float):
    assert float(parse_fraction(number)) == number
    assert float(parse_fraction(repr(number))) == number


def test_the_nearest_word_is_offered_and_a_far_one_is_not():
    assert did_you_mean("stpes", ["steps", "step", "loss"]) == '; did you mean "steps"?'
    assert did_you_mean("kappa", {"steps": 1, "loss": 2}) == ""


def test_a_name_without_its_folder_suggests_all_folders_that_have_it():
    names = ["cifar10/generalist-t", "cifar10/generalist-t-wrn", "cifar10/nt", "embedded/generalist-t"]
    neighbours = '; did you mean "cifar10/generalist-t" or "embedded/generalist-t"?'
    assert did_you_mean("generalist-t", names) == did_you_mean("generalst-t", names) == neighbours
    assert did_you_mean("embeded/generalist-t", names) == '; did you mean "embedded/generalist-t"?'
    assert did_you_mean("NT", names) == did_you_mean("zzz", names) == ""


def test_an_interrupt_while_a_value_is_encoded_is_not_another_error():
    """pydantic would raise a PydanticSerializationError."""

    def interrupt(value: int) -> int:
        signal.raise_signal(signal.SIGINT)
        return value

    @frozen_config
    class Interrupted:
        number: Annotated[int, PlainSerializer(interrupt)] = 1

    with pytest.raises(KeyboardInterrupt):
        adapter(Interrupted).dump_python(Interrupted())


def test_an_interrupt_while_a_decoder_is_built_is_delayed():
    calls: list[object] = []

    class Interrupter:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
            signal.raise_signal(signal.SIGINT)
            calls.append(source)
            return core_schema.any_schema()

    with pytest.raises(KeyboardInterrupt):
        adapter(Interrupter)
    assert calls == [Interrupter]
