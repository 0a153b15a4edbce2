from __future__ import annotations

import re
import tomllib
from abc import ABC
from typing import Annotated, Any, Literal, cast, final

import pytest

from allrounder.config.decode import Table, apply_override, decode, json_schema
from allrounder.config.fields import Flag, NonEmpty, OneOf, PositiveInt, Share, frozen_config
from allrounder.config.time import Time
from allrounder.errors import RecipeError
from allrounder.recipe.inherit import Chain
from allrounder.recipe.library import find_recipe
from allrounder.recipe.recipe import Recipe, shipped_recipes
from tests.support.offenders import check_each


class Tool(ABC):  # noqa: B024
    pass


@final
@frozen_config
class Saw(Tool):
    teeth: PositiveInt = 3
    sharp: Flag = True


@final
@frozen_config
class Bag(Tool):
    """A tool that holds tools, as an attack may hold attacks."""

    tools: tuple[Annotated[Tool, OneOf(lambda: TOOLS)], ...] = ()


TOOLS: dict[str, type[Tool]] = {"saw": Saw, "bag": Bag}


@final
@frozen_config
class Worker:
    name: str
    tool: Annotated[Tool, OneOf(lambda: TOOLS)]
    wage: Share = 0.0
    day: Literal["mon", "tue"] = "mon"
    pair: tuple[PositiveInt, PositiveInt] = (1, 1)


@final
@frozen_config
class Firm:
    worker: Annotated[tuple[Worker, ...], NonEmpty]
    opens: Time = Time.parse(0)
    boss: Worker | None = None

    def __post_init__(self) -> None:
        if self.boss in self.worker:
            raise ValueError("the boss works")


FIRM = """
opens = "50%"
[[worker]]
name = "ann"
tool = { kind = "saw", teeth = 5 }
[[worker]]
name = "bob"
tool = { kind = "bag", tools = [{ kind = "saw" }, { kind = "bag", tools = [{ kind = "saw" }] }] }
"""


def firm() -> Table:
    return tomllib.loads(FIRM)


def after(*sets: str) -> Table:
    raw = firm()
    for text in sets:
        apply_override(raw, text)
    return raw


