"""Pixel-reweighted adversarial training: masks, budgets, losses, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from allrounder.attacks import Pgd
from allrounder.attacks.base import perturb
from allrounder.attacks.pixel_budget_pgd import PixelBudgetPgd
from allrounder.config.time import Clock, Time
from allrounder.errors import RecipeError
from allrounder.nn.gradcam import grad_cam
from allrounder.objectives import Adversarial, Part
from allrounder.objectives.mart import mart_loss
from allrounder.objectives.part import jet_colours, jet_masks, plain_masks
from allrounder.objectives.trades import trades_loss
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Context, Passes
from tests.reference import part as literal
from tests.support.networks import same
from tests.support.steps import batch, craft, network
from tests.support.trainings import HEAD, LINF

CLOCK = Clock(epochs=8, steps_per_epoch=4)
THREAT = Threat.parse("Linf:0.1")
PART = Part(threat=THREAT, attack=Pgd(steps=3))
LATE = CLOCK.total_steps


def context(t: int = LATE) -> Context:
    return Context(t, CLOCK, Rng(3).fold_in("task", t), {})


def maps(seed: int, n: int = 2, side: int = 6) -> Tensor:
    like = torch.empty(n, side, side, dtype=torch.float64)
    return 1.1 * Rng(seed).fold_in("cam").uniform(like) - 0.05


@settings(max_examples=25, deadline=None)
@drawn(st.integers(0, 10**6))
def test_masks_equal_the_reference(seed: int):
    cam = maps(seed)
    result = torch.where(jet_masks(cam, 3), 8.0, 7.0)
    for one, budgets in zip(cam.numpy(), result.numpy(), strict=True):
        np.testing.assert_array_equal(budgets.transpose(1, 2, 0), literal.budgets(one, 8.0, 7.0))


def test_the_colours_are_those_of_the_map_at_its_knots():
    values = torch.tensor([[[-0.2, 0.0, 0.25, 0.5, 0.75, 1.0, 1.3]]], dtype=torch.float64)
    np.testing.assert_allclose(
        jet_colours(values)[0].permute(1, 2, 0), literal.colours(values[0].numpy()), atol=1e-12
    )
    assert jet_colours(values)[0, :, 0, 0].tolist() == [0, 0, 0.5]
    assert jet_colours(values)[0, :, 0, -1].tolist() == [0.5, 0, 0]


def test_blue_is_on_for_low_maps_and_grey_takes_red():
    cam = torch.zeros(1, 8, 8, dtype=torch.float64)
    cam[0, 0] = 0.9
    masks = jet_masks(cam, 3)
    red, _, blue = masks[0]
    assert red[0].all() and not red[1:].any()
    assert blue[1:].all() and not blue[0].any()
    assert torch.equal(jet_masks(cam, 1), masks[:, :1])
    with pytest.raises(ValueError, match=r'5 channels.*"plain"'):
        jet_masks(cam, 5)


def test_the_plain_mask_is_where_the_map_is_far_above_its_mean():
    cam = maps(1)
    flat = cam.flatten(1)
    threshold = flat.mean(1) + flat.std(1, correction=0)
    expected = (cam > threshold[:, None, None])[:, None].expand(-1, 4, -1, -1)
    assert torch.equal(plain_masks(cam, 4), expected)
    assert expected.any() and not expected.all()


def test_in_a_flat_map_nothing_stands_out_but_the_blue_of_jet():
    flat = torch.zeros(2, 4, 4)
    assert not plain_masks(flat, 3).any() and not jet_masks(flat, 1).any()
    assert [bool(mask.all()) for mask in jet_masks(flat, 3)[0]] == [False, False, True]


def test_the_weighted_attack_stays_within_its_budgets_and_uses_them():
    given, model = batch(), network()
    budgets = torch.where(given.x > 0.5, 0.1, 0.02)
    result = perturb(PixelBudgetPgd(Pgd(steps=10), budgets), model, given.x, given.y, THREAT, Rng(0)).x
    moved = (result - given.x).abs()
    assert (moved <= budgets + 1e-6).all()
    assert result.min() >= 0 and result.max() <= 1
    assert (moved > 0.9 * budgets).float().mean() > 0.5


def test_with_one_budget_it_is_plain_pgd_from_a_start_in_the_box():
    x = 0.3 + 0.4 * batch().x
    weighted = PixelBudgetPgd(Pgd(steps=4), torch.full_like(x, 0.1))
    ours, theirs = (
        perturb(attack, network(), x, batch().y, THREAT, Rng(0)).x for attack in (weighted, Pgd(steps=4))
    )
    torch.testing.assert_close(ours, theirs)


def test_budgets_beyond_the_threat_or_of_another_batch_are_refused():
    x, y = batch().x, batch().y
    for budgets in (torch.full_like(x, 0.2), torch.full_like(x[:3], 0.1), torch.full_like(x, -0.1)):
        with pytest.raises(ValueError, match=r"the budget of Linf:0\.1"):
            perturb(PixelBudgetPgd(Pgd(steps=1), budgets), network(), x, y, THREAT, Rng(0))


def test_the_warm_up_is_adversarial_training_and_then_masks_count():
    plain = Adversarial(threat=THREAT, attack=PART.attack)
    for t, warm in ((1, True), (8, True), (9, False), (32, False)):
        ours, theirs = (craft(objective, network(), batch(), context(t)).x for objective in (PART, plain))
        assert torch.equal(ours, theirs) == warm, t


@pytest.mark.parametrize("mask", ["jet", "plain"])
def test_pixels_that_do_not_matter_get_the_smaller_budget(mask: str):
    part = replace(PART, mask=mask, low=0.5)
    given = batch()
    masks = {"jet": jet_masks, "plain": plain_masks}[mask](grad_cam(network(), given.x), 1)
    moved = (craft(part, network(), given, context()).x - given.x).abs()
    assert (moved[~masks] <= 0.05 + 1e-6).all()
    assert (moved[masks] > 0.05 + 1e-6).any()


def test_released_masks_are_those_of_other_images():
    given = batch()
    own = PART._masks(network(), given, context())
    others = replace(PART, alignment="released")._masks(network(), given, context())
    pairs = (own[:, None] == others[None]).flatten(2).all(2)
    assert pairs.any(0).all() and pairs.any(1).all()
    distinct = (own[:, None] == own[None]).flatten(2).all(2).sum(1) == 1
    assert distinct.any()
    assert not pairs.diagonal()[distinct].any()


def test_all_of_the_budget_is_adversarial_training_without_masks():
    x = batch()
    whole = replace(PART, low=1.0)
    attack = PixelBudgetPgd(PART.attack, torch.full_like(x.x, THREAT.eps))
    expected = perturb(attack, network(), x.x, x.y, THREAT, context().rng.fold_in("attack"))
    assert torch.equal(craft(whole, network(), x, context()).x, expected.x)


def test_crafting_moves_no_statistics():
    model = network()
    PART.craft(model, batch(), context())
    assert same(model.state_dict(), network().state_dict())
    assert all(module.training for module in model.modules())


def test_batch_norm_while_crafting_follows_the_setting_and_maps_change_no_statistics():
    for t in (1, LATE):
        model = network()
        replace(PART, norm_layers="train").craft(model, batch(), context(t))
        assert int(model.state_dict()["bn.num_batches_tracked"]) == PART.attack.steps
        model = network()
        replace(PART, norm_layers="train_frozen").craft(model, batch(), context(t))
        assert same(model.state_dict(), network().state_dict())


def logits(name: str) -> Tensor:
    return 2 * Rng(0).fold_in(name).normal(torch.empty(12, 3, dtype=torch.float64))


def test_the_loss_of_trades_and_its_end_at_no_weight():
    natural, adversarial, given = logits("n"), logits("a"), batch()
    result = trades_loss(natural, adversarial, given, 6.0).total
    p, q = natural.softmax(1), adversarial.softmax(1)
    expected = F.cross_entropy(natural, given.y) + 6 * (p * (p.log() - q.log())).sum(1).mean()
    torch.testing.assert_close(result, expected)
    assert torch.equal(trades_loss(natural, adversarial, given, 0.0).total, F.cross_entropy(natural, given.y))


def test_the_loss_of_mart_and_its_end_at_no_weight():
    natural, adversarial, given = logits("n"), logits("a"), batch()
    p, q = natural.softmax(1), adversarial.softmax(1)
    boosted, apart = 0.0, 0.0
    for i, y in enumerate(given.y.tolist()):
        wrong = max(float(q[i, k]) for k in range(3) if k != y)
        boosted -= float(q[i, y].log()) + np.log(1.0001 - wrong + 1e-12)
        kl = sum(float(p[i, k] * (p[i, k].log() - q[i, k].log())) for k in range(3))
        apart += kl * (1.0000001 - float(p[i, y]))
    expected = torch.tensor((boosted + 5 * apart) / 12, dtype=torch.float64)
    torch.testing.assert_close(mart_loss(natural, adversarial, given, 5.0).total, expected)
    torch.testing.assert_close(
        mart_loss(natural, adversarial, given, 0.0).total, torch.tensor(boosted / 12, dtype=torch.float64)
    )


@pytest.mark.parametrize(("outer", "pairs"), [("at", 1), ("trades", 2), ("mart", 2)])
def test_the_loss_is_the_one_asked_for(outer: str, pairs: int):
    part, given = replace(PART, outer=outer), batch()
    crafted = craft(part, network(), given, context())
    result = part.loss(network(), given, crafted, context()).total
    model = network()
    ways = {
        "at": lambda: F.cross_entropy(model(crafted.x), given.y),
        "trades": lambda: trades_loss(model(given.x), model(crafted.x), given, 6.0).total,
        "mart": lambda: mart_loss(model(given.x), model(crafted.x), given, 6.0).total,
    }
    torch.testing.assert_close(result, ways[outer]())
    assert part.passes() == Passes(1 + 3 + pairs, 1 + 3 + pairs)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("threat = 'L2:0.5'", "expected an Linf threat for budgets per pixel"),
        ("threat = 'Linf:0.1', warmup = 3", "no mask is ever used in a run of 3 epochs"),
        ("threat = 'Linf:0.1', low = '9/8'", "less than or equal to 1"),
        ("threat = 'Linf:0.1', attack = { kind = 'mim' }", "unknown kind"),
    ],
)
def test_invalid_settings_are_refused_at_load(more: str, message: str):
    start, end = LINF.index("objective"), LINF.index("lr =")
    task = f"{LINF[:start]}objective = {{ kind = 'part', {more} }}\n{LINF[end:]}"
    with pytest.raises(RecipeError, match=message):
        Recipe.loads(HEAD + task)


def test_the_released_numbers_are_the_defaults():
    part = Part(threat=Threat.parse("Linf:8/255"))
    assert part.low * part.threat.eps == pytest.approx(7 / 255)
    assert part.warmup.to_steps(Clock(epochs=80, steps_per_epoch=1)) == 20
    assert part.attack == Pgd(steps=10, step=0.25)
    assert part.warmup == Time.parse("25%")
