"""What every mix rule of the table must do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, load_file, save
from torch import Tensor

from allrounder.config.fields import OneOf
from allrounder.config.schedules import Constant
from allrounder.config.time import Clock, Time
from allrounder.distributed import Placement, World
from allrounder.nn.mixing import MIXES, MixRule
from allrounder.nn.state import average_weights, clone
from allrounder.recipe.mix import Exchange, Mix, Shares
from allrounder.recipe.recipe import Recipe, shipped_recipes
from allrounder.training.mixer import Mixer
from allrounder.types import Weights
from tests.distributed.mixer_scenario import RESUMED, trio
from tests.distributed.ranks import RankResults
from tests.support.paths import PROJECT
from tests.support.trainings import EndsAfter, go, remains

WORLD = World(0, 1, torch.device("cpu"))
CLOCK = Clock(10, 10)
NAMES = ("a", "b", "c")
Values = list[dict[str, float]]
"""The value of every learner's weights, step by step."""
STEPS = st.lists(st.fixed_dictionaries({name: st.floats(-5, 5) for name in NAMES}), min_size=1, max_size=12)


@pytest.fixture(params=MIXES)
def rule(request: pytest.FixtureRequest) -> MixRule:
    return MIXES[request.param]()


def mix_of(rule: MixRule, decay: float = 0.7, share: float = 0.6) -> Mix:
    """A mix with what the rule uses."""
    fields: dict[str, Any] = {"rule": rule}
    if rule.uses_decay:
        fields["decay"] = Constant(value=decay)
    if rule.uses_shares:
        fields["shares"] = Shares(lead="a", curve=Constant(value=share), rest={"b": 0.25, "c": 0.75})
    if rule.needs_exchange:
        fields["exchange"] = Exchange(start=Time.parse(0), every=Time.parse(1))
    return Mix(**fields)


def weights(value: float, dtype: torch.dtype = torch.float64) -> Weights:
    return {"w": torch.full((3,), value, dtype=dtype), "count": torch.tensor(int(value))}


def random_weights(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(64, generator=generator), "count": torch.tensor(seed)}


def mixer(rule: MixRule, start: Weights, names: tuple[str, ...] = NAMES, **fields: float) -> Mixer:
    return Mixer(mix_of(rule, **fields), Placement({name: (0,) for name in names}), start, WORLD, CLOCK)


def take_steps(mixer: Mixer, first: int, last: int) -> None:
    """Show random weights of every learner, which depend on the step and on the learner."""
    for t in range(first, last + 1):
        for number, name in enumerate(mixer.names):
            mixer.update(name, random_weights(100 * t + number), t)