def complaints(*sets: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        decode(Firm, after(*sets), "firm.toml")
    first, *lines = str(caught.value).splitlines()
    assert first == "firm.toml cannot be run:"
    assert all(line.startswith("  ") for line in lines)
    return [line.strip() for line in lines]


def test_a_whole_table_is_decoded():
    made = decode(Firm, firm(), "firm.toml")
    assert made == Firm(
        opens=Time.parse("50%"),
        worker=(
            Worker(name="ann", tool=Saw(teeth=5)),
            Worker(name="bob", tool=Bag(tools=(Saw(), Bag(tools=(Saw(),))))),
        ),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "worker.ann.tool.teteh=1",
            'worker.ann.tool.teteh: unknown key (Saw has: teeth, sharp); did you mean "teeth"?',
        ),
        (
            "worker.bob.tool.tools.1.tools.0.dull=1",
            "worker.bob.tool.tools.1.tools.0.dull: unknown key (Saw has: teeth, sharp)",
        ),
        ("worker.ann.salary=1", "worker.ann.salary: unknown key (Worker has: name, tool, wage, day, pair)"),
        ("opnes=1", 'opnes: unknown key (Firm has: worker, opens, boss); did you mean "opens"?'),
        ("worker.ann.tool.teeth=five", "worker.ann.tool.teeth: expected a whole number, got 'five'"),
        ("worker.ann.tool.teeth=true", "worker.ann.tool.teeth: expected a whole number, got True"),
        ("worker.ann.tool.teeth=[5]", "worker.ann.tool.teeth: expected a whole number, got a list of 1"),
        ("worker.ann.tool.teeth={a=1}", "worker.ann.tool.teeth: expected a whole number, got a table"),
        ("worker.ann.tool.sharp=1", "worker.ann.tool.sharp: expected true or false, got 1"),
        ("worker.ann.wage=half", "worker.ann.wage: expected a number, got 'half'"),
        ("worker.ann.wage=2", "worker.ann.wage: expected less than or equal to 1, got 2"),
        ("worker.ann.day=wed", "worker.ann.day: expected 'mon' or 'tue', got 'wed'"),
        ("worker.ann.pair=[1,2,3]", "worker.ann.pair: expected a list of at most 2, got a list of 3"),
        ("worker.ann.pair=[1,0]", "worker.ann.pair.1: expected greater than or equal to 1, got 0"),
        ("worker.ann.name=3", "worker.0.name: expected a text, got 3"),
        ("worker=[]", "worker: expected at least one, got none"),
        ("worker=3", "worker: expected a list, got 3"),
        ("boss=3", "boss: expected a table, got 3"),
        ("boss={}", "boss.name: missing; it is required"),
        ("opens=noon", "opens: expected a time: epochs (75) or a share of the run (\"62.5%\"), got 'noon'"),
        (
            "worker.ann.tool.kind=swa",
            'worker.ann.tool: has unknown kind "swa" (known: saw, bag); did you mean "saw"?',
        ),
        ("worker.ann.tool={}", "worker.ann.tool: has no kind (known: saw, bag)"),
        (
            "worker.ann.tool=swa",
            "worker.ann.tool: expected a table with a kind (saw, bag), got 'swa'; did you mean \"saw\"?",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_path_value_and_expectation(text: str, message: str):
    assert message in complaints(text)


def test_a_mistake_between_fields_of_the_outermost_table_has_no_place():
    assert complaints('boss={name="ann", tool={kind="saw", teeth=5}}') == ["the boss works"]


def test_all_mistakes_are_reported_together():
    lines = complaints("opnes=1", "opens=-1", "worker.bob.wage=7", "worker.ann.tool.teteh=1", "boss=1")
    assert [line.split(":")[0] for line in lines] == [
        "worker.ann.tool.teteh",
        "worker.bob.wage",
        "opens",
        "boss",
        "opnes",
    ]


def test_a_list_whose_members_are_all_wrong_is_not_called_empty():
    assert complaints("worker.ann.wage=7", "worker.bob.wage=7") == [
        "worker.ann.wage: expected less than or equal to 1, got 7",
        "worker.bob.wage: expected less than or equal to 1, got 7",
    ]


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("opens=3", ("opens",), 3),
        ("opens = 3 ", ("opens",), 3),
        ("opens=3 # a comment", ("opens",), 3),
        ("opens=62.5%", ("opens",), "62.5%"),
        ('opens="62.5%"', ("opens",), "62.5%"),
        ("opens=8/255", ("opens",), "8/255"),
        ("opens=a=b", ("opens",), "a=b"),
        ("opens=", ("opens",), ""),
        ("opens=true", ("opens",), True),
        ("worker.bob.wage=1e-3", ("worker", 1, "wage"), 1e-3),
        ("worker.1.wage=0.5", ("worker", 1, "wage"), 0.5),
        ("worker.ann.tool.teeth=7", ("worker", 0, "tool"), {"kind": "saw", "teeth": 7}),
        ('worker.ann.tool={ kind = "bag" }', ("worker", 0, "tool"), {"kind": "bag"}),
        (
            "worker.bob.tool.tools.1.tools.0.teeth=9",
            ("worker", 1, "tool", "tools", 1, "tools", 0),
            {"kind": "saw", "teeth": 9},
        ),
        ("boss.tool.kind=saw", ("boss",), {"tool": {"kind": "saw"}}),
        ("worker.ann.name=cid", ("worker", 0, "name"), "cid"),
    ],
)
def test_an_override_reaches_its_place(text: str, path: tuple[str | int, ...], value: object):
    place: Any = after(text)
    for part in path:
        place = place[part]
    assert place == value
    assert type(place) is type(value)


