"""Adversarial weight perturbation: where its gradient is taken, and what it leaves as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from allrounder.attacks import Pgd
from allrounder.config.fields import adapter
from allrounder.config.time import Clock, Time
from allrounder.errors import Diverged, RecipeError
from allrounder.objectives import Adversarial
from allrounder.objectives.base import Objective
from allrounder.optim import Awp, Descend, Update
from allrounder.optim.awp import perturb_weights
from allrounder.optim.base import TrainingStep
from allrounder.optim.optimizers import Sgd
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Loss, Passes
from tests.support.networks import same
from tests.support.steps import batch, network
from tests.support.trainings import HEAD, LINF

CLOCK = Clock(epochs=10, steps_per_epoch=4)
AT = Adversarial(threat=Threat.parse("Linf:0.1"), attack=Pgd(steps=2))


def context(t: int = 1) -> Context:
    return Context(t, CLOCK, Rng(3).fold_in("task", t), {"count": torch.zeros(())})


def after(
    update: Update,
    model: nn.Module,
    objective: Objective = AT,
    ctx: Context | None = None,
    reduce_: Callable[[nn.Module], None] = lambda model: None,
) -> Loss:
    optimizer = Sgd(momentum=0.0, weight_decay=0.01).build(model.parameters())
    optimizer.param_groups[0]["lr"] = 0.1
    return update.apply(TrainingStep(model, optimizer, objective, batch(), ctx or context(), reduce_))


class Remembering(Objective):
    """Counts its losses in memory, and declares its passes."""

    reference = "-"

    def passes(self) -> Passes:
        return Passes(1, 1)

    def loss(self, model: nn.Module, batch: Batch, crafted: object, ctx: Context) -> Loss:
        ctx.memory["count"] += 1
        return Loss(model(batch.x).square().mean(), {"accuracy": torch.zeros(())})


def test_the_gradient_is_taken_at_weights_moved_up_the_loss_by_gamma_of_their_norm():
    gamma, given, ctx = 0.3, batch(), context()
    model = network()
    crafted = AT.craft(model, given, ctx)
    parameters = list(model.parameters())
    start = [p.detach().clone() for p in parameters]
    ascent = AT.loss(model, given, crafted, ctx).total
    moves: list[Tensor] = []
    for p, g in zip(parameters, torch.autograd.grad(ascent, parameters), strict=True):
        moves.append(gamma * p.detach().norm() * g / g.norm() if p.dim() > 1 else torch.zeros_like(p))
    with torch.no_grad():
        for p, move in zip(parameters, moves, strict=True):
            p.add_(move)
    higher = AT.loss(model, given, crafted, ctx).total
    assert higher > ascent
    expected = torch.autograd.grad(higher, parameters)
    stepped = network()
    loss = after(Awp(gamma=gamma), stepped)
    torch.testing.assert_close(loss.total, higher)
    for p, w, g in zip(stepped.parameters(), start, expected, strict=True):
        torch.testing.assert_close(p.detach(), w - 0.1 * (g + 0.01 * w))


def test_with_almost_no_perturbation_it_is_plain_descent():
    ours, theirs = network(), network()
    after(Awp(gamma=1e-12), ours)
    after(Descend(), theirs)
    for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)


def test_before_its_start_it_is_plain_descent():
    update = Awp(gamma=0.3, start=Time.parse(2))
    for t, plain in ((8, True), (9, False)):
        ours, theirs = network(), network()
        after(update, ours, ctx=context(t))
        after(Descend(), theirs, ctx=context(t))
        assert same(ours.state_dict(), theirs.state_dict()) == plain


def test_statistics_see_one_pass_and_memory_one_loss():
    model, ctx = network(), context()
    after(Awp(gamma=0.3), model, Remembering(), ctx)
    assert int(model.state_dict()["bn.num_batches_tracked"]) == 1
    assert ctx.memory["count"] == 1


def test_weights_are_restored_bit_for_bit_also_after_an_error():
    model, before = network(), network()
    model(batch().x).square().sum().backward()
    with pytest.raises(ValueError, match="inside"), perturb_weights(model, 0.5):
        for (name, p), q in zip(model.named_parameters(), before.parameters(), strict=True):
            assert torch.equal(p, q) == (p.dim() <= 1), name
            if p.dim() > 1:
                torch.testing.assert_close((p - q).norm(), 0.5 * q.norm())
        raise ValueError("inside")
    assert same(dict(model.named_parameters()), dict(before.named_parameters()))


def test_zero_gradients_perturb_nothing_and_a_nan_loss_changes_no_weight():
    model = network()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with perturb_weights(model, 0.5):
        assert same(dict(model.named_parameters()), dict(network().named_parameters()))

    seen: list[Loss] = []

    class Broken(Remembering):
        def loss(self, model: nn.Module, batch: Batch, crafted: object, ctx: Context) -> Loss:
            seen.append(super().loss(model, batch, crafted, ctx))
            return seen[0] if len(seen) == 1 else Loss(seen[1].total * float("nan"))

    with pytest.raises(Diverged):
        after(Awp(), model, Broken())
    assert len(seen) == 2
    assert same(dict(model.named_parameters()), dict(network().named_parameters()))


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1e30])
def test_a_tensor_whose_ascent_overflows_is_not_perturbed_and_others_are(bad: float):
    model, before = network(), dict(network().named_parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    grad = model.get_parameter("conv.weight").grad
    assert grad is not None
    grad[0, 0, 0, 0] = bad
    with perturb_weights(model, 0.5):
        assert torch.equal(model.get_parameter("conv.weight"), before["conv.weight"])
        assert not torch.equal(model.get_parameter("linear.weight"), before["linear.weight"])
        assert bool(model(batch().x).isfinite().all())
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


def test_the_group_averages_the_ascent_and_the_descent():
    calls: list[bool] = []

    def count(model: nn.Module) -> None:
        calls.append(same(dict(model.named_parameters()), dict(network().named_parameters())))

    after(Awp(gamma=0.3), network(), reduce_=count)
    assert calls == [True, True]


def test_it_takes_the_loss_twice_and_crafts_once():
    assert Awp().passes(AT) == Passes(2 + 1 + 1, 2 + 1 + 1)


def test_a_start_that_never_comes_is_refused_at_load():
    with pytest.raises(RecipeError, match="never comes in a run of 3 epochs"):
        Recipe.loads(f"{HEAD}{LINF}\nupdate = {{ kind = 'awp', start = 3 }}\n")


@pytest.mark.parametrize("t", [1, 40])
def test_a_natural_pass_after_the_step_changes_running_statistics_only(t: int):
    plain, passing, start = network(), network(), Time.parse("50%")
    after(Awp(gamma=0.3, start=start), plain, ctx=context(t))
    after(Awp(gamma=0.3, start=start, natural_pass=True), passing, ctx=context(t))
    assert same(dict(plain.named_parameters()), dict(passing.named_parameters()))
    plain(batch().x)
    assert same(plain.state_dict(), passing.state_dict())


def test_a_natural_pass_costs_a_forward_and_leaves_no_trace_in_old_recipes():
    assert Awp(natural_pass=True).passes(AT) == Awp().passes(AT) + Passes(1, 0)
    assert adapter(Awp).dump_python(Awp()).keys() == {"gamma", "start"}
    assert adapter(Awp).dump_python(Awp(natural_pass=True))["natural_pass"] is True
