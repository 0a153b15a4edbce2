"""How many training images are held out."""

from __future__ import annotations

from pathlib import Path

import pytest

from allrounder.errors import RecipeError
from allrounder.recipe.recipe import Recipe, Validation, shipped_recipes
from allrounder.recipe.validation import HeldOut
from allrounder.training.data import TrainingData, train_val_split
from tests.support.networks import blobs
from tests.support.offenders import for_each

DATA = "data = { kind = 'python', name = 'blobs' }\n"
HELD_OUT = {"embedded": 500, "imagenet": 5000}


@pytest.mark.parametrize(
    ("total", "count"), [(1, 1), (4, 1), (48, 5), (600, 60), (3500, 350), (5000, 500), (50_000, 500)]
)
def test_a_tenth_is_held_out_by_default_but_at_most_500(total: int, count: int):
    assert Validation().num_held_out(total) == count


@pytest.mark.parametrize(
    ("written", "count"),
    [(0, 0), (12, 12), ("10%", 60), ("12.5%", 75), ("100/3%", 200), ("0.01%", 1), ("50%", 300)],
)
def test_a_number_or_a_share_is_held_out(written: int | str, count: int):
    validation = Validation(images=HeldOut.parse(written))
    assert validation.num_held_out(600) == count
    assert validation.selects is (count > 0)
    assert Validation(images=HeldOut(written), on="test").num_held_out(600) == 0
    assert Validation(images=HeldOut(written), on="test").selects


@pytest.mark.parametrize("raw", [-1, True, 1.5, "ten", "10", "0%", "100%", "-5%", "x%", "%", [1]])
def test_anything_else_is_refused(raw: object):
    with pytest.raises(
        ValueError, match=r'expected a number of at least 0, or a share .* such as "10%", got '
    ):
        HeldOut.parse(raw)


@for_each(shipped_recipes())
def test_shipped_recipes_write_the_number(name: str):
    images = Recipe.load(name).validation.images
    assert images is not None and images.written == HELD_OUT.get(name.split("/")[0], 1000)


def test_an_inherited_number_may_hold_out_a_third_of_the_images_but_not_more(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(f"extends = 'embedded/nt'\n{DATA}", encoding="utf-8")
    recipe = Recipe.load(file)
    assert recipe.validation.num_held_out(1500) == 500
    message = "validation.images: 500 of 600 training images would be held out, and an inherited number"
    with pytest.raises(RecipeError, match=message) as caught:
        TrainingData.split(recipe, blobs(train=600))
    assert "(here from embedded/_base.toml) may hold out at most a third; override it" in str(caught.value)


def test_a_number_that_the_recipe_itself_writes_may_hold_out_more(tmp_path: Path):
    file = tmp_path / "mine.toml"
    for text, sets in ((f"{DATA}validation.images = 500", []), (DATA, ["validation.images=500"])):
        file.write_text(f"extends = 'embedded/nt'\n{text}", encoding="utf-8")
        train, held_out = train_val_split(Recipe.load(file, sets), blobs(train=600))
        assert held_out is not None and (len(train), len(held_out)) == (100, 500)


def test_other_overrides_keep_the_limit_of_an_inherited_number():
    for sets in ([], ["epochs=2"], ["validation.every=1"]):
        recipe = Recipe.load("embedded/nt", sets)
        assert recipe.validation.images == HeldOut(500)
        with pytest.raises(RecipeError, match="500 of 600 training images would be held out"):
            train_val_split(recipe, blobs(train=600))


def test_an_inherited_number_does_not_apply_to_a_part_of_the_images():
    for sets, held_out in (["train_images=400"], 40), (["train_images=400", "validation.images=30"], 30):
        recipe = Recipe.load("embedded/nt", sets)
        train, validation = train_val_split(recipe, blobs(train=600))
        assert validation is not None and (len(train), len(validation)) == (400 - held_out, held_out)
        assert train_val_split(Recipe.loads(recipe.dumps()), blobs(train=600))[0].labels.equal(train.labels)


def test_the_default_has_no_key_in_a_written_recipe_and_returns():
    recipe = Recipe.load("embedded/nt", ["validation={}"])
    assert recipe.validation.images is None
    assert "images" not in recipe.dumps().partition("[validation]")[2].splitlines()[:3]
    assert Recipe.loads(recipe.dumps()) == recipe