def test_an_override_changes_nothing_else():
    changed, before = after("worker.ann.tool.teeth=7"), firm()
    changed["worker"][0]["tool"]["teeth"] = 5
    assert changed == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("opens", "override opens: expected a.b=value, such as"),
        ("=3", "override =3: expected a.b=value"),
        ("a..b=3", "override a..b=3: expected a.b=value"),
        (".a=3", "override .a=3: expected a.b=value"),
        ("", "override : expected a.b=value"),
        ("worker.eve.wage=1", 'no member "eve" (there are: ann, bob)'),
        ("worker.bbo.wage=1", 'no member "bbo" (there are: ann, bob); did you mean "bob"?'),
        ("worker.2.wage=1", 'no member "2" (there are: ann, bob)'),
        ("worker.-1.wage=1", 'no member "-1" (there are: ann, bob)'),
        ("worker.bob.tool.tools.2.teeth=1", 'no member "2" (there are: 0, 1)'),
        ("worker.ann={}", "worker is a list; name a key of one of its members, or replace the whole list"),
        ("opens.a=1", "opens is not a table, so it has no a"),
        ("opens.a.b=1", "the parent of a is not a table"),
        ("worker.ann.wage.a=1", None),
        ('opens="3', "not a TOML value: Unterminated string"),
        ("opens=[1, 2", "not a TOML value"),
        ("worker=[ann]", "not a TOML value"),
        ("boss={name=ann}", "not a TOML value"),
        ("opens=3\nboss=4", "got several lines, expected one; give one value per override"),
        ("opens=3\n[boss]", "several lines"),
    ],
)
def test_a_malformed_override_is_refused(text: str, message: str | None):
    if message is None:
        assert complaints(text)  # the table it would make is no wage
        return
    with pytest.raises(RecipeError, match=re.escape(message)):
        after(text)


def test_a_name_wins_over_a_number():
    raw = after("worker.bob.name=0", "worker.ann.name=1")
    raw["worker"][0]["name"], raw["worker"][1]["name"] = "1", "0"
    apply_override(raw, "worker.0.wage=0.5")
    assert [worker.get("wage") for worker in raw["worker"]] == [None, 0.5]


def conforms(instance: Any, schema: Table, root: Table) -> bool:
    """The part of JSON Schema that ours uses; an unknown keyword is an error."""
    simple = {"title", "description", "$defs"}
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}

    def typed(name: str) -> bool:
        if name == "null":
            return instance is None
        if name == "number":
            return isinstance(instance, int | float) and not isinstance(instance, bool)
        return isinstance(instance, types[name]) and (name == "boolean" or not isinstance(instance, bool))

    def check(key: str, rule: Any) -> bool:
        match key:
            case "$ref":
                assert rule.startswith("#/$defs/")
                return conforms(instance, root["$defs"][rule.removeprefix("#/$defs/")], root)
            case "anyOf":
                return any(conforms(instance, choice, root) for choice in rule)
            case "type":
                return any(typed(name) for name in (rule if isinstance(rule, list) else [rule]))
            case "const":
                return instance == rule and type(instance) is type(rule)
            case "enum":
                return instance in rule
            case "properties":
                return all(conforms(instance[k], rule[k], root) for k in rule.keys() & instance.keys())
            case "required":
                return set(rule) <= instance.keys()
            case "additionalProperties" if rule is False:
                return instance.keys() <= schema["properties"].keys()
            case "additionalProperties":
                return all(conforms(item, rule, root) for item in instance.values())
            case "items":
                return all(conforms(item, rule, root) for item in instance)
            case "prefixItems":
                return all(conforms(i, s, root) for i, s in zip(instance, rule, strict=False))
            case "minItems" | "maxItems":
                return len(instance) >= rule if key == "minItems" else len(instance) <= rule
            case "minimum" | "exclusiveMinimum":
                return instance > rule if key == "exclusiveMinimum" else instance >= rule
            case "maximum" | "exclusiveMaximum":
                return instance < rule if key == "exclusiveMaximum" else instance <= rule
            case "pattern":
                return re.search(rule, instance) is not None
            case "maxLength":
                return len(instance) <= rule
            case _:
                raise AssertionError(f"unknown keyword {key}")

    rules = {key: rule for key, rule in schema.items() if key not in simple}
    first = [key for key in ("type", "$ref", "anyOf") if key in rules]
    return all(check(key, rules[key]) for key in [*first, *(key for key in rules if key not in first)])


@pytest.fixture(scope="module")
def schema() -> Table:
    return json_schema(Recipe)


