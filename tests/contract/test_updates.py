"""What every update of the table must do, with a natural and with an adversarial objective."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from allrounder.attacks import Pgd
from allrounder.config.fields import OneOf, adapter
from allrounder.config.schedules import Constant
from allrounder.config.time import Clock
from allrounder.data.augment import NoAugment
from allrounder.distributed import BatchShard
from allrounder.nn.state import weights_of
from allrounder.objectives import Adversarial, Natural, Objective
from allrounder.optim import UPDATES, Update
from allrounder.optim.base import TrainingStep
from allrounder.optim.optimizers import Sgd
from allrounder.recipe.compute import Compute
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.training.learner import Learner
from allrounder.types import Batch, Context, Loss, Passes
from tests.support.interruptions import STEP, Killed, Point, give_up, struck
from tests.support.networks import Counting, Tiny, blobs, same
from tests.support.trainings import PAIR, go, recipe, remains

CLOCK = Clock(epochs=10, steps_per_epoch=4)
LAST = CLOCK.total_steps
"""The last step of a run and of an epoch: what begins late, or ends an epoch, happens here."""
DATA = blobs(train=12, test=6)
OBJECTIVES: dict[str, Objective] = {
    "natural": Natural(),
    "adversarial": Adversarial(threat=Threat.parse("Linf:0.1"), attack=Pgd(steps=2)),
}


@pytest.fixture(params=UPDATES)
def update(request: pytest.FixtureRequest) -> Update:
    return adapter(UPDATES[request.param]).validate_python({})


@pytest.fixture(params=OBJECTIVES)
def objective(request: pytest.FixtureRequest, update: Update) -> Objective:
    """The objectives that the update supports."""
    objective = OBJECTIVES[request.param]
    if problems := update.problems(objective, Sgd(), CLOCK.epochs):
        pytest.skip("; ".join(message for _, message in problems))
    return objective


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    with Rng(0).seed_global():
        return Tiny().to(dtype).train()


def batch(dtype: torch.dtype = torch.float32) -> Batch:
    index = torch.arange(12)
    return Batch(DATA.train.fetch(index).to(dtype), DATA.train.labels[index], index)


def nothing(model: nn.Module) -> None:
    """A group of one has nothing to average."""


def step(
    update: Update,
    objective: Objective,
    model: nn.Module,
    memory: dict[str, Tensor] | None = None,
    given: Batch | None = None,
    t: int = LAST,
) -> Loss:
    state = objective.memory() | update.memory(model) if memory is None else memory
    ctx = Context(t, CLOCK, Rng(0).fold_in("task", t), state)
    optimizer = Sgd(momentum=0.9, weight_decay=1e-3).build(model.parameters())
    optimizer.param_groups[0]["lr"] = 0.05
    return update.apply(TrainingStep(model, optimizer, objective, given or batch(), ctx, nothing))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("t", [1, LAST])
def test_a_step_changes_the_weights_and_all_is_finite(
    update: Update, objective: Objective, dtype: torch.dtype, t: int
):
    model = network(dtype)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    loss = step(update, objective, model, given=batch(dtype), t=t)
    assert math.isfinite(float(loss.total.detach()))
    assert "accuracy" in loss.parts
    assert not any(part.requires_grad for part in loss.parts.values())
    after = {name: p.detach() for name, p in model.named_parameters()}
    assert all(bool(p.isfinite().all()) and p.dtype == dtype for p in after.values())
    assert any(not torch.equal(after[name], before[name]) for name in before)
    assert all(p.requires_grad for p in model.parameters())


def test_a_step_is_deterministic_and_ignores_the_global_generator(update: Update, objective: Objective):
    one, other = network(), network()
    first = step(update, objective, one)
    torch.rand(7)
    before = torch.get_rng_state()
    second = step(update, objective, other)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.total, second.total)
    assert same(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("t", [LAST - 1, LAST])
def test_the_declared_passes_are_the_counted_ones(update: Update, objective: Objective, t: int):
    """Of a network that is never wrong, near the end of a run and at its end."""
    with Rng(0).seed_global():
        model = Counting().train()
    model.linear.weight.data.mul_(1e-3)
    model.linear.bias.data.copy_(torch.tensor([50.0, 0.0, 0.0]))
    given = replace(batch(), y=torch.zeros(12, dtype=torch.long))
    step(update, objective, model, given=given, t=t)
    counted = Passes(*(count // 12 for count in (model.tally.forwards, model.tally.backwards)))
    beyond = update.epoch_passes(objective) if t == LAST else Passes()
    assert counted == update.passes(objective) + beyond
    assert model.tally.forwards % 12 == model.tally.backwards % 12 == 0


def test_the_batch_is_not_changed(update: Update, objective: Objective):
    given = batch()
    x, y = given.x.clone(), given.y.clone()
    step(update, objective, network(), given=given)
    assert torch.equal(given.x, x) and torch.equal(given.y, y)


def test_the_memory_keeps_its_shapes_and_shares_no_name_with_the_objective(
    update: Update, objective: Objective
):
    model = network()
    assert not update.memory(model).keys() & objective.memory().keys()
    memory = objective.memory() | update.memory(model)
    assert not {t.data_ptr() for t in memory.values()} & {t.data_ptr() for t in model.state_dict().values()}
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in memory.items()}
    step(update, objective, model, memory)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in memory.items()} == shapes


def test_a_learner_saves_and_restores_all_that_a_step_needs(update: Update, objective: Objective):
    def learner() -> Learner:
        task = Task(
            name="one", objective=objective, update=update, lr=Constant(value=0.05), augment=NoAugment()
        )
        return Learner(task, network(), BatchShard(), 0, CLOCK)

    first, second = learner(), learner()
    for t in range(LAST - 5, LAST - 1):
        first.step(batch(), t)
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    for t in (LAST - 1, LAST):
        assert torch.equal(first.step(batch(), t).total, second.step(batch(), t).total)
    assert same(first.state_dict(), second.state_dict())


def test_autocast_changes_neither_the_step_nor_the_names_of_the_memory(
    update: Update, objective: Objective, monkeypatch: pytest.MonkeyPatch
):
    """Autocast is taken away, so that half precision is full precision, to the bit; with an average."""
    monkeypatch.setattr(torch, "autocast", lambda *given, **more: torch.enable_grad())
    task = Task(
        name="one",
        objective=objective,
        update=update,
        lr=Constant(value=0.05),
        augment=NoAugment(),
        average=Constant(value=0.5),
    )
    states: list[dict[str, Tensor]] = []
    for precision in ("fp32", "bf16"):
        trained = Learner(task, network(), BatchShard(), 0, CLOCK, Compute(precision=precision))
        trained.set_init([weights_of(network()) for _ in range(update.num_init_runs or 0)])
        for t in range(LAST - 4, LAST + 1):
            trained.step(batch(), t)
        states.append(trained.state_dict())
    full, bf16 = states
    assert same(bf16, full)
    assert any(name.startswith("average.") for name in full)


def test_it_round_trips_through_a_table(update: Update):
    table = OneOf(lambda: UPDATES)
    assert table.decode(table.encode(update)) == update
    assert (type(update).__doc__ or "").strip()


def test_it_trains_in_a_generalist_mix_and_resumes_with_identical_weights(update: Update, tmp_path: Path):
    plain = recipe(PAIR)
    linf, natural = plain.tasks
    if problems := update.problems(linf.objective, linf.optimizer, plain.epochs):
        pytest.skip("; ".join(message for _, message in problems))
    if update.num_init_runs:
        pytest.skip(f"starts from {update.num_init_runs} runs: see the tests of programs")
    value = replace(plain, tasks=(replace(linf, update=update), natural))
    whole = go(value, tmp_path / "whole")
    losses = [event["loss"] for event in whole.metrics() if event["event"] == "epoch"]
    assert len(losses) == 6 and all(math.isfinite(loss) for loss in losses)
    # In step 8 of 9, two steps after the last checkpoint: what begins late has begun.
    with struck(Point(STEP, 15, after=True), give_up), pytest.raises(Killed):
        go(value, tmp_path / "run")
    run = go(value, tmp_path / "run", resume=True)
    assert remains(run.folder) == remains(whole.folder)
