from __future__ import annotations

import copy
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from allrounder.config.decode import Table
from allrounder.config.schedules import Constant
from allrounder.config.time import Time
from allrounder.errors import RecipeError
from allrounder.objectives import Natural
from allrounder.optim.optimizers import Sgd
from allrounder.recipe import library
from allrounder.recipe.inherit import Chain, merge
from allrounder.recipe.library import find_recipe
from allrounder.recipe.mix import Exchange, Mix
from allrounder.recipe.recipe import Recipe, shipped_recipes

TWO = """
epochs = 10
data  = { kind = "embedded" }
model = { kind = "small-cnn" }
about = "two learners"

[[task]]
name      = "linf"
objective = { kind = "adversarial", threat = "Linf:8/255", attack = { kind = "pgd", steps = 10 } }
optimizer = { kind = "sgd", momentum = 0.9 }
lr        = { kind = "linear", at = [0, "100%"], to = [0.1, 0.01] }

[[task]]
name      = "natural"
objective = { kind = "natural" }
lr        = 0.1

[mix]
shares   = { lead = "linf", curve = 0.5 }
exchange = { start = "50%", every = 1 }
"""


def write(folder: Path, **files: str) -> Path:
    """Write TOML files; return the one called child."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder / "child.toml"


def load(folder: Path, **files: str) -> Recipe:
    return Recipe.load(write(folder, **files))


def merged(base: str, child: str) -> Table:
    return merge(tomllib.loads(base), tomllib.loads(child))


def test_merging_lays_tables_of_one_kind_over_each_other_and_replaces_the_rest():
    base = tomllib.loads("""
        a = 1
        list = [1, 2]
        plain = { x = 1, y = { z = 1, w = 1 } }
        same = { kind = "saw", teeth = 5, sharp = false }
        silent = { kind = "saw", teeth = 5, sharp = false }
        other = { kind = "saw", teeth = 5, sharp = false }
        number = 0.5
        steps = [{ kind = "saw" }, { kind = "bag" }]
    """)
    child = tomllib.loads("""
        b = 2
        list = [3]
        plain = { y = { z = 2 } }
        same = { kind = "saw", teeth = 7 }
        silent = { teeth = 7 }
        other = { kind = "bag" }
        number = { kind = "linear" }
        steps = [{ teeth = 5 }]
    """)
    before = copy.deepcopy((base, child))
    assert merge(base, child) == {
        "a": 1,
        "b": 2,
        "list": [3],
        "plain": {"x": 1, "y": {"z": 2, "w": 1}},
        "same": {"kind": "saw", "teeth": 7, "sharp": False},
        "silent": {"kind": "saw", "teeth": 7, "sharp": False},
        "other": {"kind": "bag"},
        "number": {"kind": "linear"},
        "steps": [{"teeth": 5}],
    }
    assert (base, child) == before


MEMBERS = "task = [{ name = 'a', x = 1, t = { kind = 'k', u = 1, v = 1 } }, { name = 'b', x = 1 }]"


@pytest.mark.parametrize(
    ("child", "expected"),
    [
        (
            "task = [{ name = 'a', x = 2, t = { u = 2 } }]",
            [{"name": "a", "x": 2, "t": {"kind": "k", "u": 2, "v": 1}}, {"name": "b", "x": 1}],
        ),
        (
            "task = [{ name = 'a', t = { kind = 'l' } }]",
            [{"name": "a", "x": 1, "t": {"kind": "l"}}, {"name": "b", "x": 1}],
        ),
        (
            "task = [{ name = 'c', y = 3 }, { name = 'b', y = 2 }, { name = 'a', t = 0 }]",
            [{"name": "a", "x": 1, "t": 0}, {"name": "b", "x": 1, "y": 2}, {"name": "c", "y": 3}],
        ),
        ("task = [{ name = 'a', drop = true }]", [{"name": "b", "x": 1}]),
        (
            "task = [{ name = 'a', drop = true }, { name = 'a', y = 2 }]",
            [{"name": "b", "x": 1}, {"name": "a", "y": 2}],
        ),
        (
            "task = [{ names = ['a', 'b', 'z'], x = 9 }, { name = 'b', x = 8 }]",
            [{"name": "a", "x": 9, "t": {"kind": "k", "u": 1, "v": 1}}, {"name": "b", "x": 8}],
        ),
        ("task = [{ names = ['a', 'b'], drop = true }, { name = 'c' }]", [{"name": "c"}]),
        ("task = []", []),
        ("task = 3", 3),
    ],
)
def test_members_of_a_list_merge_by_name(child: str, expected: object):
    assert merged(MEMBERS, child) == {"task": expected}


def test_members_merge_by_name_at_any_depth():
    base = "p.end = [{ name = 'l', task = [{ name = 'a', x = 1 }] }, { name = 'm', task = [{ name = 'a' }] }]"
    child = "p.end = [{ name = 'l', task = [{ name = 'a', y = 2 }, { name = 'b' }] }]"
    assert merged(base, child) == {
        "p": {
            "end": [
                {"name": "l", "task": [{"name": "a", "x": 1, "y": 2}, {"name": "b"}]},
                {"name": "m", "task": [{"name": "a"}]},
            ]
        }
    }


def test_a_second_member_of_one_name_is_kept_for_the_error():
    twice = "task = [{ name = 'a', x = 2 }, { name = 'a', x = 3 }]"
    for base in ("", "task = [{ name = 'a' }]"):
        assert [member["x"] for member in merged(base, twice)["task"]] == [2, 3]


def test_a_key_may_be_dropped():
    assert merged("rest = { a = 0.5, b = 0.5 }", "rest = { a = 1, b = { drop = true } }") == {
        "rest": {"a": 1}
    }
    with pytest.raises(RecipeError, match=re.escape("rest.c: drop: no such key is inherited")):
        merged("rest = { a = 0.5, b = 0.5 }", "rest.c.drop = true")


@pytest.mark.parametrize(
    ("child", "message"),
    [
        (
            "task = [{ name = 'c', drop = true }]",
            "task.c: drop: nothing inherited is called c (there are: a, b)",
        ),
        ("task = [{ name = 'a', drop = false }]", "task.a: drop: expected `drop = true` and a name"),
        ("task = [{ name = 'a', drop = true, x = 1 }]", "task.a: drop: expected `drop = true` and a name"),
        ("task = [{ name = 'a' }, { drop = true }]", "drop: expected `drop = true` and a name"),
        ("task = [{ names = 'a' }]", "task.names: expected a list of names"),
        ("task = [{ names = ['a'], name = 'a' }]", "task.names: expected a list of names, and no `name`"),
        (
            "other = [{ name = 'a', drop = true }]",
            "other.a: drop: nothing inherited is called a (there are: none)",
        ),
    ],
)
def test_a_wrong_member_is_refused_with_its_file(tmp_path: Path, child: str, message: str):
    with pytest.raises(RecipeError, match=re.escape(message)):
        merged(MEMBERS, child)
    file = write(tmp_path, base=MEMBERS, child=f'extends = "base.toml"\n{child}')
    with pytest.raises(RecipeError, match=re.escape(f"{file}: ") + ".*" + re.escape(message)):
        Recipe.load(file)


def test_a_recipe_is_laid_over_the_one_it_extends(tmp_path: Path):
    child = 'extends = "base.toml"\nepochs = 3\n[mix]\ndecay = 0.5\n[mix.exchange]\nevery = 2\n'
    made = load(tmp_path, base=TWO, child=child)
    base = Recipe.load(tmp_path / "base.toml")
    assert (base.name, base.about) == ("base", "two learners")
    mix = replace(cast(Mix, base.mix), decay=Constant(value=0.5))
    mix = replace(mix, exchange=Exchange(start=Time.parse("50%"), every=Time.parse(2)))
    assert made == replace(base, name="child", about="", epochs=3, mix=mix)


def test_one_field_of_one_task_is_changed(tmp_path: Path):
    task = 'name = "linf"\noptimizer = { weight_decay = 0.5 }\nobjective = { attack = { steps = 3 } }'
    made = load(tmp_path, base=TWO, child=f'extends = "base.toml"\n[[task]]\n{task}')
    base = Recipe.load(tmp_path / "base.toml", ["task.linf.objective.attack.steps=3"])
    linf = replace(base.tasks[0], optimizer=Sgd(momentum=0.9, weight_decay=0.5))
    assert made.tasks == (linf, base.tasks[1])


def test_a_task_of_another_kind_is_replaced(tmp_path: Path):
    task = '[[task]]\nname = "linf"\nobjective = { kind = "natural" }\nlr = 1\n'
    made = load(tmp_path, base=TWO, child=f'extends = "base.toml"\n{task}')
    assert made.names == ("linf", "natural")
    assert (made.tasks[0].objective, made.tasks[0].lr) == (Natural(), Constant(value=1))


def test_a_task_may_be_added_and_dropped(tmp_path: Path):
    child = """
        extends = "base.toml"
        task = [{ name = "natural", drop = true }, { name = "l2", objective = { kind = "natural" }, lr = 1 }]
    """
    assert load(tmp_path, base=TWO, child=child).names == ("linf", "l2")


def test_a_learner_of_a_shipped_recipe_may_be_dropped_with_its_share(tmp_path: Path):
    child = """
        extends = "cifar10/generalist-t"
        task = [{ name = "l2", drop = true }]
        [mix.shares]
        rest = { natural = 1, l2 = { drop = true } }
    """
    made, two = load(tmp_path, child=child), Recipe.load("cifar10/generalist-d-nt-linf")
    assert made.tasks == two.tasks
    assert made.effective_mix.exchange == two.effective_mix.exchange


def test_later_parents_lie_over_earlier_ones_and_the_file_over_all(tmp_path: Path):
    made = load(
        tmp_path,
        base=TWO,
        one="epochs = 1\nseed = 1\nbatch_size = 11",
        two="epochs = 2\nseed = 2",
        child='extends = ["base.toml", "one.toml", "two.toml"]\nepochs = 3',
    )
    assert (made.epochs, made.seed, made.batch_size) == (3, 2, 11)


def test_several_levels_are_extended_and_files_count_once(tmp_path: Path):
    made = load(
        tmp_path,
        base=TWO,
        one="extends = 'base.toml'\nepochs = 1\ntask = [{ name = 'natural', drop = true }]",
        two='extends = "one.toml"\nseed = 2\n[mix]\nshares.curve = 1\nexchange = { drop = true }',
        three='extends = ["one.toml", "base.toml"]\nbatch_size = 3',
        child='extends = ["two.toml", "three.toml"]',
    )
    assert (made.epochs, made.seed, made.batch_size, made.names) == (1, 2, 3, ("linf",))
    labels = [Path(layer.label).stem for layer in Chain.read(tmp_path / "child.toml").layers]
    assert labels == ["base", "one", "two", "three", "child"]


def test_a_file_extends_a_shipped_recipe_and_files_in_other_folders(tmp_path: Path):
    (tmp_path / "shared").mkdir()
    write(tmp_path / "shared", long="extends = 'longer.toml'", longer="epochs = 99")
    child = 'extends = ["cifar10/generalist-t-wrn", "shared/long.toml"]\n[[task]]\nname = "l2"\nlr = 0.5'
    made, parent = load(tmp_path, child=child), Recipe.load("cifar10/generalist-t-wrn")
    tasks = (*parent.tasks[:2], replace(parent.tasks[2], lr=Constant(value=0.5)))
    assert made == replace(parent, name="child", about="", epochs=99, tasks=tasks)
    labels = [layer.label for layer in Chain.read(tmp_path / "child.toml").layers]
    assert labels == [
        "cifar10/_base.toml",
        "cifar10/generalist-t.toml",
        "cifar10/_wrn.toml",
        "cifar10/_variants.toml (generalist-t-wrn)",
        str(tmp_path / "shared" / "longer.toml"),
        str(tmp_path / "shared" / "long.toml"),
        str(tmp_path / "child.toml"),
    ]


def test_overrides_reach_inherited_fields(tmp_path: Path):
    file = write(tmp_path, child='extends = "embedded/generalist-t"\nepochs = 3')
    made = Recipe.load(file, ["task.linf.objective.attack.steps=2", "epochs=4"])
    expected = Recipe.load("embedded/generalist-t", ["task.linf.objective.attack.steps=2", "epochs=4"])
    assert made == replace(expected, name="child", about="")
    with pytest.raises(RecipeError, match=re.escape("epochs: expected a whole number, got 'x'") + "$"):
        Recipe.load(file, ["epochs=x"])


def test_a_cycle_is_refused_with_its_chain(tmp_path: Path):
    file = write(tmp_path, child='extends = "a.toml"', a="extends = ['b.toml']", b='extends = "./a.toml"')
    a, b = tmp_path / "a.toml", tmp_path / "b.toml"
    with pytest.raises(
        RecipeError, match=re.escape(f"{a} extends itself: {file} -> {a} -> {b} -> {a}") + "$"
    ):
        Recipe.load(file)
    file = write(tmp_path, child=f'extends = "../{tmp_path.name}/child.toml"')
    with pytest.raises(RecipeError, match=r"child\.toml extends itself"):
        Recipe.load(file)


@pytest.mark.parametrize(
    ("child", "message"),
    [
        ('extends = "none.toml"', r"child\.toml: extends: .*none\.toml: no such file, and no shipped recipe"),
        ('extends = "cifar10/generalst-t"', 'no shipped recipe .*; did you mean "cifar10/generalist-t"?'),
        ('extends = "cifar10/_base.toml"', "no such file, and no shipped recipe of that name"),
        ('extends = ["bad.toml", "none.toml"]', r"bad\.toml: not TOML: "),
        ("extends = 3", r"child\.toml: extends: expected the name of a file .* a list of names, got 3"),
        ("extends = ['child.toml', 3]", "extends: expected the name of a file .*, got 3"),
        ('extends = "."', "a folder, a pipe or a device, expected a file"),
        ("epochs =", r"child\.toml: not TOML: "),
        ("epochs = 1\nepochs = 2", r"child\.toml: not TOML: "),
        ('extends = "bad.toml"', r"bad\.toml: not TOML: "),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, child: str, message: str):
    write(tmp_path, child=child, bad="[[")
    with pytest.raises(RecipeError, match=message):
        Recipe.load(tmp_path / "child.toml")


def test_a_mistake_is_reported_with_the_file_that_makes_it(tmp_path: Path):
    file = write(
        tmp_path,
        base=TWO.replace("lr        = 0.1", "lr        = -0.1"),
        over='extends = "base.toml"\nbatch = 3\n[[task]]\nnames = ["linf", "l2"]\nlr = { top = 3 }',
        child='extends = "over.toml"\nepochs = "many"\n[mix.exchange]\nevery = -1',
    )
    with pytest.raises(RecipeError) as caught:
        Recipe.load(file)
    places = {
        line.split(":")[0].strip(): line.rpartition(" (in ")[2].rstrip(")")
        for line in str(caught.value).splitlines()
    }
    assert {
        path: Path(place).stem for path, place in places.items() if not path.startswith(str(tmp_path))
    } == {
        "task.linf.lr.top": "over",
        "task.natural.lr": "base",
        "epochs": "child",
        "batch": "over",
        "mix.exchange.every": "child",
    }


def test_a_missing_field_or_a_single_file_is_reported_without_a_file(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"epochs: expected a whole number, got 'x'$"):
        load(tmp_path, child=TWO.replace("epochs = 10", 'epochs = "x"'))
    with pytest.raises(RecipeError, match=r"data: missing; it is required$"):
        load(tmp_path, base="epochs = 3\nmodel.kind = 'resnet18'", child='extends = "base.toml"\n' + TASK)


TASK = '[[task]]\nname = "a"\nobjective = { kind = "natural" }\nlr = 1'


def test_every_shipped_recipe_is_a_file_or_a_variant_of_another():
    names = shipped_recipes()
    assert len(names) == len(set(names)) > 200
    for name in names:
        chain = Chain.read(name)
        assert chain.layers[-1].label == find_recipe(name).label
        assert chain.layers[-1].label in (
            f"{name}.toml",
            f"{name.split('/')[0]}/_variants.toml ({name.split('/')[1]})",
        )
        assert chain.layers[0].label.endswith("/_base.toml"), name


def test_every_file_that_is_only_extended_is_extended():
    root = Path(library.__file__).parent / "recipes"
    fragments = {f"{file.parent.name}/{file.name}" for file in root.glob("*/_*.toml")}
    used = {layer.label for name in shipped_recipes() for layer in Chain.read(name).layers}
    assert {file for file in fragments - used if not file.endswith("/_variants.toml")} == set()


def test_the_names_in_fragments_exist():
    """A learner that `names` lists without a recipe that has it is a misspelling."""
    root = Path(library.__file__).parent / "recipes"
    learners = {task for name in shipped_recipes() for task in Recipe.load(name).names}
    for file in root.glob("*/*.toml"):
        tasks = tomllib.loads(file.read_text(encoding="utf-8")).get("task", [])
        listed = {name for task in tasks for name in task.get("names", [])}
        assert listed <= learners, file


def test_a_file_of_variants_that_repeats_a_file_is_refused(tmp_path: Path):
    (tmp_path / "_variants.toml").write_text("a = { epochs = 1 }\nb = 3\n", encoding="utf-8")
    with pytest.raises(
        RecipeError, match=r"_variants\.toml: b: expected a table, and no file of the same name"
    ):
        library._read_variants(tmp_path)  # pyright: ignore[reportPrivateUsage]


def test_recipes_do_not_share_the_tables_of_variants():
    first = find_recipe("cifar100/nt-200").read()
    first["epochs"] = 0
    assert find_recipe("cifar100/nt-200").read()["epochs"] == 200
