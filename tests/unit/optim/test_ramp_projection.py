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
from allrounder.nn.state import clone, strip_prefix, weights_of
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
from tests.reference import ramp as reference
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


def walk(projected: Learner, first: int, last: int) -> Learner:
    for t in range(first, last + 1):
        projected.step(batch(t), t)
    return projected


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
def test_an_epoch_ends_with_the_projection_of_the_reference(optimizer: Sgd):
    task = replace(TASK, optimizer=optimizer)
    projected, plain = learner(task), learner(replace(task, update=Descend()))
    start = clone(projected.params)
    walk(projected, 1, 3)
    robust = clone(walk(plain, 1, 3).params)
    natural = natural_copy(start, 1, 3, plain, optimizer)
    expected = reference.project_weights(arrays(start), arrays(robust), arrays(natural), 0.5)
    assert near(projected.params, expected)
    assert not near(projected.params, arrays(robust), 1e-4)
    assert int(projected.params["bn.num_batches_tracked"]) == 3


def test_within_an_epoch_steps_equal_plain_descent():
    projected, plain = learner(), learner(replace(TASK, update=Descend()))
    walk(projected, 1, 2)
    walk(plain, 1, 2)
    assert same(projected.params, plain.params)
    moments = [
        {name: t for name, t in one.state_dict().items() if name.startswith("optimizer.")}
        for one in (projected, plain)
    ]
    assert same(*moments) and moments[0]


def test_beta_zero_is_plain_descent():
    projected = learner(replace(TASK, update=GradientProjection(beta=0.0)))
    assert same(walk(projected, 1, 7).params, walk(learner(replace(TASK, update=Descend())), 1, 7).params)


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
    result = project_weights(start, robust, natural, 0.3)
    for name in ("conv", "mean"):
        expected = start[name] + 0.7 * (robust[name] - start[name])
        assert torch.allclose(result[name], expected)
    assert result["scalar"] == robust["scalar"] and result["count"] == 1


def test_equal_progress_is_kept_whole_and_none_leaves_the_robust_share():
    start, robust = weights(0), weights(1)
    assert near(project_weights(start, robust, robust, 0.4), arrays(robust), 1e-12)
    still = project_weights(start, robust, start, 0.4)
    assert torch.allclose(still["conv"], start["conv"] + 0.6 * (robust["conv"] - start["conv"]))
    assert same(project_weights(start, start, start, 0.4), start)


@pytest.mark.parametrize("beta", [0.0, 0.25, 0.5, 1.0])
def test_the_projection_equals_the_reference(beta: float):
    start, robust, natural = weights(0), weights(1), weights(2)
    expected = reference.project_weights(arrays(start), arrays(robust), arrays(natural), beta)
    assert near(project_weights(start, robust, natural, beta), expected, 1e-12)


def test_an_epoch_starts_from_exchanged_weights():
    projected = walk(learner(), 1, 3)
    given = {name: 0.5 * t if t.is_floating_point() else t for name, t in clone(projected.params).items()}
    projected.load_global_weights(given)
    walk(projected, 4, 4)
    for name, tensor in given.items():
        assert torch.equal(projected.memory[f"projected.start.{name}"], tensor)
    momentum = {
        name for name, t in projected.memory.items() if name.startswith("projected.momentum.") and t.any()
    }
    assert len(momentum) == len(list(projected.model.parameters()))
    plain = walk(learner(), 1, 4)
    assert not same(plain.params, projected.params)


@pytest.mark.parametrize("momentum", ["keep", "reset"])
def test_an_exchange_that_resets_momentum_resets_that_of_the_copy(momentum: Any):
    projected = walk(learner(), 1, 3)
    projected.load_global_weights(clone(projected.params), momentum=momentum)
    momenta = strip_prefix("projected.momentum.", projected.memory).values()
    assert bool(projected.optimizer.state) == (momentum == "keep") == any(bool(t.any()) for t in momenta)
    assert momenta


def test_resume_gives_identical_weights():
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
def test_a_step_costs_one_more_forward_and_backward(objective: Objective):
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


def test_a_copy_that_diverges_raises_and_the_learner_keeps_its_weights():
    projected = walk(learner(), 1, 1)
    projected.memory["projected.natural.linear.weight"].fill_(float("nan"))
    plain = walk(learner(replace(TASK, update=Descend())), 1, 2)
    with pytest.raises(Diverged, match="learner robust"):
        projected.step(batch(2), 2)
    assert same(projected.params, plain.params)


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
    expected = 2 * len(model.state_dict()) + len(list(model.parameters()))
    assert len(GradientProjection().memory(model)) == expected
