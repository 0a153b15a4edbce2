"""What a training takes from a dataset, and what does not fit the data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from allrounder.data.base import Data, TensorSplit
from allrounder.errors import RecipeError
from allrounder.recipe.recipe import Recipe
from allrounder.training.data import TrainingData
from allrounder.training.train import train
from tests.support.networks import blobs, tiny
from tests.support.trainings import PAIR, SOLO, recipe


def describe(recipe: Recipe, data: Data) -> list[str]:
    return TrainingData.load(recipe, data).describe(recipe)


def test_images_that_train_and_images_that_select_are_counted():
    data = blobs(train=60, test=9)
    assert describe(recipe(SOLO), data) == [
        "48 training images in 3 steps per epoch; 12 held-out training images select the best weights"
    ]
    on_test = recipe(SOLO, ("images = 12", 'on = "test"'))
    assert describe(on_test, data) == [
        "60 training images in 4 steps per epoch; 9 test images select the best weights"
    ]
    assert describe(recipe(SOLO, ("images = 12", "images = 0")), data) == [
        "60 training images in 4 steps per epoch; no image selects the best weights"
    ]
    assert describe(recipe(SOLO, ("images = 12", "")), data)[0].startswith("54 training images ")


def test_a_part_of_the_training_images_is_balanced_and_contained_in_larger_parts():
    data = blobs(train=60)

    def load(count: int) -> TrainingData:
        return TrainingData.load(
            recipe(SOLO, ("batch_size = 16", f"batch_size = 16\ntrain_images = {count}")), data
        )

    small, large = load(30), load(45)
    assert (len(small.train), len(large.train)) == (18, 33) and small.validation is not None
    assert (
        sorted(small.train.labels.tolist() + small.validation.labels.tolist())
        == [0] * 10 + [1] * 10 + [2] * 10
    )

    def images(part: TrainingData) -> set[bytes]:
        assert part.validation is not None
        splits = (part.train, part.validation)
        return {
            image.numpy().tobytes() for split in splits for image in split.fetch(torch.arange(len(split)))
        }

    assert len(images(small)) == 30 and images(small) < images(large)
    with pytest.raises(
        RecipeError, match="train_images: got 61, expected at most 60, the number of training images"
    ):
        load(61)
    assert (
        recipe(SOLO).fingerprint()
        != recipe(SOLO, ("batch_size = 16", "batch_size = 16\ntrain_images = 60")).fingerprint()
    )


def test_a_batch_size_above_the_number_of_images_is_noticed():
    lines = describe(recipe(SOLO, ("batch_size = 16", "batch_size = 49")), blobs(train=60))
    assert lines[1:] == ["batch_size is 49: every step uses all 48 training images"]


def test_classes_without_training_images_are_noticed():
    images, labels = torch.rand(60, 1, 4, 4), torch.arange(60) % 3
    split = TensorSplit(images, labels, 5)
    data = Data("gaps", split, split, ("a", "b", "c", "d", "e"))
    assert describe(recipe(SOLO), data)[1:] == ["2 of 5 classes have no training image: d, e"]


@pytest.mark.parametrize(("threat", "limit"), [("L2:2.01", "2"), ("L1:17", "16")])
def test_a_budget_too_large_for_the_images_stops_a_training_before_its_folder_exists(
    threat: str, limit: str, tmp_path: Path
):
    data = blobs(train=60)
    assert data.shape == (1, 8, 8)
    large = recipe(PAIR, ('threat = "Linf:0.1"', f'threat = "{threat}"'))
    with pytest.raises(
        RecipeError, match=rf"^task.linf.objective.threat: {threat}: expected .* most {limit},"
    ):
        train(large, tmp_path / "run", model=tiny, data=data)
    assert not (tmp_path / "run").exists()
