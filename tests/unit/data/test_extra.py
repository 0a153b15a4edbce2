"""Extra images: read, mixed into batches, trained on, resumed and reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allrounder.cli.evaluate import TargetOptions
from allrounder.cli.target import load_target
from allrounder.data import Embedded, Npz
from allrounder.data.base import Data, Split, TensorSplit
from allrounder.data.batches import Batches, ExtraBatches
from allrounder.data.extra import ARRAY_NAMES, Extra
from allrounder.data.splits import ConcatSplit
from allrounder.errors import RecipeError, RunError
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import Outcome
from allrounder.report.render import render
from allrounder.rng import Rng
from allrounder.training.data import add_extra, load_data, make_batches, train_val_split
from allrounder.training.train import train
from allrounder.types import Batch
from tests.support.interruptions import STEP, Killed, Point, give_up, struck
from tests.support.networks import blobs
from tests.support.trainings import PAIR, SOLO, go, recipe, remains

MORE = 'extra = { share = 0.7, data = { kind = "python", name = "blobs" } }\nepochs = 3'
WITH = (("epochs = 3", MORE),)


def with_extra(images: int = 30) -> Data:
    return replace(blobs(48), extra=blobs(images, seed=9).train)


def labelled(n: int, offset: float = 0.0) -> Split:
    """Images that say their own number."""
    x = (torch.arange(n) + offset).view(n, 1, 1, 1) / 1000
    return TensorSplit(x.expand(n, 1, 2, 2).contiguous(), torch.arange(n) % 3, 3)


@given(
    n=st.integers(8, 40),
    m=st.integers(8, 90),
    size=st.integers(2, 8),
    share=st.floats(0.1, 0.9),
    seed=st.integers(0, 9),
)
def test_every_batch_has_its_part_of_extra_images_after_the_original_ones(n, m, size, share, seed):
    count = Extra(data=Embedded(), share=share).num_in_batch(size)
    if not 0 < count < size:
        return
    original, extra, draws = labelled(n), labelled(m, 500), Rng(seed)
    batches, plain = ExtraBatches(original, extra, count, size, draws), Batches(original, size, draws)
    assert batches.steps == plain.steps
    seen: list[int] = []
    for t in range(2 * batches.steps):
        batch = batches.at(t // batches.steps + 1, t % batches.steps + 1)
        assert len(batch) == size and int((batch.index >= n).sum()) == count
        assert bool((batch.index[: size - count] < n).all()) and int(batch.index.max()) < n + m
        assert len(batch.index.unique()) == size
        number = torch.where(batch.index < n, batch.index, batch.index - n + 500)
        assert torch.allclose(batch.x[:, 0, 0, 0] * 1000, number.float(), atol=1e-3)
        assert torch.equal(batch.y, batches.split.labels[batch.index])
        seen += batch.index[: size - count].tolist()
    # A pass is in the order of the plain batches, up to a rest that is too small.
    whole = n // (size - count) * (size - count)
    order = draws.fold_in("order", 1).permutation(n).tolist()
    assert seen[:whole] == order[: min(whole, len(seen))]


def test_batch_depends_only_on_its_address():
    def fresh() -> ExtraBatches:
        return ExtraBatches(labelled(20), labelled(33, 500), 3, 5, Rng(0))

    one = fresh()
    forwards = [one.at(epoch, step).index for epoch in (1, 2, 3) for step in (1, 2, 3, 4)]
    backwards = [one.at(epoch, step).index for epoch in (3, 2, 1) for step in (4, 3, 2, 1)][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forwards, backwards, strict=True))
    assert torch.equal(fresh().at(3, 2).index, forwards[9])
    assert {int(i) for index in forwards for i in index} >= set(range(20))
    for epoch, step in ((0, 1), (1, 0), (1, 5)):
        with pytest.raises(ValueError, match=f"got epoch {epoch}, step {step}"):
            one.at(epoch, step)


@given(st.lists(st.integers(0, 11), min_size=1, max_size=9))
def test_two_splits_are_fetched_as_one(places: list[int]):
    whole = torch.cat([labelled(5).fetch(torch.arange(5)), labelled(7, 500).fetch(torch.arange(7))])
    joined, index = ConcatSplit(labelled(5), labelled(7, 500)), torch.tensor(places)
    assert torch.equal(joined.fetch(index), whole[index]) and joined.fetch(index).is_contiguous()
    assert len(joined) == 12 and joined.labels.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 2, 0]


X = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 1), dtype=np.uint8)
Y = np.array([0, 1, 2, 0, 1, 1])


def read(tmp_path: Path, layout: Any = "auto", main: Data | None = None, **arrays: Any) -> Split:
    np.savez(tmp_path / "more.npz", **arrays)
    asked = Extra(data=Npz(path=str(tmp_path / "more.npz"), layout=layout), share=0.5)
    result = add_extra(replace(recipe(SOLO), extra=asked), main or blobs(48)).extra
    assert result is not None
    return result


@pytest.mark.parametrize("pair", ARRAY_NAMES)
@pytest.mark.parametrize("layout", ["nhwc", "nchw", "nhw"])
def test_file_with_only_training_images_is_read_under_any_usual_name(pair, layout, tmp_path: Path):
    x = {"nhwc": X, "nchw": X.transpose(0, 3, 1, 2), "nhw": X[..., 0]}[layout]
    arrays: dict[str, Any] = {pair[0]: x, pair[1]: Y.astype(np.int32), "other": Y}
    result = read(tmp_path, **arrays)
    assert result.labels.tolist() == Y.tolist()
    expected = torch.tensor(X).movedim(-1, 1)[[4, 0]] / 255
    got = result.fetch(torch.tensor([4, 0]))
    assert torch.allclose(got, expected, atol=1e-7) and got.is_contiguous()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": X},
            r"extra: .*more.npz: has the arrays x, expected x_train and y_train or x and y or image and",
        ),
        ({"x": X[:, :4], "y": Y}, r"extra: images: got shape \(1, 4, 8\), expected \(1, 8, 8\) as in blobs"),
        ({"x": X, "y": Y + 1}, r"more.npz: labels: got numbers from 1 to 3, expected 0 to 2"),
        ({"x": X, "y": Y[:4]}, r"more.npz: labels: got 4 for 6 images"),
        ({"x": X, "y": Y, "classes": np.array(["a", "b"])}, r"more.npz: classes: got 2, expected 3"),
        ({"x": X.astype(float), "y": Y}, r"more.npz: images: got pixels from .* expected \[0, 1\]"),
        ({"x": X.repeat(2, 3), "y": Y}, r"more.npz: x: the layout of shape .* is ambiguous or unknown"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_its_reason(arrays, message, tmp_path: Path):
    with pytest.raises(RecipeError, match=message):
        read(tmp_path, **arrays)
    with pytest.raises(RecipeError, match=r"x: got shape .6, 8, 8, 1., expected 3 dimensions .* \"nhw\""):
        read(tmp_path, "nhw", x=X, y=Y)


def test_classes_in_another_order_are_refused(tmp_path: Path):
    named = replace(blobs(48), classes=("cat", "dog", "emu"))
    with pytest.raises(RecipeError, match='classes: got "dog" as class 0, expected "cat"'):
        read(tmp_path, main=named, x=X, y=Y, classes=np.array(["dog", "cat", "emu"]))
    assert len(read(tmp_path, main=named, x=X, y=Y)) == 6
    assert len(read(tmp_path, x=X, y=Y, classes=np.array(["dog", "cat", "emu"]))) == 6


def test_any_dataset_gives_its_training_images():
    data = Embedded().load()
    asked = Recipe.load("embedded/nt", ["extra={ share = 0.5, data = { kind = 'embedded' } }"])
    extra = add_extra(asked, data).extra
    assert extra is not None and len(extra) == 4000 and torch.equal(extra.labels, data.train.labels)
    with pytest.raises(RecipeError, match="extra: classes: got 10, expected 3"):
        add_extra(asked, blobs())


def test_a_recipe_with_extra_images_is_written_and_read_again():
    asked = recipe(SOLO, *WITH)
    assert asked.extra is not None and asked.extra.share == 0.7
    assert Recipe.loads(asked.dumps()) == asked
    assert asked.fingerprint() != recipe(SOLO).fingerprint()
    assert "extra" not in recipe(SOLO).dumps()


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ("0.01", r"extra.share: gives 0 extra images per batch of 16, expected at least one"),
        ("0.99", r"extra.share: gives 16 extra images per batch of 16"),
        ("1.0", r"extra.share: expected less than 1"),
        ("0", r"extra.share: expected greater than 0"),
        ("'0.5'", r"extra.share: expected a number"),
    ],
)
def test_share_without_extra_or_original_images_is_refused(share, message):
    with pytest.raises(RecipeError, match=message):
        recipe(SOLO, ("epochs = 3", MORE.replace("0.7", share)))


def test_refused_training_leaves_no_folder(tmp_path: Path):
    few = replace(blobs(48), extra=blobs(10).train)
    for value, data, message in (
        (recipe(SOLO, *WITH), blobs(48), 'given from Python as "blobs".*data=Data'),
        (recipe(SOLO), with_extra(), "the data has extra images, but the recipe has no"),
        (recipe(SOLO, *WITH), few, "a batch of 16 takes 11 extra images, expected 1 to 10"),
    ):
        with pytest.raises(RecipeError, match=message):
            go(value, tmp_path / "run", data=data)
        assert not (tmp_path / "run").exists()


def test_batches_without_extra_images_are_unchanged():
    plain = make_batches(recipe(SOLO), blobs(48).train, None)
    assert isinstance(plain, Batches)
    assert torch.equal(plain.at(2, 1).index, Rng(5).fold_in("order", 2).permutation(48)[:16])


def test_resumed_run_with_extra_images_is_identical(tmp_path: Path):
    value = recipe(
        PAIR,
        *WITH,
        (
            'lr = 0.05\naugment = { kind = "crop-flip", pad = 1 }',
            "lr = 0.05\n"
            "augment = { kind = 'chain', steps = [{ kind = 'resized-crop' }, { kind = 'cutmix' }] }",
        ),
    )
    whole = go(value, tmp_path / "whole", data=with_extra())
    with struck(Point(STEP, 9), give_up), pytest.raises(Killed):
        go(value, tmp_path / "run", data=with_extra())
    with pytest.raises(RunError, match=r"had 66 images to train on, now there are 65; resume with the same"):
        go(value, tmp_path / "run", data=with_extra(29), resume=True)
    other = replace(with_extra(), extra=blobs(30, seed=8).train)
    with pytest.raises(RunError, match="was trained on other images or labels"):
        go(value, tmp_path / "run", data=other, resume=True)
    run = go(value, tmp_path / "run", data=with_extra(), resume=True)
    assert remains(run.folder) == remains(whole.folder)
    assert run.weights("best")[1]["extra"] == "70% of every batch from python (name blobs)"


class Preparing:
    """A split that records what is prefetched, and what is fetched."""

    def __init__(self, split: Split) -> None:
        self.split, self.prefetched, self.fetched = split, list[list[int]](), list[list[int]]()
        self.labels = split.labels

    def __len__(self) -> int:
        return len(self.split)

    def fetch(self, index: torch.Tensor) -> torch.Tensor:
        self.fetched.append(index.tolist())
        return self.split.fetch(index)

    def prefetch(self, index: torch.Tensor) -> None:
        self.prefetched.append(index.tolist())


def test_both_splits_prefetch_the_next_batches():
    original, extra = Preparing(labelled(12)), Preparing(labelled(7, 500))
    batches = ExtraBatches(original, extra, 3, 5, Rng(0))
    for t in range(9):
        batches.at(t // batches.steps + 1, t % batches.steps + 1)
    for split in (original, extra):
        assert len(split.prefetched) == 18
        for t, fetched in enumerate(split.fetched[1:], start=1):
            assert fetched == split.prefetched[2 * (t - 1)]
            assert t == 1 or fetched == split.prefetched[2 * (t - 2) + 1]
    plain = ExtraBatches(labelled(12), extra, 3, 5, Rng(0))
    assert torch.equal(plain.at(2, 1).index, batches.at(2, 1).index)
    joined = ConcatSplit(original, labelled(3))
    joined.prefetch(torch.tensor([13, 2, 12]))
    assert original.prefetched[-1] == [2]


def test_learners_see_extra_images_and_validation_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from allrounder.training.learner import Learner

    seen, step = list[Batch](), Learner.step
    monkeypatch.setattr(
        Learner, "step", lambda self, batch, *more: (seen.append(batch), step(self, batch, *more))[1]
    )
    value, data = recipe(SOLO, *WITH), with_extra()
    go(value, tmp_path / "run", data=data)
    train_split, held_out = train_val_split(value, data)
    assert len(seen) == 9 and len(train_split) == 36 and held_out is not None
    index = torch.cat([batch.index for batch in seen])
    assert int((index >= 36).sum()) == 9 * 11 and int(index.max()) < 66
    assert data.extra is not None
    images = held_out.fetch(torch.arange(12)).flatten(1)
    for batch in seen:
        extra = batch.index >= 36
        assert torch.equal(batch.x[extra], data.extra.fetch(batch.index[extra] - 36))
        assert not bool((batch.x.flatten(1)[:, None] == images).all(2).any())
    assert set(index[index >= 36].tolist()) == set(range(36, 66))


def test_tables_of_such_a_run_mark_the_extra_data(tmp_path: Path):
    np.savez(
        tmp_path / "more.npz",
        image=X.repeat(6, 0).repeat(4, 1)[:, :28].repeat(4, 2)[:, :, :28],
        label=Y.repeat(6),
    )
    file = f"{{ kind = 'npz', path = '{tmp_path / 'more.npz'}' }}"
    sets = ["epochs=1", "model.width=2", "batch_size=10", "validation.images=10", "validation.train_images=0"]
    value = Recipe.load("embedded/nt", [*sets, f"extra={{ share = 0.3, data = {file} }}"])
    data = load_data(value)
    few = TensorSplit(data.train.fetch(torch.arange(30)), data.train.labels[:30], 10)
    run = train(value, tmp_path / "run", data=replace(data, train=few))
    (tmp_path / "more.npz").unlink()
    about = load_target(TargetOptions(target=str(run.folder), which="last", data="embedded")).about
    assert about["extra"] == f"30% of every batch from npz (path {tmp_path / 'more.npz'}, layout auto)"
    label = np.array([0, 1])
    outcome = Outcome(label, {"natural": label, "aa@Linf:0.1": label}, {**about})
    table = render({"ours": outcome, "other": Outcome(label, {"natural": label}, {})})
    assert "ours: Trained with EXTRA DATA: 30% of every batch from npz" in table
    model: dict[str, Any] = {
        **dict.fromkeys(("link", "name", "authors", "dataset", "venue", "architecture"), "x"),
        "additional_data": False,
        "number_forward_passes": 1,
        "reported": "48.90",
    }
    with pytest.raises(
        ValueError, match="additional_data: got false, expected true: the network was trained"
    ):
        render({"ours": outcome}, "robustbench", about=model)
    assert render({"ours": outcome}, "robustbench", about={**model, "additional_data": True})
