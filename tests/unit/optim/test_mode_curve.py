"""The curve between two networks: its identities, and its training beside a literal transcription."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from allrounder.attacks.pgd import Pgd
from allrounder.config.schedules import Constant
from allrounder.config.time import Clock
from allrounder.data.augment import NoAugment
from allrounder.distributed import BatchShard
from allrounder.errors import Diverged
from allrounder.nn.state import average_weights, bezier, clone, copy_, weights_of
from allrounder.objectives import Adversarial, Natural
from allrounder.optim import ModeCurve
from allrounder.optim.base import TrainingStep
from allrounder.optim.optimizers import Sgd
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.training.learner import Learner
from allrounder.types import Batch, Context
from tests.reference.generalist import linf_pgd
from tests.reference.rmc import State, parameters, phi, train_bend
from tests.support.networks import blobs, same, unfoldable64

DATA = blobs(24, 6)
CLOCK = Clock(epochs=2, steps_per_epoch=2)
SEED, LR, PULL = 3, 0.1, 0.02


def ends() -> tuple[nn.Module, nn.Module]:
    """Two networks that differ in all weights and statistics."""
    result = []
    for seed in (1, 2):
        with Rng(seed).seed_global():
            result.append(unfoldable64())
    return result[0], result[1]


def batch(t: int) -> Batch:
    index = torch.arange(12) + 12 * (t % 2)
    return Batch(DATA.train.fetch(index).double(), DATA.train.labels[index], index)


def learner(robust: bool, pull: float = PULL, lr: float = LR) -> Learner:
    """One that bends the curve, half-way between the ends."""
    attack = Pgd(steps=2, step=0.5, start="zero")
    objective = Adversarial(threat=Threat.parse("Linf:0.1"), attack=attack) if robust else Natural()
    task = Task(
        name="curve",
        objective=objective,
        lr=Constant(value=lr),
        optimizer=Sgd(momentum=0.9),
        update=ModeCurve(weight_decay=pull),
        augment=NoAugment(),
    )
    members, network = [weights_of(end) for end in ends()], unfoldable64()
    copy_(weights_of(network), average_weights(members))
    result = Learner(task, network, BatchShard(), SEED, CLOCK)
    result.set_init(members)
    return result


def place(t: int) -> float:
    return float(Rng(SEED).fold_in("curve", t, "curve").uniform(torch.zeros((), dtype=torch.float64)))


def weights(seed: int) -> State:
    return {"w": Rng(seed).normal(torch.zeros(5, dtype=torch.float64)), "count": torch.tensor(seed)}


def test_the_curve_begins_at_the_first_end_and_ends_at_the_second():
    first, bent, second = weights(1), weights(2), weights(3)
    assert torch.equal(bezier(0.0, first, bent, second)["w"], first["w"])
    assert torch.equal(bezier(1.0, first, bent, second)["w"], second["w"])
    assert bezier(0.3, first, bent, second)["count"] == 2


@given(st.floats(0, 1))
def test_a_bend_half_way_gives_the_straight_line(s: float):
    first, second = weights(1), weights(3)
    middle = {name: (first[name] + second[name]) / 2 for name in first}
    middle["count"] = torch.tensor(0)
    line = (1 - s) * first["w"] + s * second["w"]
    assert torch.allclose(bezier(s, first, middle, second)["w"], line, rtol=0, atol=1e-12)


@given(st.floats(0, 1))
def test_the_curve_equals_the_reference(s: float):
    first, bent, second = ({"w": weights(seed)["w"]} for seed in (1, 2, 3))
    literal = phi(s, first, bent, second)["w"]
    assert torch.allclose(bezier(s, first, bent, second)["w"], literal, rtol=0, atol=1e-12)


def check_beside_the_literal_one(robust: bool) -> None:
    ours = learner(robust)
    one, two = (parameters(end) for end in ends())
    model = learner(robust).model
    start = linf_pgd(0.1, 0.05, 2, lambda x, t: torch.zeros_like(x))
    plain = lambda model, x, y, t: x  # noqa: E731
    batches = [(batch(t).x, batch(t).y) for t in range(1, 5)]
    theirs = train_bend(model, one, two, batches, place, start if robust else plain, LR, PULL)
    for t in range(1, 5):
        ours.step(batch(t), t)
    for name, tensor in parameters(ours.model).items():
        assert torch.allclose(tensor, theirs[name], rtol=0, atol=1e-10), name
    # Running statistics follow the networks that were met on the way.
    for name, tensor in ours.model.named_buffers():
        assert torch.allclose(tensor, dict(model.named_buffers())[name], rtol=0, atol=1e-10), name


def test_natural_training_equals_the_reference():
    check_beside_the_literal_one(robust=False)


def test_images_are_crafted_at_the_point_of_the_step():
    check_beside_the_literal_one(robust=True)


def test_the_ends_are_fixed_and_saved():
    ours = learner(robust=False)
    before = clone(ours.memory)
    ours.step(batch(1), 1)
    assert same(dict(ours.memory), before)
    one, two = (parameters(end) for end in ends())
    saved = ours.state_dict()
    assert all(torch.equal(saved[f"memory.first.{name}"], tensor) for name, tensor in one.items())
    assert all(torch.equal(saved[f"memory.second.{name}"], tensor) for name, tensor in two.items())


def test_weight_decay_applies_to_the_point_of_the_curve():
    """One step without a momentum's past: the pull is 2s(1-s) phi(s)."""
    c, moved = parameters(learner(False).model), list[State]()
    for pull in (0.0, 1.0):
        ours = learner(False, pull)
        ours.step(batch(1), 1)
        moved.append(parameters(ours.model))
    s, (one, two) = place(1), (parameters(end) for end in ends())
    expected = bezier(s, one, c, two)
    for name in c:
        pulled = moved[0][name] - moved[1][name]
        assert torch.allclose(pulled, LR * 2 * s * (1 - s) * expected[name], rtol=0, atol=1e-12)


def test_a_failed_step_does_not_change_the_bend():
    ours = learner(robust=False)
    before = clone(weights_of(ours.model))
    invalid = batch(1)
    invalid.x.fill_(float("nan"))
    ctx, task = Context(1, CLOCK, Rng(0), ours.memory), ours.task
    with pytest.raises(Diverged):
        task.update.apply(
            TrainingStep(ours.model, ours.optimizer, task.objective, invalid, ctx, lambda model: None)
        )
    assert all(torch.equal(tensor, before[name]) for name, tensor in parameters(ours.model).items())
