"""The global weights are the sum of the learners' partial sums, and equal the monolithic average."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allrounder.config.schedules import Constant
from allrounder.config.time import Clock
from allrounder.distributed import Placement, World
from allrounder.nn.state import clone
from allrounder.optim import Awp
from allrounder.recipe.mix import Mix, Shares
from allrounder.training.mixer import Mixer
from allrounder.training.run import Run
from allrounder.training.trainer import Trainer
from tests.support.networks import blobs, tiny
from tests.support.trainings import PAIR, recipe

WORLD = World(0, 1, torch.device("cpu"))
HALF = Shares(lead="a", curve=Constant(value=0.5))


def weights(value: float) -> dict[str, Tensor]:
    return {"w": torch.full((3,), value, dtype=torch.float64), "count": torch.tensor(int(value))}


def mixer(mix: Mix, names: str, start: float = 0.0, clock: Clock | None = None) -> Mixer:
    return Mixer(
        mix, Placement({name: (0,) for name in names}), weights(start), WORLD, clock or Clock(10, 10)
    )


@pytest.mark.parametrize(("curve", "winner"), [(1.0, "a"), (0.0, "b")])
def test_a_share_of_exactly_zero_or_one_is_a_real_weight(curve: float, winner: str):
    mix = Mix(decay=Constant(value=0.0), shares=Shares(lead="a", curve=Constant(value=curve)))
    both = mixer(mix, "ab", start=9.0)
    both.update("a", weights(1.0), 1)
    both.update("b", weights(2.0), 1)
    assert torch.equal(both.global_weights()["w"], weights({"a": 1.0, "b": 2.0}[winner])["w"])


@given(
    st.lists(
        st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 0.999), st.floats(0, 1)),
        min_size=1,
        max_size=30,
    )
)
def test_the_states_add_up_to_the_monolithic_average(path: list[tuple[float, float, float, float]]):
    # A decay and a share of its own at every step: the identity holds for any of them.
    clock = Clock(len(path), 1, "step")
    total = weights(3.0)["w"].clone()
    parts = {"a": total.clone(), "b": torch.zeros_like(total)}
    split = Mixer(Mix(shares=HALF), Placement({"a": (0,), "b": (0,)}), weights(3.0), WORLD, clock)
    for t, (a, b, decay, share) in enumerate(path, start=1):
        at = Mix(decay=Constant(value=decay), shares=Shares(lead="a", curve=Constant(value=share)))
        split.mix = at
        split.update("a", weights(a), t)
        split.update("b", weights(b), t)
        total = decay * total + (1 - decay) * (share * weights(a)["w"] + (1 - share) * weights(b)["w"])
        parts["a"] = decay * parts["a"] + (1 - decay) * share * weights(a)["w"]
        parts["b"] = decay * parts["b"] + (1 - decay) * (1 - share) * weights(b)["w"]
    assert torch.allclose(split.global_weights()["w"], total, atol=1e-12)
    for name, part in parts.items():
        assert torch.allclose(split.states[name]["w"], part, atol=1e-12)


def test_integer_buffers_come_from_the_first_learner():
    both = mixer(Mix(decay=Constant(value=0.5), shares=HALF), "ab")
    both.update("a", weights(4.0), 1)
    both.update("b", weights(7.0), 1)
    assert both.global_weights()["count"] == 4


def test_global_weights_do_not_change_the_states():
    both = mixer(Mix(decay=Constant(value=0.5), shares=HALF), "ab")
    both.update("a", weights(4.0), 1)
    both.update("b", weights(6.0), 1)
    assert torch.equal(both.global_weights()["w"], both.global_weights()["w"])


def test_a_single_learner_without_memory_is_copied_bit_for_bit():
    alone = mixer(Mix.solo(), "a", start=5.0)
    w = {
        "w": torch.randn(3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
        "count": torch.tensor(1),
    }
    alone.update("a", w, 1)
    assert torch.equal(alone.global_weights()["w"], w["w"])


def test_a_saved_state_is_restored_in_place():
    old, new = (mixer(Mix(decay=Constant(value=0.5), shares=HALF), "ab") for _ in range(2))
    for name, value in (("a", 4.0), ("b", 6.0)):
        old.update(name, weights(value), 1)
    for name in "ab":
        before = new.states[name]["w"].data_ptr()
        new.load_state_dict(name, old.state_dict(name))
        assert new.states[name]["w"].data_ptr() == before
    assert torch.equal(new.global_weights()["w"], old.global_weights()["w"])
    assert new.global_weights()["count"] == 4


FISHER = PAIR.replace("[mix]", '[mix]\nrule = { kind = "fisher", square_decay = 0.5 }').replace(
    'objective = { kind = "natural" }', 'objective = { kind = "natural" }\nupdate = { kind = "awp" }'
)


def test_squares_are_those_of_the_gradients_that_the_optimiser_applies(tmp_path: Path):
    run = Run.open_or_create(tmp_path / "run", recipe(FISHER), resume=False)
    trainer = Trainer(run.recipe, run, tiny, blobs(48), WORLD)
    learner = trainer.learners[1]
    group = learner.optimizer.param_groups[0]
    factor = learner.lr(1) * (1 + group["momentum"] if group["nesterov"] else 1)
    assert learner.task.update == Awp(), "which takes two backward passes"
    start = clone(learner.params)
    trainer.fit(until=1)
    state = trainer.mixer.state_dict("natural")
    for name, _ in learner.model.named_parameters():
        # The first step of SGD is a multiple of g + weight_decay * w.
        g = (start[name] - learner.params[name]) / factor - group["weight_decay"] * start[name]
        assert torch.allclose(state[f"mix.square.{name}"], g.square(), rtol=1e-2, atol=1e-9)
    assert not state["mix.square.bn.running_mean"].any(), "a buffer has no gradient"


def test_only_rules_that_use_gradients_watch_the_optimiser(tmp_path: Path):
    for text, watched in ((PAIR, []), (FISHER, ["linf", "natural"])):
        run = Run.open_or_create(tmp_path / f"{len(watched)}", recipe(text), resume=False)
        trainer = Trainer(run.recipe, run, tiny, blobs(48), WORLD)
        assert list(trainer.mixer.gradients) == watched
        hooks = [learner.optimizer._optimizer_step_pre_hooks for learner in trainer.learners]  # pyright: ignore[reportAttributeAccessIssue]
        assert [len(each) for each in hooks] == [len(watched) // 2] * 2
