"""The images of a training: loaded, split into training and validation images, and put into batches."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import final

from allrounder.config.time import Clock
from allrounder.data.base import Data, Split, Subset
from allrounder.data.batches import Batches, ExtraBatches, OwnBatches
from allrounder.data.extra import check_compatible
from allrounder.data.splits import hold_out, sample_stratified, stratified_indices
from allrounder.errors import RecipeError
from allrounder.recipe.budgets import budget_problems
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng

MAX_LISTED = 10
"""The largest number of classes that a message lists."""


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
    own_batches: Mapping[str, OwnBatches] = field(default_factory=dict[str, OwnBatches])
    """The batches of learners that have their own, by name."""

    @classmethod
    def load(cls, recipe: Recipe, data: Data | None = None) -> TrainingData:
        """Load a recipe's dataset, unless `data` is given, and its extra images; then split."""
        return cls.split(recipe, add_extra(recipe, data or load_data(recipe)))

    @classmethod
    def split(cls, recipe: Recipe, data: Data) -> TrainingData:
        """Split a dataset whose extra images, if the recipe wants any, are already loaded."""
        check_budgets(recipe, data)
        train, held_out = train_val_split(recipe, data)
        validation = data.test if recipe.validation.on == "test" else held_out
        batches = make_batches(recipe, train, data.extra)
        own_batches = make_own_batches(recipe, train, data.extra, batches.steps)
        clock = Clock(recipe.epochs, batches.steps, recipe.pace)
        return cls(data, train, validation, batches, clock, own_batches)

    def describe(self, recipe: Recipe) -> list[str]:
        """Describe how the images are used, and what may surprise about them, one line each."""
        count, steps = len(self.train), self.clock.steps_per_epoch
        selecting = "no image selects"
        if self.validation is not None:
            source = "test" if recipe.validation.on == "test" else "held-out training"
            selecting = f"{len(self.validation)} {source} images select"
        lines = [f"{count} training images in {steps} steps per epoch; {selecting} the best weights"]
        if recipe.batch_size > count:
            lines.append(f"batch_size is {recipe.batch_size}: every step uses all {count} training images")
        for name, own in self.own_batches.items():
            images = f"{len(own.rows)} of them" if len(own.rows) < count else "all of them"
            extra = f", with {own.extra_per_batch} extra images in each" if own.extra_per_batch else ""
            lines.append(f"{name} draws its own batches of {own.batch_size} from {images}{extra}")
        present = self.train.labels.bincount(minlength=len(self.dataset.classes)) > 0
        if absent := [name for name, some in zip(self.dataset.classes, present, strict=True) if not some]:
            names = ", ".join(absent[:MAX_LISTED]) + (", ..." if len(absent) > MAX_LISTED else "")
            lines.append(f"{len(absent)} of {len(present)} classes have no training image: {names}")
        return lines


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


def check_budgets(recipe: Recipe, data: Data) -> None:
    """Raise RecipeError if a budget is too large for images of this shape, also in a stage of a pipeline."""
    for stage in recipe.stage_recipes().values():
        for path, message in budget_problems(stage.tasks, stage.validation, stage.probes, data.shape):
            words = [str(key) for key in path]
            if path[0] == "task":
                words[1] = stage.names[int(path[1])]
            raise RecipeError(f"{'.'.join(words)}: {message}")


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


def select_train_images(recipe: Recipe, split: Split) -> Split:
    """Return the part of a training set that the recipe uses, with its class proportions."""
    if recipe.train_images is None:
        return split
    if recipe.train_images > len(split):
        expected = f"expected at most {len(split)}, the number of training images"
        raise RecipeError(f"train_images: got {recipe.train_images}, {expected}")
    return Subset(split, stratified_indices(split, recipe.train_images, recipe.seed).sort().values)


def train_val_split(recipe: Recipe, data: Data) -> tuple[Split, Split | None]:
    """Return the images to train on, and those held out for selection unless it uses the test set or none."""
    split = select_train_images(recipe, data.train)
    with blame_field("validation.images", (ValueError,)):
        count = recipe.validation.num_held_out(len(split))
        if count == 0:
            return split, None
        return hold_out(split, count, Rng(recipe.seed).fold_in("validation"))


def make_batches(recipe: Recipe, split: Split, extra: Split | None) -> Batches | ExtraBatches:
    """Return the batches of a training: of a split, and of extra images if the recipe wants them."""
    if recipe.extra is None or extra is None:
        assert recipe.extra is None, "the extra images were not loaded"
        return Batches(split, recipe.batch_size, Rng(recipe.seed))
    extra_per_batch = recipe.extra.num_in_batch(recipe.batch_size)
    with blame_field("extra", (ValueError,)):
        return ExtraBatches(split, extra, extra_per_batch, recipe.batch_size, Rng(recipe.seed))


def make_own_batches(recipe: Recipe, split: Split, extra: Split | None, steps: int) -> dict[str, OwnBatches]:
    """Return the batches of the learners that draw their own, in epochs of `steps` steps, by name."""
    rng = Rng(recipe.seed)
    batches: dict[str, OwnBatches] = {}
    for task in recipe.tasks:
        if not task.has_own_batches:
            continue
        count = len(split) if task.train_images is None else task.train_images
        if count > len(split):
            expected = f"expected at most {len(split)}, the number of images that are trained on"
            raise RecipeError(f"task.{task.name}.train_images: got {count}, {expected}")
        rows = sample_stratified(split, count, rng.fold_in("task images", task.name)).sort().values
        batch_size = task.batch_size or recipe.batch_size
        with blame_field(f"task.{task.name}.batch_size", (ValueError,)):
            order_rng = rng.fold_in("task order", task.name)
            num_extra = recipe.extra_per_batch(task)
            batches[task.name] = OwnBatches(split, rows, batch_size, steps, order_rng, extra, num_extra)
    return batches