def equal(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_rule_is_a_value_of_the_table(rule: MixRule):
    table = OneOf(lambda: MIXES)
    assert table.decode(table.encode(rule)) == rule and hash(rule) == hash(type(rule)())


def test_every_rule_has_a_shipped_recipe():
    rules = {type(Recipe.load(name).effective_mix.rule) for name in shipped_recipes() if "embedded/" in name}
    assert rules == set(MIXES.values())


def test_before_the_first_step_the_global_weights_are_the_initial_ones(rule: MixRule):
    start = random_weights(1)
    theta = mixer(rule, start).global_weights()
    assert torch.allclose(theta["w"], start["w"], rtol=1e-6) and theta["count"] == 1


@pytest.mark.parametrize("value", [0.1, -3.7])
def test_equal_learners_give_their_own_weights(rule: MixRule, value: float):
    same = mixer(rule, weights(value))
    for t in range(1, 30):
        for name in NAMES:
            same.update(name, weights(value), t)
    assert torch.allclose(same.global_weights()["w"], weights(value)["w"], rtol=1e-13, atol=0)


@given(path=STEPS, start=st.floats(-5, 5), kind=st.sampled_from(sorted(MIXES)))
def test_the_result_lies_in_the_hull_where_the_rule_claims_it(path: Values, start: float, kind: str):
    rule = MIXES[kind]()
    if not rule.is_convex:
        return
    mixed = mixer(rule, weights(start))
    for t, values in enumerate(path, start=1):
        for name, value in values.items():
            mixed.update(name, weights(value), t)
    seen = [start, *(value for values in path for value in values.values())]
    w = mixed.global_weights()["w"]
    assert bool((w >= min(seen) - 1e-12).all()) and bool((w <= max(seen) + 1e-12).all())


@pytest.mark.parametrize("names", [NAMES, ("c", "a", "b")])
def test_states_are_combined_in_the_order_of_the_learners(rule: MixRule, names: tuple[str, ...]):
    mixed = mixer(rule, random_weights(0), names)
    take_steps(mixed, 1, 3)
    states = [mixed.states[name] for name in names]
    theta = mixed.global_weights()
    assert equal(theta, rule.step(rule.combine(iter(states)), mixed.memory)[0])
    assert theta["count"] != rule.combine(states[::-1])["count"], "integer buffers show the order"


def test_combining_changes_no_state_and_updates_change_only_the_own(rule: MixRule):
    mixed = mixer(rule, random_weights(0))
    take_steps(mixed, 1, 2)
    before = {name: clone(mixed.state_dict(name)) for name in NAMES}
    theta = mixed.global_weights()
    assert equal(theta, mixed.global_weights())
    theta["w"].zero_()
    assert all(equal(mixed.state_dict(name), before[name]) for name in NAMES)
    shown = random_weights(7)
    mixed.update("b", shown, 3)
    assert equal(shown, random_weights(7)) and not equal(mixed.state_dict("b"), before["b"])
    assert all(equal(mixed.state_dict(name), before[name]) for name in ("a", "c"))


def test_a_rule_does_not_keep_references_to_weights(rule: MixRule):
    start, shown = random_weights(0), random_weights(7)
    mixed = mixer(rule, start)
    mixed.update("a", shown, 1)
    before = mixed.global_weights()
    for tensors in (start, shown):
        tensors["w"].fill_(9.0)
    assert equal(mixed.global_weights(), before)


def test_states_of_half_precision_are_float32(rule: MixRule):
    mixed = mixer(rule, weights(1.0, torch.bfloat16))
    mixed.update("a", weights(1.0, torch.bfloat16), 1)
    assert mixed.global_weights()["w"].dtype == torch.float32
    assert not [name for name, tensor in mixed.state_dict("a").items() if tensor.dtype == torch.bfloat16]


def test_states_survive_a_round_trip_through_a_file(rule: MixRule):
    old, new = mixer(rule, random_weights(0)), mixer(rule, random_weights(1))
    take_steps(old, 1, 3)
    for name in NAMES:
        places = {key: tensor.data_ptr() for key, tensor in new.state_dict(name).items()}
        new.load_state_dict(name, load(save(old.state_dict(name))))
        restored = {key: tensor.data_ptr() for key, tensor in new.state_dict(name).items()}
        assert restored == places, "restored in place"
    assert equal(old.global_weights(), new.global_weights())
    for mixed in (old, new):
        take_steps(mixed, 4, 6)
    assert equal(old.global_weights(), new.global_weights())


def test_global_weights_between_exchanges_do_not_change_later_ones(rule: MixRule):
    plain, measured = mixer(rule, random_weights(0)), mixer(rule, random_weights(0))
    for first in (1, 3, 5):
        for mixed in (plain, measured):
            take_steps(mixed, first, first + 1)
        expected = measured.global_weights()
        assert equal(measured.exchange(), expected) and equal(plain.exchange(), expected)
    assert equal(plain.state_dict("a"), measured.state_dict("a"))


def test_states_and_memory_survive_a_round_trip_after_an_exchange(rule: MixRule):
    old, new = mixer(rule, random_weights(0)), mixer(rule, random_weights(1))
    take_steps(old, 1, 2)
    old.exchange()["w"].zero_()  # the caller may change the global weights
    for name in NAMES:
        new.load_state_dict(name, load(save(old.state_dict(name))))
    for mixed in (old, new):
        take_steps(mixed, 3, 4)
    assert equal(old.exchange(), new.exchange()) and equal(old.state_dict("a"), new.state_dict("a"))


def test_the_moving_average_keeps_its_bits():
    mixed = mixer(MIXES["ema"](), random_weights(0), decay=0.9, share=0.3)
    gammas = {"a": 0.3, "b": (1 - 0.3) * 0.25, "c": (1 - 0.3) * 0.75}
    sums = {name: random_weights(0)["w"] * (name == "a") for name in NAMES}
    take_steps(mixed, 1, 5)
    for t in range(1, 6):
        for number, name in enumerate(NAMES):
            sums[name].mul_(0.9).add_(random_weights(100 * t + number)["w"], alpha=(1 - 0.9) * gammas[name])
    assert torch.equal(mixed.global_weights()["w"], sums["a"] + sums["b"] + sums["c"])
    assert mixed.global_weights()["count"] == 500, "the counter of the first learner"


@pytest.mark.parametrize("names", [("a",), ("a", "b"), NAMES])
def test_the_plain_average_has_no_memory_and_is_that_of_a_soup(names: tuple[str, ...]):
    mixed = mixer(MIXES["uniform"](), random_weights(0), names)
    take_steps(mixed, 1, 3)
    now = [random_weights(300 + number) for number in range(len(names))]
    theta = mixed.global_weights()
    assert equal(theta, average_weights(now))
    mean: Tensor = torch.stack([tensors["w"].double() for tensors in now]).mean(0)
    assert torch.allclose(theta["w"].double(), mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_the_plain_average_of_one_or_two_equal_learners_is_exact(names: tuple[str, ...]):
    mixed = mixer(MIXES["uniform"](), random_weights(0), names)
    for name in names:
        mixed.update(name, random_weights(3), 1)
    assert equal(mixed.global_weights(), random_weights(3))


@pytest.mark.parametrize("kind", MIXES)
def test_a_run_that_was_interrupted_resumes_bit_for_bit(kind: str, tmp_path: Path):
    go(trio(kind), tmp_path / "whole")
    with pytest.raises(KeyError):  # after an exchange, and between two checkpoints
        go(trio(kind), tmp_path / "resumed", progress=EndsAfter(5))
    go(trio(kind), tmp_path / "resumed", resume=True)
    assert remains(tmp_path / "resumed") == remains(tmp_path / "whole")


@pytest.fixture(scope="module")
def distributed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, RankResults]]:
    """The folder of trainings with every rule, in one process and in two, and how the ranks ended."""
    out = tmp_path_factory.mktemp("mixers")
    command = [sys.executable, "-m", "tests.distributed.mixer_scenario", str(out)]
    ended = subprocess.run(
        command, cwd=PROJECT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return out, json.loads((out / "results.json").read_text())


def without_communication(folder: Path) -> dict[str, Any]:
    """The files of a run, without the logged communication, which a single process does not have."""
    files: dict[str, Any] = remains(folder)
    events = [event for event in files["metrics.jsonl"] if event["event"] != "comm_bytes"]
    return files | {"metrics.jsonl": events}


@pytest.mark.parametrize("kind", MIXES)
def test_two_processes_give_the_bits_of_one(kind: str, distributed: tuple[Path, dict[str, RankResults]]):
    out, results = distributed
    assert results[kind][0] == [0, 0], results[kind]
    assert without_communication(out / kind) == without_communication(out / f"{kind} serial")


@pytest.mark.parametrize("kind", RESUMED)
def test_two_processes_resume_what_one_process_began(
    kind: str, distributed: tuple[Path, dict[str, RankResults]]
):
    out, results = distributed
    name = f"{kind} resumed"
    assert results[name][0] == [0, 0], results[name]
    assert without_communication(out / name) == without_communication(out / f"{kind} serial")


def test_ranks_that_share_a_learner_square_the_gradient_of_the_whole_batch(
    distributed: tuple[Path, dict[str, RankResults]],
):
    out, results = distributed
    assert results["fisher shared"][0] == [0, 0], results["fisher shared"]
    serial, shared = (
        load_file(next((out / name / "checkpoints").glob("*9")) / "linf.safetensors")
        for name in ("fisher serial", "fisher shared")
    )
    squares = [name for name in serial if name.startswith("mix.square.") and serial[name].any()]
    assert len(squares) == 5, "one for each parameter"
    for name in squares:
        assert torch.allclose(shared[name], serial[name], rtol=1e-3, atol=1e-9)
