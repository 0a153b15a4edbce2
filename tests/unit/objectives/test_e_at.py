"""E-AT: which threat a batch gets, and what is counted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from allrounder.attacks import ApgdTrain, perturb
from allrounder.config.schedules import Constant
from allrounder.config.time import Clock
from allrounder.distributed import BatchShard
from allrounder.objectives import Eat
from allrounder.objectives.e_at import sample_threat, threat_probabilities
from allrounder.recipe.task import Task
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.training.learner import Learner
from allrounder.types import Context, Passes
from tests.support.networks import Tiny, same
from tests.support.steps import batch

LINF, L1 = Threat.parse("Linf:0.1"), Threat.parse("L1:4")
EAT = Eat(against=(LINF, L1))
COUNTS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=2, max_size=4)


def network() -> nn.Module:
    with Rng(0).seed_global():
        return Tiny()


def context(t: int, memory: dict[str, torch.Tensor]) -> Context:
    return Context(t, Clock(10, 4), Rng(3).fold_in("task", t), memory)


@hypothesis_given(COUNTS)
@settings(max_examples=50, deadline=None)
def test_probabilities_sum_to_one(counts: list[tuple[int, int]]):
    robust, seen = torch.tensor([(min(pair), max(pair)) for pair in counts]).unbind(1)
    result = threat_probabilities(robust, seen)
    assert float(result.sum()) == pytest.approx(1)
    assert (result >= 0).all()
    if (seen == 0).any():
        assert result.tolist() == pytest.approx([1 / len(counts)] * len(counts))


@pytest.mark.parametrize(
    ("robust", "seen", "expected"),
    [
        ([0, 0], [0, 0], [0.5, 0.5]),
        ([90, 0], [100, 0], [0.5, 0.5]),
        ([90, 70], [100, 100], [0.25, 0.75]),
        ([10, 0], [10, 30], [0.0, 1.0]),
        ([10, 30], [10, 30], [0.5, 0.5]),
    ],
)
def test_the_less_robust_threat_is_likelier_once_every_one_was_used(
    robust: list[int], seen: list[int], expected: list[float]
):
    assert threat_probabilities(torch.tensor(robust), torch.tensor(seen)).tolist() == pytest.approx(expected)


def test_a_number_falls_on_the_interval_of_a_threat():
    odds = torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64)
    result = [
        sample_threat(odds, torch.tensor([u], dtype=torch.float64)) for u in (0.0, 0.2499, 0.25, 0.9999999)
    ]
    assert result == [0, 0, 2, 2]
    # Odds that rounding leaves below one still cover everything.
    assert sample_threat(odds * (1 - 1e-6), torch.tensor([0.9999999], dtype=torch.float64)) == 2


def test_threats_are_chosen_as_often_as_they_are_likely():
    odds = torch.tensor([0.2, 0.8], dtype=torch.float64)
    u = [Rng(0).fold_in(t, "threat").uniform(torch.empty(1).double()) for t in range(2000)]
    assert sum(sample_threat(odds, one) for one in u) / 2000 == pytest.approx(0.8, abs=0.03)


def test_a_batch_is_attacked_under_one_threat_and_counted_for_it():
    model, given = network(), batch()
    memory, used = EAT.memory(), set[int]()
    for t in range(1, 9):
        before = {name: tensor.clone() for name, tensor in memory.items()}
        result = EAT.craft(model, given, context(t, memory))
        new = (memory["eat.seen"] - before["eat.seen"]).tolist()
        number = new.index(12)
        used.add(number)
        assert sum(new) == 12
        again = perturb(ApgdTrain(), model, given.x, given.y, EAT.against[number], Rng(0))
        assert torch.equal(result.x, again.x)
        assert again.ever_fooled is not None
        withstood = (memory["eat.robust"] - before["eat.robust"]).tolist()
        assert withstood[number] == int((~again.ever_fooled).sum()) and withstood[1 - number] == 0
    assert used == {0, 1}


def test_the_loss_is_the_cross_entropy_at_the_point_of_highest_loss():
    model, given = network().train(), batch()
    ctx = context(1, EAT.memory())
    result = EAT.craft(model, given, ctx)
    expected = F.cross_entropy(network().train()(result.x), given.y)
    assert torch.equal(EAT.loss(model, given, result, ctx).total, expected)
    assert EAT.passes() == Passes(12, 11)


def test_the_counters_are_saved_with_the_learner():
    def learner() -> Learner:
        task = Task(name="eat", objective=EAT, lr=Constant(value=0.1))
        return Learner(task, network(), BatchShard(), 0, Clock(3, 4))

    straight = learner()
    for t in (1, 2, 3):
        straight.step(batch(), t)
    again = learner()
    again.load_state_dict({name: tensor.clone() for name, tensor in straight.state_dict().items()})
    assert int(again.memory["eat.seen"].sum()) == 36
    for trained in (straight, again):
        trained.step(batch(), 4)
    assert same(again.state_dict(), straight.state_dict())


def test_crafting_leaves_the_running_statistics_alone():
    model = network().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    EAT.craft(model, batch(), context(1, EAT.memory()))
    assert same(before, model.state_dict())


def test_one_threat_is_refused():
    with pytest.raises(ValidationError, match="two or more different threats"):
        Eat(against=(L1,))
