"""Friendly adversarial training, and the search it is made of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from allrounder.attacks import EarlyStopPgd, Pgd, perturb
from allrounder.config.schedules import Constant, Linear, Step
from allrounder.config.time import Clock, Time
from allrounder.errors import RecipeError
from allrounder.objectives import Adversarial, Fat, Trades
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Context, Passes
from tests.reference import fat as reference
from tests.support.networks import Counting, Tiny, same
from tests.support.steps import NATURAL, ROBUST, assert_equal_steps, batch, loss_with_logits, network, step

THREAT = Threat.parse("Linf:0.1")
LAYERS = pytest.mark.parametrize("layers", ["eval", "train", "train_frozen"])


def doubles(n: int = 12) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, images of which it gets some right, and their labels."""
    with Rng(1).seed_global():
        return Tiny().double().eval(), batch(n).x.double(), batch(n).y


def tau_at(objective: Fat, t: int, clock: Clock) -> int:
    return objective.tau_at(Context(t, clock, Rng(0), {}))


@pytest.mark.parametrize("text", ["Linf:0.1", "L2:0.8", "L1:4"])
@pytest.mark.parametrize(("loss", "start"), [("ce", "random"), ("kl", "gaussian")])
@pytest.mark.parametrize("tau", [0, 1, 3])
def test_the_search_equals_the_reference(text: str, loss: Any, start: Any, tau: int):
    (model, x, y), threat, draws = doubles(), Threat.parse(text), Rng(4)
    attack = EarlyStopPgd(steps=5, step=0.3, tau=tau, omega=0.01, loss=loss, start=start)
    result = perturb(attack, model, x, y, threat, draws)
    first = 0.001 * draws.fold_in("start").normal(x)
    if start == "random":
        first = threat.norm.sample(x, threat.eps, draws.fold_in("start"))
    noise = [0.01 * draws.fold_in("noise", k).normal(x).numpy() for k in range(5)]
    taken = list[int]()
    for i in range(len(x)):
        own, at = (x[i].numpy(), int(y[i]), str(threat.norm), threat.eps), first[i].numpy()
        steps = [one[i] for one in noise]
        end, count = reference.early_stop_search(
            model, *own, at, steps, steps=5, step=0.3, tau=tau, loss=loss
        )
        assert torch.allclose(result.x[i], torch.from_numpy(end), rtol=0, atol=1e-9)
        taken.append(count)
    assert result.steps is not None and result.steps.tolist() == taken
    assert min(taken) == tau and max(taken) > tau


@LAYERS
@pytest.mark.parametrize(("loss", "start"), [("ce", "random"), ("kl", "gaussian")])
def test_with_as_many_spare_steps_as_steps_and_no_noise_the_search_is_pgd(layers: Any, loss: Any, start: Any):
    given, draws = batch(), Rng(0)
    friendly = EarlyStopPgd(steps=4, tau=4, omega=0, loss=loss, start=start)
    plain = Pgd(steps=4, loss=loss, start=start)
    ours, theirs = (
        perturb(attack, network(), given.x, given.y, THREAT, draws, norm_layers=layers)
        for attack in (friendly, plain)
    )
    assert torch.equal(ours.x, theirs.x)
    assert ours.passes == theirs.passes == friendly.passes()
    assert ours.steps is not None and bool((ours.steps == 4).all())


def test_an_image_that_is_wrong_at_its_start_takes_no_step():
    model, x, _ = doubles()
    with torch.no_grad():
        wrong = (model(x).argmax(1) + 1) % 3
    result = perturb(EarlyStopPgd(start="zero"), model, x, wrong, THREAT, Rng(0))
    assert result.steps is not None and not result.steps.any()
    assert torch.equal(result.x, x)
    assert result.passes == Passes(1, 0)


def test_only_images_that_move_pass_through_the_network():
    with Rng(1).seed_global():
        model = Counting().eval()
    given = batch()
    result = perturb(EarlyStopPgd(steps=6), model, given.x, given.y, THREAT, Rng(0))
    assert result.steps is not None
    stopped = int((result.steps < 6).sum())
    assert 0 < stopped < len(given)
    assert model.tally.forwards == int(result.steps.sum()) + stopped


def test_fat_that_never_stops_is_adversarial_training():
    attack = EarlyStopPgd(steps=3, omega=0)
    assert_equal_steps(
        Fat(threat=THREAT, attack=attack, tau=Constant(value=3)),
        Adversarial(threat=THREAT, attack=Pgd(steps=3)),
    )


def test_fat_reports_the_mean_number_of_steps():
    loss, model = loss_with_logits(Fat(threat=THREAT), ROBUST)
    assert loss.parts["steps"] == 1.5
    assert len(model.seen) == 1
    assert torch.allclose(loss.total, torch.nn.functional.cross_entropy(ROBUST, batch(4).y))


