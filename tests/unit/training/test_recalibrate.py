"""Recalibration of weights with training images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from allrounder.attacks.base import Attack, AttackResult
from allrounder.errors import RecipeError
from allrounder.nn.batchnorm import recalibrate_
from allrounder.nn.state import clone, copy_, weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.training.data import train_val_split
from allrounder.training.mixer import NUM_IMAGES, recalibrate, sample_batches
from allrounder.training.recalibration import Crafting, craft_batches, measure_statistics, set_statistics
from allrounder.types import Classifier
from tests.support.networks import Tiny, blobs, same, tiny
from tests.support.trainings import PAIR, EndsAfter, Forgetful, go, recipe, remains
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


def with_buffers(kind: str, threats: str = '["Linf:0.1", "L2:0.5"]') -> Recipe:
    return recipe(
        PAIR,
        ("decay = 0.8", f"decay = 0.8\nbuffers = '{kind}'"),
        ('threats = ["Linf:0.1"]', f"threats = {threats}"),
    )


def crafting_of(value: Recipe) -> Crafting:
    return Crafting(value.validation.attack, value.selection_threats, value.seed, value.batch_size)


def craft(kind: str, period: int) -> tuple[list[Tensor], list[Tensor]]:
    """The natural batches and the crafted ones, on a network that is not trained."""
    split, rng = blobs(48).train, Rng(5).fold_in("recalibrate")
    return [*sample_batches(split, NUM_IMAGES, rng, 16)], [
        *craft_batches(trained(Tiny()), split, crafting_of(with_buffers(kind)), period, lambda: None)
    ]


def test_all_images_are_attacked_and_take_turns_among_the_threats():
    for natural, crafted in zip(*craft("recalibrate-adversarial", 1), strict=True):
        d = (crafted - natural).flatten(1)
        assert bool((d.abs().amax(1) > 0).all())
        assert bool((d[::2].abs().amax(1) <= 0.1 + 1e-6).all()) and bool(
            (d[1::2].norm(dim=1) <= 0.5 + 1e-6).all()
        )
        assert bool((d[1::2].abs().amax(1) > 0.1 + 1e-3).any()), "under the second threat"


def test_half_of_the_images_stay_natural():
    for natural, crafted in zip(*craft("recalibrate-both", 2), strict=True):
        changed = (crafted != natural).flatten(1).any(1)
        assert not changed[::2].any() and bool(changed[1::2].all())


@pytest.mark.parametrize("kind", ["recalibrate-adversarial", "recalibrate-both"])
def test_statistics_are_those_of_images_crafted_on_the_network_with_natural_ones(kind: str):
    value, split, theta = with_buffers(kind), blobs(48).train, clone(weights_of(trained(Tiny())))
    result = set_statistics(theta, Tiny(), value, split)
    natural = Tiny()
    copy_(weights_of(natural), recalibrate(theta, Tiny(), split, value.seed, value.batch_size))
    period = 2 if kind == "recalibrate-both" else 1
    batches = [*craft_batches(natural, split, crafting_of(value), period, lambda: None)]
    mean, variance = literal(natural, batches)
    assert torch.allclose(result["bn.running_mean"], mean, atol=1e-6)
    assert torch.allclose(result["bn.running_var"], variance, atol=1e-6)
    assert all(torch.equal(theta[name], result[name]) for name in theta if "running" not in name)
    assert not torch.allclose(result["bn.running_var"], natural.bn.running_var, atol=1e-5)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["recalibrate-adversarial", "recalibrate-both"])
def test_a_run_with_adversarial_statistics_resumes_bit_for_bit(kind: str, tmp_path: Path):
    go(with_buffers(kind), tmp_path / "whole")
    with pytest.raises(KeyError):
        go(with_buffers(kind), tmp_path / "resumed", progress=EndsAfter(5))
    go(with_buffers(kind), tmp_path / "resumed", resume=True)
    assert remains(tmp_path / "resumed") == remains(tmp_path / "whole")


def test_adversarial_statistics_need_a_threat():
    with pytest.raises(RecipeError, match=r"mix\.buffers: needs a threat to craft images under"):
        with_buffers("recalibrate-both", "[]")


def test_nothing_is_crafted_for_a_network_without_statistics():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    theta = clone(weights_of(network))
    crafting = Crafting(Untouched(), (Threat.parse("Linf:0.1"),), 5, 16)
    result = measure_statistics(theta, network, blobs(48).train, "adversarial", crafting)
    assert same(theta, result)


class Untouched(Attack):
    """An attack that must not run."""

    def run(self, model: Classifier, x: Tensor, y: Tensor, threat: Threat, rng: Rng) -> AttackResult:
        raise AssertionError("an image was attacked")
