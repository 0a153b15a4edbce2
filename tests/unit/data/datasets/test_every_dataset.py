"""Train on every dataset of the papers and evaluate, from files as their authors publish them."""

from __future__ import annotations

from pathlib import Path

import pytest

import allrounder as ar
from allrounder.data import DATASETS
from allrounder.training.data import load_data
from tests.support import formats, samples

SETS = [
    "epochs=1",
    "batch_size=10",
    "model.width=4",
    "checkpoint=1",
    "validation.images=10",
    "validation.train_images=0",
    "validation.every='100%'",
]


@pytest.mark.parametrize("kind", ["mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "imagenet"])
def test_dataset_can_be_trained_and_evaluated_on(kind: str, tmp_path: Path):
    (tmp_path / "files").mkdir()
    samples.write(kind, tmp_path / "files")
    more = ", size=64, workers=1" if kind == "imagenet" else ""
    where = f'{{kind="{kind}", folder="{tmp_path / "files"}"{more}}}'
    recipe = ar.Recipe.load("embedded/at-linf", [f"data={where}", *SETS])
    data = load_data(recipe)
    expected = samples.pairs(kind)[1]
    assert len(data.test) == samples.TEST and data.test.labels.tolist() == ranked(kind, expected[1])
    run = ar.train(recipe, tmp_path / "run")
    outcome = ar.evaluate(
        ar.load(run.folder, "last"),
        data,
        threats=["Linf:8/255"],
        attacks=["pgd-2"],
        ood="fog@c:5,rotate@p",
        options=ar.EvalOptions(check="note"),
    )
    for probe in ("natural", "pgd-2@Linf:8/255", "fog@c-generated:5", "rotate@p-generated:30"):
        assert ((outcome.predicted[probe] >= 0) & (outcome.predicted[probe] < len(data.classes))).all()
    assert outcome.accuracy("pgd-2") <= outcome.accuracy()
    assert 0 <= outcome.flip_rate() <= 1


def ranked(kind: str, labels: formats.Digits) -> list[int]:
    """Folders are read class by class."""
    numbers = labels.tolist()
    return sorted(numbers) if kind == "imagenet" else numbers


def test_every_published_kind_is_tested():
    own = {"embedded", "folder", "npz", "python"}
    assert set(DATASETS) - own == {*samples.REAL, "tiny-imagenet"}, "tiny-imagenet has a test of its own"
