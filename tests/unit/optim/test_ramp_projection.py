"""The projection of RAMP: what an epoch ends with, and that the learner's own step is not touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from allrounder.config.schedules import Constant
from allrounder.config.time import Clock
from allrounder.data import Embedded
from allrounder.distributed import BatchShard
from allrounder.errors import Diverged
from allrounder.models.small_cnn import SmallCnn
from allrounder.nn.state import clone, weights_of
from allrounder.objectives import Adversarial, LogitPairing, Natural, Objective
from allrounder.optim import Descend, GradientProjection
from allrounder.optim.base import TrainingStep
from allrounder.optim.optimizers import Adam, AdamW, Sgd
from allrounder.optim.ramp_projection import project_weights
from allrounder.recipe.recipe import Recipe
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.training.learner import Learner
from allrounder.types import Batch, Context, Passes, Weights
from tests.reference import ramp as twin
from tests.support.networks import Counting, Tiny, blobs, same

DATA, CLOCK = blobs(48), Clock(epochs=4, steps_per_epoch=3)
LINF, L2 = Threat.parse("Linf:0.1"), Threat.parse("L2:0.5")
OPTIMIZER = Sgd(momentum=0.9, weight_decay=1e-2)
TASK = Task(
    name="robust",
    objective=Adversarial(threat=LINF),
    lr=Constant(value=0.05),
    optimizer=OPTIMIZER,
    update=GradientProjection(),
)


def network() -> nn.Module:
    with Rng(0).seed_global():
        return Tiny()


def batch(t: int) -> Batch:
    index = torch.arange(12) + 12 * ((t - 1) % 4)
    return Batch(DATA.train.fetch(index), DATA.train.labels[index], index)


def learner(task: Task = TASK) -> Learner:
    return Learner(task, network(), BatchShard(), 0, CLOCK)


def walk(who: Learner, first: int, last: int) -> Learner:
    for t in range(first, last + 1):
        who.step(batch(t), t)
    return who


def natural_copy(start: Weights, first: int, last: int, plain: Learner, optimizer: Sgd) -> Weights:
    """Natural training by torch's own SGD from some weights."""
    model = network()
    model.load_state_dict(start)
    sgd = torch.optim.SGD(
        model.parameters(),
        lr=0.05,
        momentum=optimizer.momentum,
        weight_decay=optimizer.weight_decay,
        nesterov=optimizer.nesterov,
        foreach=False,
    )
    model.train()
    for t in range(first, last + 1):
        given = plain.prepare_batch(batch(t), t)
        sgd.zero_grad()
        nn.functional.cross_entropy(model(given.x), given.y).backward()
        sgd.step()
    return clone(weights_of(model))


def arrays(weights: Weights) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in weights.items()}


def near(a: Weights, b: dict[str, Any], tolerance: float = 1e-5) -> bool:
    return a.keys() == b.keys() and all(np.allclose(a[name].numpy(), b[name], atol=tolerance) for name in a)


@pytest.mark.parametrize(
    "optimizer", [OPTIMIZER, Sgd(momentum=0.0), Sgd(momentum=0.8, nesterov=True, weight_decay=0.1)], ids=repr
)
def test_an_epoch_ends_with_the_twins_projection(optimizer: Sgd):
    task = replace(TASK, optimizer=optimizer)
    who, plain = learner(task), learner(replace(task, update=Descend()))
    start = clone(who.params)
    walk(who, 1, 3)
    robust = clone(walk(plain, 1, 3).params)
    natural = natural_copy(start, 1, 3, plain, optimizer)
    expected = twin.project_weights(arrays(start), arrays(robust), arrays(natural), 0.5)
    assert near(who.params, expected)
    assert not near(who.params, arrays(robust), 1e-4)
    assert int(who.params["bn.num_batches_tracked"]) == 3


def test_within_an_epoch_the_learner_steps_as_without_it_to_the_bit():
    who, plain = learner(), learner(replace(TASK, update=Descend()))
    walk(who, 1, 2)
    walk(plain, 1, 2)
    assert same(who.params, plain.params)
    moments = [
        {name: t for name, t in one.state_dict().items() if name.startswith("optimizer.")}
        for one in (who, plain)
    ]
    assert same(*moments) and moments[0]


def test_no_share_of_natural_progress_is_plain_descent_to_the_bit():
    who = learner(replace(TASK, update=GradientProjection(beta=0.0)))
    assert same(walk(who, 1, 7).params, walk(learner(replace(TASK, update=Descend())), 1, 7).params)


def weights(seed: int) -> Weights:
    draws = Rng(seed)
    shapes = {"conv": (4, 3, 3, 3), "mean": (4,), "scalar": ()}
    made = {name: draws.fold_in(name).normal(torch.empty(shape).double()) for name, shape in shapes.items()}
    return {**made, "count": torch.tensor(seed)}


def test_opposite_natural_progress_is_left_out():
    start, robust = weights(0), weights(1)
    natural = {
        name: 3 * start[name] - 2 * robust[name] if robust[name].is_floating_point() else robust[name]
        for name in robust
    }
    found = project_weights(start, robust, natural, 0.3)
    for name in ("conv", "mean"):
        expected = start[name] + 0.7 * (robust[name] - start[name])
        assert torch.allclose(found[name], expected)
    assert found["scalar"] == robust["scalar"] and found["count"] == 1


