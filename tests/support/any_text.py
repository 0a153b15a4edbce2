"""Strategies for what a user writes: recipes, overrides, threats, probes, times and studies.

Most inputs are valid ones with a few changes, so that they reach the code behind the first check.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import tomli_w
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.support.trainings import PAIR

HUGE = (0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**64, 10**30, 10**400)
ODD_TEXTS = (
    *("", " ", "\n", "../x", "/", "con", "x" * 300, "a\x00b", "\u202e", "\u00b2", "\ufeff", "e\u0301", "nan"),
    *("1e999", "1e-999", "0x10", "1_0", "8/255", "1/0", "-0", "100%", "101%", "Linf:8/255", "pgd-20"),
    *("\U0001f600", "${HOME}", "%s", "{}", "<b>", "'", '"', "\\", "true", "inf", "-inf", "0/0", "1/3%"),
)
TEXTS = st.sampled_from(ODD_TEXTS) | st.text(max_size=12)
NUMBERS = st.sampled_from(HUGE) | st.integers(-3, 300) | st.floats() | st.floats(0, 1)
SCALARS = NUMBERS | TEXTS | st.booleans()


def nested(leaves: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Values, lists and tables of them."""
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=4,
    )


TOML_VALUES = nested(SCALARS | st.datetimes() | st.dates() | st.times())
JSON_VALUES = nested(SCALARS | st.none() | st.sampled_from(["\ud800", "a\udcffb"]))


def find_places(fields: Any) -> Iterator[tuple[Any, Any]]:
    """Every table or list inside fields, with each of its keys or positions."""
    items: Any = fields.items() if isinstance(fields, dict) else enumerate(fields)
    for key, value in items:
        yield fields, key
        if isinstance(value, dict | list):
            yield from find_places(value)


@st.composite
def altered(draw: DrawFn, fields: Any, values: SearchStrategy[Any]) -> Any:
    """Nested fields with up to three changes: a value replaced, removed, copied or moved to another key."""
    fields = deepcopy(fields)
    for _ in range(draw(st.integers(0, 3))):
        places = list(find_places(fields))
        if not places:
            break
        inner, key = places[draw(st.integers(0, len(places) - 1))]
        match draw(st.sampled_from(["replace", "replace", "remove", "copy", "rename"])):
            case "replace":
                inner[key] = draw(values)
            case "remove":
                del inner[key]
            case "copy":
                other, position = places[draw(st.integers(0, len(places) - 1))]
                inner[key] = deepcopy(other[position])
            case _ if isinstance(inner, dict):
                inner[draw(TEXTS | st.sampled_from(["kind", "name", "steps", "format"]))] = inner.pop(key)
            case _:
                inner.append(deepcopy(inner[key]))
    return fields


@st.composite
def edited_text(draw: DrawFn, text: str) -> str:
    """Text of which up to three parts are cut, doubled or replaced."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 20)))
        new = draw(
            TEXTS | st.sampled_from(["=", "[", "]", "{", "}", ".", ",", "#", '"""', text[start:end] * 2])
        )
        text = text[:start] + new + text[end:]
    return text


def toml_files(text: str) -> SearchStrategy[str]:
    """A valid file with other fields, or with other characters."""
    tables = altered(tomllib.loads(text), TOML_VALUES)
    return tables.map(tomli_w.dumps) | edited_text(text)


STUDY = """
about = "a"
base = "embedded/at-linf"
sets = ["epochs=2"]
seeds = [0, 1]
probes = ["pgd-2@Linf:8/255"]
ood = ["c:5"]
images = 20
held_out = false
reference = "b, 1"
source = "s"
[[axis]]
name = "lr"
point = [{ label = "b", sets = ["task.0.lr=0.1"], weights = "last", paper = { natural = 3 } }]
[[axis]]
name = "n"
point = [{ label = "1", minutes = 3.5 }, { label = "2", recipe = "embedded/nt" }]
[[row]]
label = "own"
recipe = "embedded/nt"
sets = ["seed=3"]
"""
RECIPES = toml_files(PAIR)
STUDIES = toml_files(STUDY)

KEYS = st.sampled_from(
    ["task", "0", "linf", "lr", "at", "to", "kind", "epochs", "seed", "mix", "shares", "curve", "exchange"]
) | st.sampled_from(
    ["name", "data", "model", "objective", "attack", "steps", "threat", "validation", "every"]
)
TOML_TEXTS = TOML_VALUES.map(lambda value: tomli_w.dumps({"a": value}).partition("a = ")[2].strip())
OVERRIDES = st.builds(
    lambda keys, sign, value: f"{'.'.join(keys)}{sign}{value}",
    st.lists(KEYS | TEXTS, min_size=1, max_size=4),
    st.sampled_from(["=", "=", "=", " = ", "", "+=", "=="]),
    TOML_TEXTS | TEXTS,
)

FRACTIONS = st.builds(
    lambda sign, whole, part, power, below: f"{sign}{whole}{part}{power}{below}",
    st.sampled_from(["", "", "", "-", "+", " "]),
    st.integers(0, 300) | st.sampled_from(HUGE),
    st.sampled_from(["", "", ".5", ".", "_0", "." + "3" * 30, "\u00b2", "\u0663"]),
    st.sampled_from(["", "", "e3", "e-3", "e400", "e-400", "e99999999999", "E"]),
    st.sampled_from(["", "", "/255", "/0", "/1e3", "/-2", "/3/4", " / 255 "]),
)
TIMES = (
    st.builds(str.__add__, FRACTIONS | TEXTS, st.sampled_from(["", "%", " %", "%%", "% "]))
    | SCALARS
    | st.none()
)
NORMS = st.sampled_from(
    ["Linf", "linf", "l_inf", "L\u221e", "L1", "L2", "l-2", "L1(0.5)", "L1(2)", "L1(", "L0"]
)
THREATS = st.builds(
    lambda norm, sign, budget: f"{norm}{sign}{budget}",
    NORMS | TEXTS,
    st.sampled_from([":", ":", ":", " : ", "::", ""]),
    FRACTIONS | TEXTS,
)
ATTACKS = st.builds(
    lambda name, sign, steps: f"{name}{sign}{steps}",
    st.sampled_from(["pgd", "mim", "cw", "aa", "aa-rand", "apgd-ce", "apgd-t", "fab-t", "square", "fgsm"])
    | TEXTS,
    st.sampled_from(["", "-", "--", "-+"]),
    st.sampled_from(["", "", "20", "0", "1e3", "\u00b2", "9" * 5000]) | st.integers(0, 10**10),
)
PROBES = st.builds(
    lambda attack, sign, threat: f"{attack}{sign}{threat}",
    ATTACKS,
    st.sampled_from(["@", "@", "@", " @ ", "@@", ""]),
    THREATS,
)
