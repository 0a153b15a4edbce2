"""Adaptive gradient reconstruction: its identities, the reference, when it begins and what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from allrounder.attacks import Pgd
from allrounder.config.time import Clock, Time
from allrounder.errors import RecipeError
from allrounder.objectives import Adversarial, Natural, Taught, Teacher
from allrounder.objectives.base import cross_entropy_loss
from allrounder.optim import Agr, Descend
from allrounder.optim.agr import reconstruct
from allrounder.optim.base import TrainingStep
from allrounder.optim.optimizers import Sgd
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Loss
from tests.reference.agr import reference_reconstruct
from tests.support.networks import same
from tests.support.steps import batch, context, craft, network
from tests.support.trainings import HEAD, LINF, NATURAL

CLOCK = Clock(epochs=10, steps_per_epoch=4)
AT = Adversarial(threat=Threat.parse("Linf:0.1"), attack=Pgd(steps=2))


def draw(name: str, *shape: int) -> Tensor:
    return Rng(0).fold_in(name).normal(torch.empty(*shape, dtype=torch.float64))


def after(update: Agr | Descend, model: nn.Module, t: int, rate: float = 0.1) -> Loss:
    optimizer = Sgd(momentum=0.0).build(model.parameters())
    optimizer.param_groups[0]["lr"] = rate
    return update.apply(TrainingStep(model, optimizer, AT, batch(), context(t), lambda model: None))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.sampled_from([-3.0, -0.5, 0.0, 0.5, 3.0]))
def test_reconstruct_equals_the_reference(seed: int, size: int, lean: float):
    like = torch.empty(size, dtype=torch.float64)
    g2 = Rng(seed).fold_in("g2").normal(like)
    g1 = Rng(seed).fold_in("g1").normal(like) + lean * g2
    expected = reference_reconstruct(g1.tolist(), g2.tolist(), 0.7)
    torch.testing.assert_close(reconstruct(g1, g2, 0.7), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
def test_what_opposes_the_natural_gradient_becomes_orthogonal_to_it(scale: float):
    g2 = scale * draw("g2", 5, 7)
    g1 = draw("g1", 5, 7) - 2 * g2 / g2.norm()
    assert (g1 * g2).sum() < 0
    g = reconstruct(g1, g2, 1e9)
    assert abs(float((g * g2).sum() / (g.norm() * g2.norm()))) < 1e-12
    assert float((g * g1).sum()) > 0


def test_an_equal_gradient_stays_itself_and_is_only_clipped():
    g = draw("g", 4, 3)
    torch.testing.assert_close(reconstruct(g, g, 1e9), g)
    torch.testing.assert_close(reconstruct(g, g, 0.1), 0.1 * g / g.norm())


@pytest.mark.parametrize("lean", [-5.0, 0.0, 5.0])
def test_the_norm_never_exceeds_the_clip(lean: float):
    g2 = draw("g2", 50)
    g = reconstruct(draw("g1", 50) + lean * g2, g2, 0.1)
    assert float(g.norm()) <= 0.1 + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_and_tiny_gradients_stay_finite(dtype: torch.dtype):
    g, zero = draw("g", 9).to(dtype), torch.zeros(9, dtype=dtype)
    torch.testing.assert_close(reconstruct(g, zero, 1e9), g)
    assert not reconstruct(zero, g, 0.1).any()
    assert not reconstruct(zero, zero, 0.1).any()
    for tiny in (1e-25, 1e-40):
        assert reconstruct(g, -tiny * g, 0.1).isfinite().all()
        assert reconstruct(tiny * g, g, 0.1).isfinite().all()


def test_before_its_start_it_is_plain_descent_and_from_then_on_it_is_not():
    update = Agr(start=Time.parse("50%"))
    for t, plain in ((1, True), (20, True), (21, False), (40, False)):
        ours, theirs = network(), network()
        after(update, ours, t)
        after(Descend(), theirs, t)
        assert same(ours.state_dict(), theirs.state_dict()) == plain, t


def test_a_step_goes_along_the_edited_gradients_of_both_losses():
    model, given, ctx = network(), batch(), context(40)
    crafted = AT.craft(model, given, ctx)
    parameters = list(model.parameters())
    before = [p.detach().clone() for p in parameters]
    g2 = torch.autograd.grad(cross_entropy_loss(model(given.x), given).total, parameters)
    g1 = torch.autograd.grad(AT.loss(model, given, crafted, ctx).total, parameters)
    stepped = network()
    after(Agr(), stepped, 40)
    for p, start, a, b in zip(stepped.parameters(), before, g1, g2, strict=True):
        reference = reference_reconstruct(a.flatten().tolist(), b.flatten().tolist(), 0.1)
        expected = start - 0.1 * torch.tensor(reference).view_as(start)
        torch.testing.assert_close(p.detach(), expected, rtol=1e-4, atol=1e-6)


def test_the_natural_images_pass_before_the_crafted_ones_and_crafting_moves_no_statistics():
    model, reference, given, ctx = network(), network(), batch(), context(40)
    crafted = craft(AT, reference, given, ctx)
    assert same(reference.state_dict(), network().state_dict())
    reference.train()
    for x in (given.x, crafted.x):
        reference(x)
    after(Agr(), model, 40, rate=0.0)
    assert same(model.state_dict(), reference.state_dict())


def test_both_gradients_are_averaged_over_a_group_before_the_edit():
    """Two ranks with other batches: each puts the group's mean in place of its own gradient."""
    update, given, ctx, seen = Agr(), batch(), context(40), list[list[Tensor]]()

    def fake(model: nn.Module) -> None:
        seen.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        for p in model.parameters():
            p.grad = torch.full_like(p, float(len(seen)))

    model = network()
    before = copy.deepcopy(model)
    optimizer = Sgd(momentum=0.0).build(model.parameters())
    optimizer.param_groups[0]["lr"] = 1.0
    update.apply(TrainingStep(model, optimizer, AT, given, ctx, fake))
    assert len(seen) == 2
    for p, start in zip(model.parameters(), before.parameters(), strict=True):
        g = reconstruct(torch.full_like(start, 2.0), torch.full_like(start, 1.0), 0.1)
        torch.testing.assert_close(p.detach(), (start - g).detach())


