"""Fast adversarial training: adversarial training with one step beyond the budget, in training mode."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from allrounder.attacks import Pgd
from allrounder.config.time import Clock
from allrounder.objectives import Adversarial
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import BatchNormMode, Context, Passes
from tests.support.steps import batch, craft, network

THREAT = Threat.parse("Linf:0.1")


def fast_at(norm_layers: BatchNormMode = "train") -> Adversarial:
    return Adversarial(threat=THREAT, attack=Pgd(steps=1, step=1.25), norm_layers=norm_layers)


def context() -> Context:
    return Context(1, Clock(epochs=10, steps_per_epoch=4), Rng(3), {})


def test_it_steps_once_from_a_random_point_and_comes_back_into_the_ball():
    given, model = batch(), network()
    result = craft(fast_at(), model, given, context()).x
    start = THREAT.norm.sample(given.x, 0.1, context().rng.fold_in("attack").fold_in("start"))
    at = (given.x + start).clamp(0, 1).requires_grad_()
    (g,) = torch.autograd.grad(F.cross_entropy(network()(at), given.y), at)
    expected = torch.clamp(at + 0.125 * g.sign(), given.x - 0.1, given.x + 0.1).clamp(0, 1)
    torch.testing.assert_close(result, expected.detach())


def test_crafting_updates_running_statistics_unless_norm_layers_is_eval():
    for layers, moves in (("train", True), ("eval", False), ("train_frozen", False)):
        model = network()
        fast_at(layers).craft(model, batch(), context())  # pyright: ignore[reportArgumentType]
        assert (int(model.state_dict()["bn.num_batches_tracked"]) == 1) == moves, layers


def test_a_step_takes_two_passes():
    assert fast_at().passes() == Passes(2, 2)
