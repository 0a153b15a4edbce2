"""Recalibration of weights with training images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from allrounder.nn.batchnorm import recalibrate_
from allrounder.nn.state import clone, copy_, weights_of
from allrounder.rng import Rng
from allrounder.training.data import train_val_split
from allrounder.training.mixer import NUM_IMAGES, recalibrate, sample_batches
from tests.support.networks import Tiny, blobs, tiny
from tests.support.trainings import PAIR, Forgetful, go, recipe
from tests.unit.nn.test_batchnorm import literal, trained


def test_sampled_images_and_their_order_depend_on_the_rng_only():
    split = blobs(48).train
    one, two = ([*sample_batches(split, 30, Rng(1), 16)] for _ in range(2))
    assert [len(x) for x in one] == [16, 14]
    assert all(map(torch.equal, one, two))
    whole = torch.cat([*sample_batches(split, NUM_IMAGES, Rng(1), 16)])
    assert len(whole) == len(whole.unique(dim=0)) == 48
    assert torch.equal(whole[:30], torch.cat(one))


def test_a_last_batch_of_one_image_is_left_out():
    split = blobs(33).train
    assert [len(x) for x in sample_batches(split, NUM_IMAGES, Rng(1), 16)] == [16, 16]
    flat = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64))
    recalibrate_(flat, sample_batches(split, NUM_IMAGES, Rng(1), 16))
    assert [len(x) for x in sample_batches(blobs(3).train, 1, Rng(1), 16)] == []


def test_recalibration_changes_batchnorm_statistics_only():
    theta = clone(weights_of(trained(Forgetful())))
    scratch = Forgetful()
    result = recalibrate(theta, scratch, blobs(48).train, 1, 20)
    assert {name for name in theta if not torch.equal(theta[name], result[name])} == {
        "bn.running_mean",
        "bn.running_var",
    }
    scratch.bn.weight.data.zero_()
    assert result["bn.weight"].all(), "the answer is a copy"


@pytest.mark.parametrize("which", ["global", "best"])
def test_the_global_weights_of_a_run_have_the_statistics_of_its_training_images(which: str, tmp_path: Path):
    value = recipe(PAIR, ("decay = 0.8", "decay = 0.8\nbuffers = 'recalibrate'"))
    run = go(value, tmp_path / "run")
    weights, _ = run.weights(which)
    train, _ = train_val_split(run.recipe, blobs(48))
    model = tiny()
    assert isinstance(model, Tiny)
    copy_(weights_of(model), weights)
    order = Rng(5).fold_in("recalibrate").permutation(36)
    mean, variance = literal(model, [train.fetch(rows) for rows in order.split(16)])
    assert torch.allclose(weights["bn.running_mean"], mean, atol=1e-6)
    assert torch.allclose(weights["bn.running_var"], variance, atol=1e-6)