def _nodes(node: Any) -> list[Table]:
    if isinstance(node, list):
        return [inner for item in cast(list[Any], node) for inner in _nodes(item)]
    if not isinstance(node, dict):
        return []
    table = cast(Table, node)
    return [table, *(inner for item in table.values() for inner in _nodes(item))]


def test_every_reference_of_the_schema_resolves_and_every_definition_is_used(schema: Table):
    references = {str(node["$ref"]).removeprefix("#/$defs/") for node in _nodes(schema) if "$ref" in node}
    assert references == schema["$defs"].keys()


def test_every_table_of_the_schema_is_closed(schema: Table):
    closed = [node for node in _nodes(schema) if node.get("type") == "object" and "properties" in node]
    assert len(closed) > 30
    assert all(node["additionalProperties"] is False for node in closed)


def test_the_schema_enumerates_kinds_with_their_fields(schema: Table):
    task = schema["$defs"]["Task"]["properties"]
    kinds = {
        schema["$defs"][choice["$ref"].removeprefix("#/$defs/")]["properties"]["kind"]["const"]
        for choice in task["optimizer"]["anyOf"]
        if "$ref" in choice
    }
    assert kinds == {"sgd", "adam", "adamw"}
    assert {"enum": ["sgd", "adam", "adamw"]} in task["optimizer"]["anyOf"]
    assert {"type": "number"} in task["lr"]["anyOf"]
    assert {"const": False} in task["average"]["anyOf"]
    pgd = schema["$defs"]["allrounder.attacks.pgd.Pgd.pgd"]
    assert list(pgd["properties"]) == ["kind", "steps", "step", "loss", "start", "eot"]
    assert "required" not in pgd
    assert pgd["properties"]["step"]["description"].startswith("Length of a step")


def test_classes_of_one_kind_have_separate_definitions(schema: Table):
    entries = [entry for name, entry in schema["$defs"].items() if name.endswith(".python")]
    assert len({entry["description"] for entry in entries}) == 2


def test_the_schema_holds_no_marker_and_no_default(schema: Table):
    assert not [node for node in _nodes(schema) if "x-kinds" in node or "default" in node]


def test_shipped_files_and_resolved_recipes_conform_to_the_schema(schema: Table):
    def check(name: str) -> None:
        assert conforms(find_recipe(name).read(), schema, schema)
        for layer in Chain.read(name).layers:
            assert conforms({"extends": "_", **layer.table}, schema, schema), layer.label
        assert conforms(tomllib.loads(Recipe.load(name).dumps()), schema, schema)

    check_each(shipped_recipes(), check)


@pytest.mark.parametrize(
    "text",
    [
        "epocks=1",
        "epochs=many",
        "epochs=true",
        "task.linf.objective.attack.stpes=3",
        "task.linf.objective.attack.kind=pdg",
        "task.linf.optimizer.momentum=2",
        "task.linf.average=true",
        "mix.shares.rest=1",
        "task.linf.name=a b",
        "validation.on=tset",
    ],
)
def test_a_mistake_does_not_conform_to_the_schema(schema: Table, text: str):
    raw = tomllib.loads(Recipe.load("embedded/generalist-t").dumps())
    assert conforms(raw, schema, schema)
    apply_override(raw, text)
    assert not conforms(raw, schema, schema)


def test_a_file_that_extends_nothing_must_be_whole(schema: Table):
    for parents in ("_base.toml", ["_base.toml", "cifar10/nt"]):
        assert conforms({"extends": parents}, schema, schema)
    for parents in (3, [3], {}):
        assert not conforms({"extends": parents}, schema, schema)
    assert not conforms({"epochs": 3}, schema, schema)


def test_a_file_that_extends_another_may_have_parts_of_tasks(schema: Table):
    child = {"extends": "_base.toml"}
    for task in (
        {"name": "linf", "lr": {"to": [1, 2]}, "objective": {"attack": {"steps": 3}}},
        {"name": "linf", "drop": True},
        {"names": ["linf", "l2"], "average": False},
    ):
        assert conforms({**child, "task": [task]}, schema, schema)
    for task in ({"name": "linf", "drop": False}, {"names": "linf"}, {"lr": {"too": [1]}}):
        assert not conforms({**child, "task": [task]}, schema, schema)
