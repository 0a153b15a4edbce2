"""What every objective of the table must do."""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from allrounder.attacks.base import AttackResult
from allrounder.attacks.combined import RandomOf, WorstOf
from allrounder.attacks.msd import Msd
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import OneOf, adapter
from allrounder.config.schedules import Constant
from allrounder.config.time import Clock, Time
from allrounder.data import Embedded
from allrounder.data.augment import NoAugment
from allrounder.models.small_cnn import SmallCnn
from allrounder.objectives import (
    OBJECTIVES,
    Adversarial,
    Average,
    HalfHalf,
    Natural,
    Objective,
    RandomTask,
    Taught,
    Teacher,
)
from allrounder.recipe.mix import Exchange, Mix, Shares
from allrounder.recipe.recipe import Recipe, Validation
from allrounder.recipe.task import Task
from allrounder.recipe.validation import HeldOut
from allrounder.rng import Rng
from allrounder.threats.threat import AnyOf, Threat
from allrounder.training.learner import frozen_copy
from allrounder.training.train import train
from allrounder.types import Batch, Context, Loss, Passes
from tests.support.networks import Counting, Tiny, blobs, same, tiny

CLOCK = Clock(epochs=10, steps_per_epoch=4)
DATA = blobs(train=12, test=6)
FILLED: dict[str, Any] = {
    **{"threat": "Linf:0.1", "against": ["Linf:0.1", "L2:0.5"]},
    **{"source": "Linf:0.1", "target": "L2:0.5"},
    **{"base": {"kind": "half-half", "threat": "Linf:0.1"}, "natural": {"teacher": "natural"}},
    "adversarial": {"teacher": "global"},
}
"""Values of the fields that have no default, and of teachers."""
UNION = AnyOf((Threat.parse("Linf:0.1"), Threat.parse("L2:0.5")))
FURTHER: dict[str, Objective] = {
    "fast-at": Adversarial(
        threat=Threat.parse("Linf:0.1"), attack=Pgd(steps=1, step=1.25), norm_layers="train"
    ),
    "max": Adversarial(threat=UNION, attack=WorstOf(attack=Pgd(steps=10, step=0.25))),
    "half-half, random-of": HalfHalf(threat=UNION, attack=RandomOf(attack=Pgd(steps=10, step=0.25))),
    "msd": Adversarial(threat=UNION, attack=Msd(), norm_layers="train"),
    "random-task, random-of": RandomTask(
        threat=UNION, natural_share=0.25, attack=RandomOf(attack=Pgd(steps=8, step=0.25))
    ),
    "taught avg": Taught(
        base=Average(against=UNION.threats),
        natural=Teacher(teacher="natural"),
        adversarial=Teacher(teacher="natural", temperature=2.0),
    ),
}
"""Other methods that an objective of the table is with other fields."""


def example(kind: str) -> Objective:
    if kind in FURTHER:
        return FURTHER[kind]
    cls: Any = OBJECTIVES[kind]
    names = [field.name for field in dataclasses.fields(cls) if field.name in FILLED]
    return adapter(cls).validate_python({name: FILLED[name] for name in names})


@pytest.fixture(params=[*OBJECTIVES, *FURTHER])
def objective(request: pytest.FixtureRequest) -> Objective:
    return example(request.param)


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    with Rng(0).seed_global():
        return Tiny().to(dtype).train()


def batch(dtype: torch.dtype = torch.float32, smoothing: float = 0.0) -> Batch:
    index = torch.arange(12)
    return Batch(DATA.train.fetch(index).to(dtype), DATA.train.labels[index], index, smoothing)


def context(
    objective: Objective, model: nn.Module, t: int, memory: dict[str, Tensor] | None = None
) -> Context:
    """What a learner passes to its objective in step t; teachers are copies of its network."""
    teachers = {name: frozen_copy(model) for name in objective.teachers().values()}
    state = objective.memory() if memory is None else memory
    return Context(t, CLOCK, Rng(0).fold_in("task", t), state, teachers)


