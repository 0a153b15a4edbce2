from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allrounder.attacks import Pgd
from allrounder.attacks.base import perturb
from allrounder.config.time import Clock
from allrounder.objectives import Adversarial, Natural
from allrounder.objectives.base import Objective, cross_entropy_loss
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context
from tests.support.networks import Tiny, blobs
from tests.support.steps import craft

DATA = blobs()

CLOCK = Clock(epochs=10, steps_per_epoch=4)


def network() -> nn.Module:
    with Rng(0).seed_global():
        return Tiny()


def batch(smoothing: float = 0.0) -> Batch:
    index = torch.arange(12)
    return Batch(DATA.train.fetch(index), DATA.train.labels[index], index, smoothing)


def context(t: int = 1) -> Context:
    return Context(t, CLOCK, Rng(3).fold_in("task", t), {})


def test_natural_training_uses_natural_images():
    model, given = network().train(), batch()
    expected = F.cross_entropy(network().train()(given.x), given.y)
    assert Natural().craft(model, given, context()) is None
    assert torch.equal(Natural().loss(model, given, None, context()).total, expected)


def test_adversarial_training_uses_only_crafted_images():
    model, given, ctx = network(), batch(), context()
    objective = Adversarial(threat=Threat.parse("L2:0.5"), attack=Pgd(steps=3, step=0.5))
    crafted = craft(objective, model, given, ctx)
    again = perturb(objective.attack, model, given.x, given.y, objective.threat, ctx.rng.fold_in("attack"))
    assert torch.equal(crafted.x, again.x)
    assert not torch.equal(crafted.x, given.x)
    assert objective.threat.contains(given.x, crafted.x).all()
    expected = F.cross_entropy(network().train()(crafted.x), given.y)
    assert torch.equal(objective.loss(model.train(), given, crafted, ctx).total, expected)


def test_smoothing_softens_the_targets_of_the_loss_and_not_those_of_the_attack():
    model, ctx = network(), context()
    objective = Adversarial(threat=Threat.parse("Linf:0.1"), attack=Pgd(steps=2))
    hard, soft = (craft(objective, model, batch(smoothing), ctx) for smoothing in (0.0, 0.3))
    assert torch.equal(hard.x, soft.x)
    logits = network()(batch().x)
    target = F.one_hot(batch().y, 3) * 0.7 + 0.3 / 3
    expected = -(target * F.log_softmax(logits, 1)).sum(1).mean()
    assert torch.allclose(cross_entropy_loss(logits, batch(0.3)).total, expected)


def test_the_loss_reports_the_accuracy():
    logits = torch.tensor([[2.0, 1, 0], [0, 1, 2], [0, 3, 0], [1, 0, 0]], requires_grad=True)
    given = Batch(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 1, 2]), torch.arange(4))
    loss = cross_entropy_loss(logits, given)
    assert loss.parts["accuracy"] == 0.5
    assert not loss.parts["accuracy"].requires_grad
    assert loss.total.requires_grad


@pytest.mark.parametrize(("layers", "moves"), [("eval", False), ("train", True), ("train_frozen", False)])
def test_batch_norm_while_crafting_follows_norm_layers(layers: str, moves: bool):
    model = network().train()
    objective = Adversarial(threat=Threat.parse("Linf:0.1"), attack=Pgd(steps=2), norm_layers=layers)  # pyright: ignore[reportArgumentType]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    objective.craft(model, batch(), context())
    moved = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    assert bool(moved) == moves
    assert all(module.training for module in model.modules())


def test_the_default_attack_is_the_published_one():
    assert Adversarial(threat=Threat.parse("Linf:8/255")).attack == Pgd(steps=10, step=0.25)


def test_an_objective_must_implement_loss():
    with pytest.raises(TypeError, match="abstract"):
        Objective()  # pyright: ignore[reportAbstractUsage]