def test_fat_for_trades_has_the_loss_of_trades_on_friendly_images():
    ours, _ = loss_with_logits(Fat(threat=THREAT, variant="trades", beta=3), NATURAL, ROBUST)
    theirs, _ = loss_with_logits(Trades(threat=THREAT, beta=3), NATURAL, ROBUST)
    assert torch.equal(ours.total, theirs.total)
    assert ours.parts["steps"] == 1.5
    objective = Fat(threat=THREAT, variant="trades", tau=Constant(value=10))
    again = Trades(threat=THREAT)
    (first, left), (second, right) = step(objective), step(again)
    assert torch.equal(first.total, second.total) and same(left, right)
    assert objective.passes() == again.passes()


@pytest.mark.parametrize("pace", ["epoch", "step"])
def test_tau_rises_after_epochs_50_and_90_of_120(pace: Any):
    clock = Clock(epochs=120, steps_per_epoch=3, pace=pace)
    expected = [0 if epoch <= 50 else 1 if epoch <= 90 else 2 for epoch in range(1, 121) for _ in range(3)]
    assert [tau_at(Fat(threat=THREAT), t, clock) for t in range(1, 361)] == expected
    written = Fat(threat=THREAT, tau=Step(at=tuple(map(Time.parse, (0, 50, 90))), to=(0, 1, 2)))
    assert [tau_at(written, t, clock) for t in range(1, 361)] == expected


def test_tau_for_trades_rises_after_epochs_30_50_and_70_of_85():
    clock, objective = Clock(epochs=85, steps_per_epoch=2), Fat(threat=THREAT, variant="trades")
    seen = [tau_at(objective, 2 * epoch, clock) for epoch in range(1, 86)]
    assert seen == [0] * 30 + [1] * 20 + [2] * 20 + [3] * 15
    assert objective.effective_attack == EarlyStopPgd(omega=0, loss="kl", start="gaussian")


def test_a_shorter_run_keeps_tau_in_its_place():
    clock = Clock(epochs=12, steps_per_epoch=2)
    assert [tau_at(Fat(threat=THREAT), 2 * epoch, clock) for epoch in range(1, 13)] == [0] * 5 + [1] * 4 + [
        2
    ] * 3


@pytest.mark.parametrize(
    "tau", [Constant(value=1.5), Constant(value=-1), Step(at=(Time.parse(0),), to=(0.5,))]
)
def test_a_tau_that_counts_no_steps_is_refused(tau: Any):
    with pytest.raises(
        ValueError, match=r"tau counts steps, expected whole numbers of at least 0, got .*; change them"
    ):
        Fat(threat=THREAT, tau=tau)


def test_a_tau_between_whole_numbers_is_refused():
    with pytest.raises(ValueError, match="expected a table with a kind"):
        Fat(threat=THREAT, tau=Linear(at=(Time.parse(0), Time.parse(9)), to=(0, 2)))


def test_a_tau_beyond_the_run_is_refused():
    objective = Fat(threat=THREAT, tau=Step(at=tuple(map(Time.parse, (0, 50, 90))), to=(0, 1, 2)))
    assert objective.problems(91) == []
    message = "changes after 90 epochs, expected less than the 90 of the run; choose an earlier time"
    assert objective.problems(90) == [("tau", message)]
    late = Fat(threat=THREAT, tau=Step(at=tuple(map(Time.parse, (0, 12.5))), to=(0, 1)))
    assert "after 12.5 epochs" in late.problems(2)[0][1]
    mixed = Fat(threat=THREAT, tau=Step(at=tuple(map(Time.parse, (0, "50%", 10))), to=(0, 1, 2)))
    assert mixed.problems(20) == [] and mixed.problems(11) == []
    assert "ascending" in mixed.problems(30)[0][1]
    with pytest.raises(
        RecipeError, match=r"task\.linf\.objective\.tau: changes after 50 epochs, .* the 12 of"
    ):
        Recipe.load("embedded/fat", ["task.linf.objective.tau={ kind = 'step', at = [0, 50], to = [0, 1] }"])


def test_two_taus_are_refused():
    with pytest.raises(ValueError, match="the attack's tau is 2, expected 0"):
        Fat(threat=THREAT, attack=EarlyStopPgd(tau=2))


def test_a_friendly_search_for_divergence_must_start_beside_the_image():
    with pytest.raises(ValueError, match="flat at the image itself"):
        EarlyStopPgd(loss="kl", start="zero")


def test_a_network_without_gradients_is_named():
    _, x, y = doubles()
    # Right everywhere, so that the search goes on.
    with pytest.raises(ValueError, match="no gradient reaches the images"):
        perturb(EarlyStopPgd(), lambda x: nn.functional.one_hot(y, 3).double(), x, y, THREAT, Rng(0))