def step(
    objective: Objective, model: nn.Module, given: Batch, memory: dict[str, Tensor] | None = None, t: int = 1
) -> tuple[Loss, dict[str, Tensor]]:
    """One evaluation of the loss and its gradients, as an update makes it."""
    ctx = context(objective, model, t, memory)
    crafted: AttackResult | None = objective.craft(model, given, ctx)
    model.train()
    loss = objective.loss(model, given, crafted, ctx)
    loss.total.backward()
    return loss, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_finite_and_differentiable(objective: Objective, dtype: torch.dtype, smoothing: float):
    model = network(dtype)
    loss, gradients = step(objective, model, batch(dtype, smoothing))
    assert loss.total.shape == ()
    assert math.isfinite(float(loss.total.detach()))
    assert gradients.keys() == dict(model.named_parameters()).keys()
    assert all(bool(g.isfinite().all()) for g in gradients.values())
    assert any(bool(g.any()) for g in gradients.values())
    assert all(g.dtype == dtype for g in gradients.values())
    assert "accuracy" in loss.parts
    assert not any(part.requires_grad for part in loss.parts.values())
    assert all(bool(part.isfinite().all()) for part in loss.parts.values())


def test_mixed_labels_reach_the_loss_and_not_the_accuracy(objective: Objective):
    plain = batch()
    mixed = replace(plain, partner=(plain.y + 1) % 3, weight=torch.full((12,), 0.6))
    own = replace(mixed, weight=torch.ones(12))
    losses = [step(objective, network(), given)[0] for given in (plain, mixed, own)]
    assert math.isfinite(float(losses[1].total.detach()))
    assert not torch.allclose(losses[0].total, losses[1].total)
    assert torch.allclose(losses[0].total, losses[2].total, atol=1e-6)
    assert losses[0].parts["accuracy"] == losses[1].parts["accuracy"]


