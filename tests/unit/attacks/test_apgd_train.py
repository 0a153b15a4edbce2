"""APGD for training beside its slow twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.attacks import ApgdTrain, perturb
from allrounder.attacks.apgd import checkpoint_periods
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Passes
from tests.reference import apgd_train as twin
from tests.support.networks import Tiny, blobs

DATA = blobs()
THREATS = pytest.mark.parametrize("text", ["Linf:0.1", "L2:0.8", "L1:4"])


def network(scale: float = 3.0) -> nn.Module:
    with Rng(0).seed_global():
        model = Tiny().double().eval()
    for parameter in model.parameters():
        parameter.data.mul_(scale)
    return model


def images(n: int = 9) -> tuple[Tensor, Tensor]:
    index = torch.arange(n)
    return DATA.train.fetch(index).double(), DATA.train.labels[index]


@THREATS
@pytest.mark.parametrize("steps", [1, 10, 30])
def test_results_equal_the_reference(text: str, steps: int):
    threat, model, (x, y) = Threat.parse(text), network(), images()
    result = perturb(ApgdTrain(steps=steps), model, x, y, threat, Rng(0))
    assert result.loss is not None and result.ever_fooled is not None
    for i in range(len(x)):
        best, loss, fooled = twin.search(model, x[i].numpy(), int(y[i]), threat.norm.name, threat.eps, steps)
        assert np.allclose(result.x[i].numpy(), best, atol=1e-7)
        assert float(result.loss[i]) == pytest.approx(loss, abs=1e-7)
        assert bool(result.ever_fooled[i]) == fooled


def test_ten_steps_have_checkpoints_from_the_second_on():
    assert list(checkpoint_periods(10, sparse=False)) == list(range(2, 11))
    assert list(checkpoint_periods(10, sparse=True)) == list(range(1, 11))


@THREATS
def test_loss_and_fooled_are_those_of_the_best_point(text: str):
    threat, model, (x, y) = Threat.parse(text), network(), images(30)
    result = perturb(ApgdTrain(), model, x, y, threat, Rng(0))
    with torch.no_grad():
        at_best, at_start = (F.cross_entropy(model(one), y, reduction="none") for one in (result.x, x))
        wrong = model(result.x).argmax(1) != y
    assert result.loss is not None and result.fooled is not None and result.ever_fooled is not None
    assert torch.allclose(result.loss, at_best, atol=1e-9)
    assert (at_best >= at_start - 1e-9).all()
    assert torch.equal(result.fooled, wrong)
    assert (result.ever_fooled >= result.fooled).all()


def test_an_image_may_be_fooled_on_the_way_and_not_at_the_point_of_highest_loss():
    def model(x: Tensor) -> Tensor:
        # As images get brighter, class 1 falls below class 0, and forty others rise up to it.
        u = (x.mean(dim=(1, 2, 3)) - 0.5) / 0.05
        return torch.stack([0 * u, 0.5 - 1.5 * u, *[3 * u - 3.05] * 40], 1)

    x, y = torch.full((1, 1, 4, 4), 0.5, dtype=torch.float64), torch.tensor([0])
    result = perturb(ApgdTrain(), model, x, y, Threat.parse("Linf:0.05"), Rng(0))
    assert model(x).argmax(1) != y and model(result.x).argmax(1) == y
    assert result.fooled is not None and not result.fooled.any()
    assert result.ever_fooled is not None and result.ever_fooled.all()


def test_the_image_itself_counts_where_nothing_is_harder():
    def bowl(x: Tensor) -> Tensor:
        z = (x - 0.5).square().sum(dim=(1, 2, 3))
        return torch.stack([z + 0 * x.sum(), torch.zeros_like(z)], 1)

    x, y = torch.full((2, 1, 4, 4), 0.5, dtype=torch.float64), torch.zeros(2, dtype=torch.long)
    result = perturb(ApgdTrain(), bowl, x, y, Threat.parse("L2:0.3"), Rng(0))
    assert torch.equal(result.x, x)


@THREATS
def test_all_images_take_all_steps_and_the_last_needs_no_gradient(text: str):
    model, (x, _), forwards, backwards = network(), images(), [], []

    def counted(x: Tensor) -> Tensor:
        logits = model(x)
        forwards.append(len(x))
        if logits.requires_grad:
            logits.register_hook(lambda g: backwards.append(len(g)))
        return logits

    # Labels that are wrong from the start: there is nothing left to fool.
    wrong = (model(x).argmax(1) + 1) % 3
    result = perturb(ApgdTrain(), counted, x, wrong, Threat.parse(text), Rng(0))
    assert forwards == [len(x)] * 11 and backwards == [len(x)] * 10
    assert result.passes == ApgdTrain().passes() == Passes(11, 10)


def test_the_first_step_in_l1_moves_a_twentieth_of_the_coordinates():
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(1, 10, 10, generator=generator, dtype=torch.float64)

    def linear(x: Tensor) -> Tensor:
        rise = (x * w).sum(dim=(1, 2, 3))
        return torch.stack([torch.zeros_like(rise), rise], 1)

    x = torch.full((1, 1, 10, 10), 0.5, dtype=torch.float64)
    threat = Threat.parse("L1:1")
    result = perturb(ApgdTrain(steps=1), linear, x, torch.zeros(1, dtype=torch.long), threat, Rng(0))
    assert int((result.x != x).sum()) == 5
