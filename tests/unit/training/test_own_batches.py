"""Learners with their own images and batch size: eq. 4 and 5 of Generalist++, with equal numbers of steps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from allrounder.data.batches import OwnBatches
from allrounder.errors import RecipeError
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.training.data import TrainingData
from allrounder.training.learner import Learner
from allrounder.training.planning import plan
from allrounder.training.train import train
from allrounder.types import Batch, Passes
from tests.support.interruptions import STEP, Killed, Point, give_up, struck
from tests.support.networks import blobs, same, tiny
from tests.support.trainings import PAIR, EndsAfter, go, recipe, remains

NATURAL = 'name = "natural"'
OWN = (NATURAL, f"{NATURAL}\ntrain_images = 15\nbatch_size = 5")
LARGE = (NATURAL, f"{NATURAL}\nbatch_size = 24")


def load(*sets: tuple[str, str]) -> TrainingData:
    return TrainingData.load(recipe(PAIR, *sets), blobs(48))


def indices(batches: OwnBatches, steps: range) -> list[torch.Tensor]:
    per_epoch = batches.steps
    return [batches.at((t - 1) // per_epoch + 1, (t - 1) % per_epoch + 1).index for t in steps]


def test_a_pass_sees_every_own_image_once_and_another_pass_has_another_order():
    own = load(OWN).own_batches["natural"]
    seen = indices(own, range(1, 10))
    assert {len(index) for index in seen} == {5}
    first, second = torch.cat(seen[:3]), torch.cat(seen[3:6])
    assert torch.equal(first.sort().values, own.rows) and torch.equal(second.sort().values, own.rows)
    assert not torch.equal(first, second)
    again = indices(load(OWN).own_batches["natural"], range(9, 0, -1))
    assert all(torch.equal(a, b) for a, b in zip(seen, reversed(again), strict=True)), "whatever the order"


def test_own_images_are_a_class_balanced_part_that_depends_on_the_name():
    one, other = load(OWN), load(OWN, (NATURAL, 'name = "other"'))
    rows = one.own_batches["natural"].rows
    assert one.train.labels[rows].bincount().tolist() == [5, 5, 5]
    assert not torch.equal(rows, other.own_batches["other"].rows)
    fewer = load((NATURAL, f"{NATURAL}\ntrain_images = 6\nbatch_size = 5")).own_batches["natural"].rows
    assert set(fewer.tolist()) < set(rows.tolist()), "a smaller part lies in a larger one"


def test_the_steps_are_those_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: dict[str, list[int]] = {"linf": [], "natural": []}
    step = Learner.step

    def record(learner: Learner, batch: Batch, t: int, augmented: object) -> object:
        seen[learner.task.name].append(len(batch))
        return step(learner, batch, t, augmented)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Learner, "step", record)
    go(recipe(PAIR, LARGE), tmp_path / "run")
    assert seen == {"linf": [16, 16, 4] * 3, "natural": [24] * 9}


def test_the_other_learner_is_not_affected(tmp_path: Path):
    without_exchange = ("exchange = { start = 1, every = 1 }", "")
    plain = go(recipe(PAIR, without_exchange), tmp_path / "plain")
    own = go(recipe(PAIR, without_exchange, OWN), tmp_path / "own")
    assert same(plain.weights("linf")[0], own.weights("linf")[0])
    assert not same(plain.weights("natural")[0], own.weights("natural")[0])


@pytest.mark.parametrize("change", [OWN, LARGE])
def test_an_interrupted_run_is_the_uninterrupted_run(change: tuple[str, str], tmp_path: Path):
    value = recipe(PAIR, change)
    whole = remains(go(value, tmp_path / "whole").folder)
    with struck(Point(STEP, 11), give_up), pytest.raises(Killed):
        go(value, tmp_path / "run")
    assert remains(go(value, tmp_path / "run", resume=True).folder) == whole


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("train_images = 37", r"task\.natural\.train_images: got 37, expected at most 36"),
        ("train_images = 12", r"task\.natural\.batch_size: got 16, expected at most 12"),
        ("batch_size = 40", r"task\.natural\.batch_size: got 40, expected at most 36"),
    ],
)
def test_too_many_images_are_refused(keys: str, message: str):
    with pytest.raises(RecipeError, match=message):
        load((NATURAL, f"{NATURAL}\n{keys}"))


EXTRA = ("\n[mix]", '\n[extra]\nshare = 0.5\ndata = { kind = "python", name = "more" }\n[mix]')


def load_with_extra(keys: str) -> TrainingData:
    data = replace(blobs(48), extra=blobs(30).train)
    return TrainingData.load(recipe(PAIR, (NATURAL, f"{NATURAL}\n{keys}"), EXTRA), data)


@pytest.mark.parametrize(
    ("keys", "num_original", "num_extra"),
    [
        ("batch_size = 8", 4, 4),
        ("train_images = 15", 8, 8),
        ("extra_share = 0.25", 12, 4),
        ("extra_share = 0", 16, 0),
    ],
)
def test_own_batches_have_their_share_of_extra_images(keys: str, num_original: int, num_extra: int):
    data = load_with_extra(keys)
    own = data.own_batches["natural"]
    batches = [own.at(1, step) for step in range(1, own.steps + 1)]
    for batch in batches:
        assert batch.extra is not None and batch.extra.tolist() == [False] * num_original + [True] * num_extra
        assert set(batch.index[:num_original].tolist()) <= set(own.rows.tolist())
        assert torch.equal(batch.y, torch.cat([data.train.labels, blobs(30).train.labels])[batch.index])
    assert own.steps == data.batches.steps, "those of the recipe"
    described = any("extra images in each" in line for line in data.describe(recipe(PAIR)))
    assert described == (num_extra > 0)


def test_a_run_with_extra_images_of_one_learner_resumes_bit_for_bit(tmp_path: Path):
    value = recipe(PAIR, (NATURAL, f"{NATURAL}\nextra_share = 0"), EXTRA)
    data = replace(blobs(48), extra=blobs(30).train)
    whole = train(value, tmp_path / "whole", model=tiny, data=data, progress=False)
    with suppress(KeyError):
        train(value, tmp_path / "parts", model=tiny, data=data, progress=EndsAfter(5))
    parts = train(value, tmp_path / "parts", model=tiny, data=data, progress=False, resume=True)
    assert remains(parts.folder) == remains(whole.folder)


@pytest.mark.parametrize(
    ("keys", "sets", "message"),
    [
        ("extra_share = 0.5", (), r"extra_share: there are no extra images"),
        ("extra_share = 0.01", (EXTRA,), r"extra_share: gives 0 extra images per batch of 16"),
        ("extra_share = 0.99", (EXTRA,), r"extra_share: gives 16 extra images per batch of 16"),
        ("extra_share = 1", (EXTRA,), r"extra_share: .*less than 1"),
    ],
)
def test_impossible_shares_of_extra_images_are_refused(
    keys: str, sets: tuple[tuple[str, str], ...], message: str
):
    with pytest.raises(RecipeError, match=message):
        recipe(PAIR, (NATURAL, f"{NATURAL}\n{keys}"), *sets)


def test_too_few_extra_images_are_refused():
    with pytest.raises(RecipeError, match=r"task\.natural\.batch_size: got 32, .* its extra images"):
        load_with_extra("batch_size = 36\nextra_share = 0.9")


def test_recipes_without_own_batches_keep_their_text_and_fingerprint():
    plain = recipe(PAIR)
    assert "train_images" not in plain.dumps().partition("[[task]]")[2].partition("[validation]")[0]
    own = recipe(PAIR, OWN)
    assert Recipe.loads(own.dumps()) == own and own.fingerprint() != plain.fingerprint()


def test_costs_count_the_batches_of_each_learner():
    value = recipe(PAIR, (NATURAL, f"{NATURAL}\nbatch_size = 8"))
    assert value.total_passes() == Passes(3 * 3 + 2, 3 * 3 + 2)  # half a batch of 3 epochs, rounded up
    assert recipe(PAIR).total_passes() == Passes(12, 12)
    assert plan(value, steps=1, model=tiny, data=blobs(48)).learners[1].passes == Passes(1, 1)


def test_the_use_of_the_images_is_described():
    value = recipe(PAIR, OWN)
    assert "natural draws its own batches of 5 from 15 of them" in load(OWN).describe(value)
    assert "natural draws its own batches of 24 from all of them" in load(LARGE).describe(value)


def test_the_order_of_own_images_has_its_own_random_address():
    own = load(OWN).own_batches["natural"]
    order = Rng(5).fold_in("task order", "natural").fold_in(1).permutation(15)
    assert torch.equal(indices(own, range(1, 2))[0], own.rows[order[:5]])