def test_the_declared_passes_are_the_counted_ones(objective: Objective):
    """In the last step, because some methods start late, and with a network that is never fooled."""
    with Rng(0).seed_global():
        model = Counting().train()
    # Labels as predicted, with a wide margin: nothing is fooled inside a small ball.
    given = replace(batch(), y=torch.zeros(12, dtype=torch.long))
    model.linear.weight.data.mul_(1e-3)
    model.linear.bias.data.copy_(torch.tensor([50.0, 0.0, 0.0]))
    t, tally = CLOCK.total_steps, model.tally
    objective.craft(model, given, context(objective, model, t))
    crafting = (tally.forwards, tally.backwards)
    assert Passes(*(count // 12 for count in crafting)) == objective.craft_passes()
    step(objective, model, given, t=t)
    total = (tally.forwards - crafting[0], tally.backwards - crafting[1])
    assert Passes(*(count // 12 for count in total)) == objective.passes()
    assert all(count % 12 == 0 for count in total)


def test_the_declared_crafted_images_and_logits_are_the_returned_ones(objective: Objective):
    """Logits of natural and crafted images, at the weights before the step and with their gradient."""
    model, given = network(), batch()
    ctx = context(objective, model, CLOCK.total_steps)
    crafted = objective.craft(model, given, ctx)
    assert (0 if crafted is None else len(crafted.x)) == objective.num_crafted * len(given)
    twin = copy.deepcopy(model).train()
    loss = objective.loss(model.train(), given, crafted, ctx)
    assert objective.logit_kinds() <= loss.logits.keys()
    for kind in objective.logit_kinds():
        x = given.x if kind == "natural" or crafted is None else crafted.x
        assert torch.allclose(loss.logits[kind], twin(x), atol=1e-6)
        assert loss.logits[kind].requires_grad


def test_it_declares_a_reference_and_its_norms(objective: Objective):
    assert objective.reference or isinstance(objective, Natural)
    assert {type(threat.norm) for threat in objective.threats()} <= objective.norms


def test_a_step_is_deterministic_and_ignores_the_global_generator(objective: Objective):
    one, other = network(), network()
    first, gradients = step(objective, one, batch())
    torch.rand(7)
    before = torch.get_rng_state()
    second, again = step(objective, other, batch())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.total, second.total)
    assert same(gradients, again)
    assert same(one.state_dict(), other.state_dict())


def test_another_address_crafts_other_images_exactly_where_something_is_drawn(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
):
    given, model, drawn = batch(), network(), list[Rng]()
    generator = Rng.generator

    def noted(draws: Rng) -> torch.Generator:
        drawn.append(draws)
        return generator(draws)

    objective.craft(model, given, Context(1, CLOCK, Rng(0), objective.memory()))  # folds, which draws
    monkeypatch.setattr(Rng, "generator", noted)
    made = (
        objective.craft(model, given, Context(t, CLOCK, Rng(0).fold_in("task", t), objective.memory()))
        for t in range(1, 9)
    )
    images = (crafted.x for crafted in made if crafted is not None)
    first = next(images, None)
    # The first difference decides; a choice of tasks may be the same in several steps.
    assert any(first is not None and not torch.equal(first, other) for other in images) == bool(drawn)


def test_the_batch_and_the_parameters_are_not_changed(objective: Objective):
    given, model = batch(), network()
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    x, y = given.x.clone(), given.y.clone()
    step(objective, model, given)
    assert torch.equal(given.x, x) and torch.equal(given.y, y)
    assert same(parameters, {name: p.detach() for name, p in model.named_parameters()})
    assert given.x.grad is None


def test_the_memory_is_tensors_that_keep_their_names_shapes_and_types(objective: Objective):
    memory = objective.memory()
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in memory.items()}
    assert objective.memory().keys() == memory.keys()
    step(objective, network(), batch(), memory)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in memory.items()} == shapes


def test_a_restored_memory_gives_the_same_loss(objective: Objective):
    memory = objective.memory()
    step(objective, network(), batch(), memory)
    saved = {name: tensor.clone() for name, tensor in memory.items()}
    first, _ = step(objective, network(), batch(), memory)
    second, _ = step(objective, network(), batch(), saved)
    assert torch.equal(first.total, second.total)


def test_it_round_trips_through_a_table(objective: Objective):
    table = OneOf(lambda: OBJECTIVES)
    assert table.decode(table.encode(objective)) == objective
    assert (type(objective).__doc__ or "").strip()


def test_it_trains_two_steps_in_a_generalist_mix(objective: Objective, tmp_path: Path):
    def task(name: str, of: Objective) -> Task:
        return Task(name=name, objective=of, lr=Constant(value=0.05), augment=NoAugment())

    recipe = Recipe(
        data=Embedded(),
        model=SmallCnn(),
        epochs=1,
        batch_size=5,
        tasks=(task("subject", objective), task("natural", Natural())),
        mix=Mix(
            decay=Constant(value=0.5),
            shares=Shares(lead="subject", curve=Constant(value=0.5)),
            exchange=Exchange(start=Time.parse(0), every=Time.parse("50%")),
        ),
        validation=Validation(images=HeldOut(2), train_images=0, attack=Pgd(steps=1)),
    )
    run = train(recipe, tmp_path / "run", model=tiny, data=DATA)
    losses = [event["loss"] for event in run.metrics() if event["event"] == "epoch"]
    assert len(losses) == 2 and all(math.isfinite(loss) for loss in losses)
    weights = {which: run.weights(which)[0] for which in ("global", "subject", "natural")}
    assert all(bool(t.isfinite().all()) for t in weights["global"].values() if t.is_floating_point())
    # The result does not depend on what ran before, nor on the folder.
    torch.rand(3)
    again = train(replace(recipe, name="again"), tmp_path / "again", model=tiny, data=DATA)
    assert same(again.weights()[0], weights["global"])
