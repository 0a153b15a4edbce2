"""What the machines of a run hold between two steps, to the byte."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benchmarks.harness import cpu_world, expected_bytes, new_bytes, peak_bytes, tensor_storages
from torch import nn

from allrounder.data.base import Data
from allrounder.inference.fold import folded_copy
from allrounder.models.wide_resnet import WideResNet
from allrounder.nn.flat import flatten_
from allrounder.recipe.recipe import Recipe
from allrounder.training.run import Run
from allrounder.training.trainer import Trainer
from tests.support.networks import Tiny, blobs, tiny
from tests.support.trainings import HEAD, LINF, NATURAL

NETWORK = 4 * (4 * 9 + 4 * 4 + 64 * 3 + 3) + 8
"""Four filters, batch-norm with its statistics, a linear layer; and batch-norm's counter."""
FLAT = 4 * (48 + 16 + 16 + 64 * 3 + 16) + 4 * (16 + 16) + 8
"""The same in two buffers, where every tensor begins at a multiple of 64 bytes."""
MOMENTUM = 4 * (4 * 9 + 2 * 4 + 64 * 3 + 3)
FOLDED = 4 * (4 * 9 + 4 + 64 * 3 + 3)
"""Batch-norm has become the convolution's bias."""
ORDER = 8 * 48
"""Where every image of an epoch comes."""
L2 = LINF.replace('"linf"', '"l2"').replace("Linf:0.1", "L2:0.5")
LEARNERS = [LINF, NATURAL, L2]


@pytest.fixture(autouse=True)
def only_new_objects() -> Iterator[None]:
    """Hide what earlier tests left behind: looking through all of it for tensors takes seconds."""
    gc.collect()
    gc.freeze()
    yield


def recipe_of(count: int, averaged: int) -> Recipe:
    """So many learners, the first of which keep averages; nothing is held out or saved."""
    tasks = [task + "average = 0.9\n" * (number < averaged) for number, task in enumerate(LEARNERS[:count])]
    rest = {1: "", 2: "", 3: ", rest = { natural = 0.5, l2 = 0.5 }"}[count]
    mix = f'[mix]\ndecay = 0.8\nshares = {{ lead = "linf", curve = 0.6{rest} }}\n' if count > 1 else ""
    head = HEAD.replace("images = 12", "images = 0").replace("train_images = 6", "train_images = 0")
    return Recipe.loads(head.replace("checkpoint = 0.7", 'checkpoint = "100%"') + "".join(tasks) + mix)


def stepped(recipe: Recipe, folder: Path, data: Data, steps: int = 2) -> Trainer:
    """The machines of a run after some steps."""
    run = Run.open_or_create(folder, recipe, resume=False)
    training = Trainer(recipe, run, tiny, data, cpu_world())
    training.fit(until=steps)
    return training


def siblings(folder: Path) -> tuple[nn.Module, nn.Module]:
    """The networks of two learners."""
    first, second = stepped(recipe_of(2, 0), folder, blobs(48)).learners
    return first.model.eval(), second.model.eval()


@pytest.mark.parametrize(
    ("count", "averaged"),
    [
        (1, 0),
        (2, 1),
        (3, 0),
        (3, 1),
        pytest.param(1, 1, marks=pytest.mark.slow),
        pytest.param(2, 0, marks=pytest.mark.slow),
    ],
)
def test_a_learner_holds_its_weights_momentum_mix_state_and_average(
    count: int, averaged: int, tmp_path: Path
):
    data = blobs(48)
    before = tensor_storages()
    training = stepped(recipe_of(count, averaged), tmp_path / "run", data)
    held = new_bytes(before)
    each = FLAT + MOMENTUM + FLAT
    once = NETWORK + FOLDED + ORDER
    assert held == once + count * each + averaged * FLAT
    assert held == expected_bytes(training), "and benchmarks expect the same"


def test_a_folded_copy_holds_no_buffers_of_folded_layers():
    model = WideResNet(depth=10, widen=1).build(3, (1, 8, 8)).eval()
    flatten_(model)
    folded = folded_copy(model, torch.zeros(1, 1, 8, 8))
    assert folded is not None
    buffers = [buffer for buffer in folded.network.buffers() if buffer.is_floating_point()]
    assert 0 < len(buffers) < len([b for b in model.buffers() if b.is_floating_point()])
    for tensor in (*folded.network.parameters(), *buffers):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_memory_does_not_grow_with_steps(tmp_path: Path):
    data = blobs(48)
    before = tensor_storages()
    training = stepped(recipe_of(3, 3), tmp_path / "run", data, 1)
    held = new_bytes(before)
    training.fit(until=3)
    assert new_bytes(before) == held


def test_learners_do_not_multiply_the_memory_of_activations(tmp_path: Path):
    data = blobs(48)
    one, three = (stepped(recipe_of(n, n), tmp_path / str(n), data) for n in (1, 3))
    alone, together = (peak_bytes(lambda t=training: t.fit(until=3)) for training in (one, three))
    assert alone > 4 * 16 * 64  # a network's answers to a batch, at the very least
    assert alone <= together <= alone + 256  # some numbers for the log wait for the end of the step


def test_peak_memory_counts_temporary_tensors():
    def holds() -> int:
        first = torch.ones(1000)
        second = first + 1
        del first
        third = second * 2
        return len(third)

    assert 2 * 4000 <= peak_bytes(holds) <= 2 * 4000 + 64  # numbers are tensors, too


def test_shared_tensors_count_once_and_gradients_count():
    before = tensor_storages()
    tensor = torch.zeros(5, requires_grad=True)
    view = tensor[1:]
    assert new_bytes(before) == 5 * 4
    view.sum().backward()
    assert new_bytes(before) == 2 * 5 * 4


def test_learners_share_one_folded_copy_with_correct_results(tmp_path: Path):
    x = blobs(6).train.fetch(torch.arange(6))
    first, second = siblings(tmp_path / "run")
    folded = folded_copy(first, x)
    assert folded is not None and torch.allclose(folded(x), first(x), atol=1e-5)
    assert folded_copy(second, x) is folded and torch.allclose(folded(x), second(x), atol=1e-5)
    assert not torch.allclose(first(x), second(x), atol=1e-3)


def test_a_learner_that_changes_its_structure_does_not_affect_the_folds_of_others(tmp_path: Path):
    x = blobs(6).train.fetch(torch.arange(6))
    first, second = siblings(tmp_path / "run")
    shared = folded_copy(first, x)
    assert isinstance(second, Tiny)
    second.bn.eps = 0.5
    own = folded_copy(second, x)
    assert own is not None and own is not shared
    assert torch.allclose(own(x), second(x), atol=1e-5)
    assert folded_copy(first, x) is shared and folded_copy(second, x) is own