def test_the_log_has_both_losses():
    loss = after(Agr(), network(), 40)
    assert loss.parts.keys() == {"accuracy", "natural"}


@pytest.mark.parametrize(
    ("task", "update", "message"),
    [
        (LINF, "{ kind = 'agr', start = 3 }", "never comes in a run of 3 epochs"),
        (LINF, "{ kind = 'agr', start = '100%' }", "never comes"),
        (NATURAL, "{ kind = 'agr' }", "nothing to reconstruct"),
    ],
)
def test_invalid_settings_are_refused_at_load(task: str, update: str, message: str):
    with pytest.raises(RecipeError, match=message):
        Recipe.loads(f"{HEAD}{task}\nupdate = {update}\n")


def test_the_released_numbers_are_the_defaults():
    update = Agr()
    assert update.clip == 0.1
    assert update.start.to_steps(Clock(epochs=200, steps_per_epoch=1)) == 155
    assert update.start.to_steps(Clock(epochs=120, steps_per_epoch=1)) == 93
    assert update.problems(Natural(), Sgd(), 10)
    taught = Taught(base=Natural(), natural=Teacher(teacher="other"))
    assert update.problems(taught, Sgd(), 10) == update.problems(Natural(), Sgd(), 10)
    assert not update.problems(AT, Sgd(), 10)


def test_before_its_start_a_natural_pass_comes_first_and_changes_running_statistics_only():
    plain, passing = network(), network()
    after(Agr(), plain, 1)
    after(Agr(natural_pass=True), passing, 1)
    assert same(dict(plain.named_parameters()), dict(passing.named_parameters()))
    expected = network()
    crafted = craft(AT, expected, batch(), context(1))
    expected.train()
    with torch.no_grad():
        expected(batch().x)
        expected(crafted.x)
    assert same(dict(expected.named_buffers()), dict(passing.named_buffers()))


def test_after_its_start_a_natural_pass_changes_nothing():
    plain, passing = network(), network()
    after(Agr(), plain, CLOCK.total_steps)
    after(Agr(natural_pass=True), passing, CLOCK.total_steps)
    assert same(plain.state_dict(), passing.state_dict())