def test_equal_progress_is_kept_whole_and_none_leaves_the_robust_share():
    start, robust = weights(0), weights(1)
    assert near(project_weights(start, robust, robust, 0.4), arrays(robust), 1e-12)
    still = project_weights(start, robust, start, 0.4)
    assert torch.allclose(still["conv"], start["conv"] + 0.6 * (robust["conv"] - start["conv"]))
    assert same(project_weights(start, start, start, 0.4), start)


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 1.0])
def test_the_projection_is_that_of_the_twin(beta: float):
    start, robust, natural = weights(0), weights(1), weights(2)
    expected = twin.project_weights(arrays(start), arrays(robust), arrays(natural), beta)
    assert near(project_weights(start, robust, natural, beta), expected, 1e-12)


def test_both_restart_from_what_an_epoch_ended_with_and_from_what_an_exchange_brings():
    who = walk(learner(), 1, 3)
    given = {name: 0.5 * t if t.is_floating_point() else t for name, t in clone(who.params).items()}
    who.load_global_weights(given)
    walk(who, 4, 4)
    for name, tensor in given.items():
        assert torch.equal(who.memory[f"projected.start.{name}"], tensor)
    momentum = {name for name, t in who.memory.items() if name.startswith("projected.momentum.") and t.any()}
    assert len(momentum) == len(list(who.model.parameters()))
    plain = walk(learner(), 1, 4)
    assert not same(plain.params, who.params)


@pytest.mark.parametrize("momentum", ["keep", "reset"])
def test_an_exchange_that_forgets_momentum_forgets_the_copys_too(momentum: Any):
    who = walk(learner(), 1, 3)
    who.load_global_weights(clone(who.params), momentum=momentum)
    held = [t for name, t in who.memory.items() if name.startswith("projected.momentum.")]
    assert bool(who.optimizer.state) == (momentum == "keep") == any(bool(t.any()) for t in held)
    assert held


def test_a_learner_goes_on_from_its_saved_state_to_the_bit():
    task = replace(TASK, optimizer=Sgd(weight_decay=0.01, decay_on="weights"))
    straight = walk(learner(task), 1, 5)
    again = learner(task)
    again.load_state_dict(
        {name: tensor.contiguous().clone() for name, tensor in straight.state_dict().items()}
    )
    assert same(again.state_dict(), straight.state_dict())
    assert same(walk(again, 6, 10).state_dict(), walk(straight, 6, 10).state_dict())


@pytest.mark.parametrize(
    "objective", [Natural(), LogitPairing(source=LINF, target=L2)], ids=lambda o: type(o).__name__
)
def test_it_takes_a_pair_more_than_the_objective(objective: Objective):
    with Rng(0).seed_global():
        model = Counting()
    update, optimizer = GradientProjection(), OPTIMIZER.build(model.parameters())
    ctx = Context(1, CLOCK, Rng(0), {**objective.memory(), **update.memory(model)})
    reduced: list[list[Tensor | None]] = []

    def reduce_(given: nn.Module) -> None:
        reduced.append([None if p.grad is None else p.grad.clone() for p in given.parameters()])

    update.apply(TrainingStep(model, optimizer, objective, batch(1), ctx, reduce_))
    expected = objective.passes() + Passes(1, 1)
    assert update.passes(objective) == expected
    assert (model.tally.forwards, model.tally.backwards) == (12 * expected.forwards, 12 * expected.backwards)
    # Both steps take gradients that the group has averaged.
    assert len(reduced) == 2 and all(g is not None for gradients in reduced for g in gradients)
    assert all(p.grad is None for p in model.parameters())


def test_a_copy_that_diverges_is_told_and_the_learner_keeps_its_weights():
    who = walk(learner(), 1, 1)
    who.memory["projected.natural.linear.weight"].fill_(float("nan"))
    plain = walk(learner(replace(TASK, update=Descend())), 1, 2)
    with pytest.raises(Diverged, match="learner robust"):
        who.step(batch(2), 2)
    assert same(who.params, plain.params)


@pytest.mark.parametrize("optimizer", [Adam(), AdamW()], ids=repr)
def test_other_optimisers_than_sgd_are_refused(optimizer: Adam | AdamW):
    def recipe(of: Any) -> Recipe:
        return Recipe(data=Embedded(), model=SmallCnn(), epochs=1, tasks=(replace(TASK, optimizer=of),))

    assert recipe(OPTIMIZER).passes() == Passes(12, 12)
    with pytest.raises(ValidationError, match="trains a natural copy by sgd, got adam"):
        recipe(optimizer)


def test_its_memory_is_two_sets_of_weights_and_the_momentum_of_the_parameters():
    model = network()
    names = {name.split(".")[1] for name in GradientProjection().memory(model)}
    assert names == {"start", "natural", "momentum"}
    held = 2 * len(model.state_dict()) + len(list(model.parameters()))
    assert len(GradientProjection().memory(model)) == held
