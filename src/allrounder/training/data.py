"""The images of a training: loaded, split into training and validation images, and put into batches."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import final

from allrounder.config.time import Clock
from allrounder.data.base import Data, Split
from allrounder.data.batches import Batches, ExtraBatches
from allrounder.data.extra import check_compatible
from allrounder.data.splits import hold_out
from allrounder.errors import RecipeError
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng


@final
@dataclass(frozen=True, eq=False)
class TrainingData:
    """What one training takes from a dataset, prepared once."""

    dataset: Data
    train: Split
    """The images to train on."""
    validation: Split | None
    """The images to select the best weights on: held-out ones, the test set, or None."""
    batches: Batches | ExtraBatches
    clock: Clock

    @classmethod
    def load(cls, recipe: Recipe, data: Data | None = None) -> TrainingData:
        """Load a recipe's dataset, unless `data` is given, and its extra images; then split."""
        return cls.split(recipe, add_extra(recipe, data or load_data(recipe)))

    @classmethod
    def split(cls, recipe: Recipe, data: Data) -> TrainingData:
        """Split a dataset whose extra images, if the recipe wants any, are already loaded."""
        train, held_out = train_val_split(recipe, data)
        validation = data.test if recipe.validation.on == "test" else held_out
        batches = make_batches(recipe, train, data.extra)
        return cls(data, train, validation, batches, Clock(recipe.epochs, batches.steps, recipe.pace))


@contextmanager
def blame_field(
    field: str, errors: tuple[type[Exception], ...] = (ValueError, OSError, RuntimeError)
) -> Generator[None]:
    """Report errors within the context as a mistake in a field of the recipe."""
    try:
        yield
    except RecipeError:
        raise
    except errors as error:
        raise RecipeError(f"{field}: {error}") from error


def load_data(recipe: Recipe) -> Data:
    """Load a recipe's dataset; a failure is reported as a mistake in the recipe."""
    with blame_field("data"):
        return recipe.data.load()


def add_extra(recipe: Recipe, data: Data) -> Data:
    """Return the dataset with the recipe's extra training images, loading them unless `data` has them."""
    if recipe.extra is None:
        if data.extra is not None:
            raise RecipeError("extra: the data has extra images, but the recipe has no [extra]; add it")
        return data
    with blame_field("extra"):
        extra = data.extra if data.extra is not None else recipe.extra.load(data)
        check_compatible(extra, data)
    return replace(data, extra=extra)


def train_val_split(recipe: Recipe, data: Data) -> tuple[Split, Split | None]:
    """Return the images to train on, and those held out for selection unless it uses the test set or none."""
    if recipe.validation.on == "test" or recipe.validation.images == 0:
        return data.train, None
    with blame_field("validation.images", (ValueError,)):
        return hold_out(data.train, recipe.validation.images, Rng(recipe.seed).fold_in("validation"))


def make_batches(recipe: Recipe, split: Split, extra: Split | None) -> Batches | ExtraBatches:
    """Return the batches of a training: of a split, and of extra images if the recipe wants them."""
    if recipe.extra is None or extra is None:
        assert recipe.extra is None, "the extra images were not loaded"
        return Batches(split, recipe.batch_size, Rng(recipe.seed))
    extra_per_batch = recipe.extra.num_in_batch(recipe.batch_size)
    with blame_field("extra", (ValueError,)):
        return ExtraBatches(split, extra, extra_per_batch, recipe.batch_size, Rng(recipe.seed))
