"""Studies: what they expand to, and what is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from allrounder.errors import RecipeError
from allrounder.experiments.manifest import slug
from allrounder.experiments.study import Axis, Point, Study, shipped_studies

GRID = """
about = "two axes and a row"
base = "embedded/generalist-d-nt-linf"
seeds = [0, 3]
sets = ["epochs=2"]
[[axis]]
name = "c"
point = [
  { label = "often", sets = ["mix.exchange.every='5%'"] },
  { label = "rarely", sets = ["mix.exchange.every='50%'"] },
]
[[axis]]
name = "width"
point = [{ label = "thin", sets = ["model.width=4"] }, { label = "wide", paper = { natural = 90.5 } }]
[[row]]
label = "AT"
recipe = "embedded/at-linf"
"""


def test_axes_are_combined_and_rows_follow():
    study = Study.loads(GRID)
    assert study.labels() == ["often, thin", "often, wide", "rarely, thin", "rarely, wide", "AT"]
    trials = study.trials()
    assert [(t.label, t.seed) for t in trials[:3]] == [
        ("often, thin", 0),
        ("often, thin", 3),
        ("often, wide", 0),
    ]
    assert len({t.recipe.fingerprint() for t in trials}) == len(trials) == 10
    assert len({t.folder for t in trials}) == 10 and trials[0].folder == "often-thin/seed-0"
    assert all(t.recipe.epochs == 2 and t.recipe.seed == t.seed for t in trials)
    assert [str(t.cost) for t in trials[::2]] == ["24/24", "24/24", "24/24", "24/24", "22/22"]
    assert study.paper_results() == {"often, wide": {"natural": 90.5}, "rarely, wide": {"natural": 90.5}}


def test_a_study_survives_dumps_and_loads():
    study = Study.loads(GRID)
    assert Study.loads(study.dumps()) == study


def test_probes_of_a_study_replace_those_of_its_recipes():
    study = Study.loads('probes = ["pgd-5@L2:1"]\n[[row]]\nlabel = "a"\nrecipe = "embedded/nt"')
    assert [str(probe) for trial in study.trials() for probe in trial.recipe.probes] == ["pgd-5@L2:1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "row: missing; name the trainings to compare"),
        ('[[row]]\nlabel = "a"', "row.0.recipe: missing; name a recipe, because the study has no base"),
        (
            'axis = [{ name = "c", point = [{ label = "a" }] }]',
            "base: missing; name the recipe that the axes vary",
        ),
        ('base = "x"\nrow = [{ label = "a" }, { label = "a" }]', 'two rows have the label "a"'),
        ('base = "x"\nrow = [{ label = "a b" }, { label = "A-b" }]', "some labels give the same folder name"),
        ('base = "x"\nreference = "bb"\nrow = [{ label = "b" }]', '"bb" is not a row'),
        ('base = "x"\nseeds = []\nrow = [{ label = "b" }]', "seeds"),
        ('base = "x"\nrow = [{ label = "b", paper = { natural = 101.0 } }]', "paper"),
        ("sweeps = 1", "unknown key"),
        ("= 1", "not TOML"),
    ],
)
def test_an_invalid_study_is_refused(text: str, message: str):
    with pytest.raises(RecipeError, match=message.replace(".", r"\.")):
        Study.loads(text)


def test_a_wrong_override_names_its_row():
    with pytest.raises(RecipeError, match=r'row "a": (?s:.*)epoch: unknown key'):
        Study.loads('row = [{ label = "a", recipe = "embedded/nt", sets = ["epoch=3"] }]').trials()


def test_a_study_is_loaded_by_name_or_file(tmp_path: Path):
    (tmp_path / "mine.toml").write_text(GRID, encoding="utf-8")
    assert Study.load(tmp_path / "mine.toml").name == "mine.toml"
    assert Study.load("embedded/demo").name == "embedded/demo" and "embedded/demo" in shipped_studies()
    with pytest.raises(RecipeError, match=r'embedded/dmo: no such file.*did you mean "embedded/demo"'):
        Study.load("embedded/dmo")


def test_from_recipes_makes_one_row_per_recipe():
    study = Study.from_recipes(["embedded/nt", "embedded/at-l2"], seeds=range(2), sets=["epochs=1"])
    assert study.labels() == ["embedded/nt", "embedded/at-l2"] and len(study.trials()) == 4
    assert study.row[0] == Point(label="embedded/nt", recipe="embedded/nt")


@pytest.mark.parametrize(
    ("label", "name"), [("c = 5%", "c-5"), ("Generalist-D NT+Linf", "generalist-d-nt-linf"), ("%", "row")]
)
def test_labels_become_folders(label: str, name: str):
    assert slug(label) == name


def test_two_axes_that_name_recipes_are_refused():
    points = (Point(label="a", recipe="embedded/nt"), Point(label="b", recipe="embedded/at-linf"))
    axes = (Axis(name="one", point=points), Axis(name="two", point=(replace(points[0], label="c"),)))
    with pytest.raises(ValueError, match="recipe is set by"):
        Study(base="embedded/nt", axis=axes)


def test_unknown_shifts_are_refused_with_the_field():
    with pytest.raises(RecipeError, match=r"ood: .*'c:9', expected a severity of 1 to 5"):
        Study.loads('ood = ["c:9"]\n[[row]]\nlabel = "x"\nrecipe = "embedded/nt"')
