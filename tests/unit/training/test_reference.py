"""The trainer against literal transcriptions of the algorithm and of the released loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from allrounder.distributed import World
from allrounder.nn.state import weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.training.run import Run
from allrounder.training.trainer import Trainer
from tests.reference import generalist as literal
from tests.support.networks import Unfoldable, blobs

WORLD = World(0, 1, torch.device("cpu"))

COMMON = """
epochs = 6
batch_size = 16
seed = 5
data = { kind = "python", name = "blobs" }
model = { kind = "python", name = "unfoldable" }
validation = { images = 0 }
"""

TASK = """
[[task]]
name = "%s"
objective = %s
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = %g }
lr = %s
augment = { kind = "crop-flip", pad = 1 }
"""
LINF = '{ kind = "adversarial", threat = "Linf:0.1", attack = { kind = "pgd", steps = 3 } }'
L2 = '{ kind = "adversarial", threat = "L2:0.5", attack = { kind = "pgd", steps = 3 } }'
NATURAL = '{ kind = "natural" }'
LR = '{ kind = "linear", at = [0, "50%", "100%"], to = [0.1, 0.1, 0.01] }'

DOUBLE = f"""{COMMON}
{TASK % ("linf", LINF, 1e-3, LR)}
{TASK % ("natural", NATURAL, 5e-4, LR)}
[mix]
decay = 0.9
shares = {{ lead = "linf", curve = {{ kind = "linear", at = [0, "50%", "100%"], to = [1, 0.7, 0] }} }}
exchange = {{ start = "50%", every = 1 }}
"""
TRIPLE = f"""{COMMON}
{TASK % ("linf", LINF, 1e-3, LR)}
{TASK % ("natural", NATURAL, 5e-4, LR)}
{TASK % ("l2", L2, 1e-3, LR)}
[mix]
decay = 0.9
shares.lead = "linf"
shares.curve = {{ kind = "linear", at = [0, "50%", "100%"], to = [1, 0.7, 0] }}
shares.rest = {{ natural = 0.4, l2 = 0.6 }}
exchange = {{ start = "50%", every = 2 }}
"""
RELEASED = f"""{COMMON}
{TASK % ("linf", LINF, 3.5e-3, LR)}average = {{ kind = "warmup" }}
{TASK % ("natural", NATURAL, 5e-4, LR)}average = {{ kind = "warmup" }}
[mix]
decay = {{ kind = "warmup" }}
shares.lead = "linf"
shares.curve = {{ kind = "linear", at = [0, "100/3%", "200/3%", "100%"], to = [1, 1, 1, 0.4] }}
exchange = {{ start = "62.5%", every = 2, when = "every-step" }}
"""


def training(text: str, out: Path, dtype: torch.dtype) -> Trainer:
    recipe = Recipe.loads(text)
    run = Run.open_or_create(out, recipe, resume=False)
    return Trainer(recipe, run, lambda: Unfoldable().to(dtype), blobs(48), WORLD)


def noise(threat: str, name: str, seed: int) -> Callable[[Tensor, int], Tensor]:
    parsed = Threat.parse(threat)
    return lambda x, t: parsed.norm.sample(x, parsed.eps, Rng(seed).fold_in(name, t, "attack", "start"))


def duties(real: Trainer) -> list[literal.Duty]:
    clock, seed = real.clock, real.recipe.seed
    attacks = {
        "linf": literal.linf_pgd(0.1, 0.025, 3, noise("Linf:0.1", "linf", seed)),
        "l2": literal.l2_pgd(0.5, 0.125, 3, noise("L2:0.5", "l2", seed)),
        "natural": None,
    }

    def lr(t: int) -> float:
        epoch = (t - 1) // clock.steps_per_epoch + 1
        return 0.1 if epoch <= 3 else 0.1 + (0.01 - 0.1) * (epoch - 3) / 3

    decays = {"linf": 1e-3, "natural": 5e-4, "l2": 1e-3}
    return [literal.Duty(attacks[n], lr, decays[n]) for n in real.recipe.names]


def batches(real: Trainer) -> Callable[[int], tuple[Tensor, Tensor]]:
    def at(t: int) -> tuple[Tensor, Tensor]:
        epoch = real.clock.epoch(t)
        batch = real.batches.at(epoch, t - (epoch - 1) * real.clock.steps_per_epoch)
        seen = real.learners[0].prepare_batch(batch, t)
        return seen.x, seen.y

    return at


def shares(real: Trainer) -> Callable[[int], list[float]]:
    def at(t: int) -> list[float]:
        epoch = (t - 1) // real.clock.steps_per_epoch + 1
        lead = 1 - 0.1 * epoch if epoch <= 3 else 0.7 * (6 - epoch) / 3
        rest = {2: [1.0], 3: [0.4, 0.6]}[len(real.recipe.names)]
        return [lead, *((1 - lead) * part for part in rest)]

    return at


def follow(real: Trainer, oracle, steps: int, tolerance: float) -> None:
    for t, (theta_g, thetas) in zip(range(1, steps + 1), oracle, strict=False):
        real.fit(until=t)
        result = [real.mixer.global_weights(), *(learner.params for learner in real.learners)]
        # The last exchange, after which nobody goes on, is left out: it would only overwrite the learners.
        compared = [theta_g, *thetas] if t < real.clock.total_steps else [theta_g]
        for expected, got in zip(compared, result, strict=False):
            for name, tensor in expected.items():
                assert torch.allclose(got[name], tensor, rtol=0, atol=tolerance), (t, name)


@pytest.mark.parametrize(("text", "every"), [(DOUBLE, 1), (TRIPLE, 2)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_training_follows_the_algorithm_step_by_step(text, every, dtype, tolerance, tmp_path: Path):
    real = training(text, tmp_path / "run", dtype)
    steps = real.clock.steps_per_epoch
    oracle = literal.algorithm(
        real.scratch_model,
        duties(real),
        batches(real),
        real.clock.total_steps,
        0.9,
        shares(real),
        lambda t: t >= 3 * steps and t % (every * steps) == 0,
    )
    # Sign steps amplify rounding, so a long comparison is made in float64 alone.
    follow(real, oracle, real.clock.total_steps if dtype == torch.float64 else 1, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_training_follows_the_released_loop_step_by_step(dtype, tolerance, tmp_path: Path):
    real = training(RELEASED, tmp_path / "run", dtype)
    at, st = duties(real)
    at.weight_decay = 3.5e-3
    oracle = literal.released(
        real.scratch_model, at, st, batches(real), 6, real.clock.steps_per_epoch, 3.75, 2
    )
    follow(real, oracle, real.clock.total_steps if dtype == torch.float64 else 1, tolerance)


def test_after_an_exchange_learners_are_the_global_weights_and_keep_their_momentum(tmp_path: Path):
    real = training(DOUBLE, tmp_path / "run", torch.float32)
    last = 3 * real.clock.steps_per_epoch
    for t in range(1, last + 1):
        real.fit(until=t)
    theta = real.mixer.global_weights()
    for learner in real.learners:
        assert all(torch.equal(theta[name], tensor) for name, tensor in weights_of(learner.model).items())
        moments = [s["momentum_buffer"] for s in learner.optimizer.state.values()]
        assert len(moments) == len(list(learner.model.parameters()))
        assert any(bool(m.abs().sum() > 0) for m in moments)
