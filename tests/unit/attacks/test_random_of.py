"""random-of: an attack under one threat for each image, chosen at random."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from allrounder.attacks import Attack, Msd, Pgd, RandomOf, Restarts, WorstOf, perturb
from allrounder.errors import RecipeError
from allrounder.objectives import HalfHalf
from allrounder.rng import Rng
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Passes
from tests.support.networks import Tiny, blobs

LINF, L2 = Threat.parse("Linf:0.1"), Threat.parse("L2:0.5")
UNION = AnyOf((LINF, L2))
ATTACK = RandomOf(attack=Pgd(steps=3))


def network() -> nn.Module:
    with Rng(0).seed_global():
        return Tiny().eval()


def images() -> tuple[torch.Tensor, torch.Tensor]:
    split = blobs().train
    index = torch.arange(60)
    return split.fetch(index), split.labels[index]


def in_l2_only(x_adv: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return ~LINF.contains(x, x_adv)


def test_every_image_lies_in_one_of_the_balls_and_both_are_used():
    x, y = images()
    x_adv = perturb(ATTACK, network(), x, y, UNION, Rng(1)).x
    assert bool((LINF.contains(x, x_adv) | L2.contains(x, x_adv)).all())
    assert 15 < int(in_l2_only(x_adv, x).sum()) < 45


def test_the_choice_changes_with_the_random_numbers_only():
    x, y = images()
    first, again, other = (perturb(ATTACK, network(), x, y, UNION, Rng(seed)).x for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(in_l2_only(first, x), in_l2_only(other, x))


def test_one_threat_gives_the_attack_under_it():
    x, y = images()
    x_adv = perturb(ATTACK, network(), x, y, LINF, Rng(1)).x
    pgd = perturb(ATTACK.attack, network(), x, y, LINF, Rng(1).fold_in("threat", 0)).x
    assert torch.equal(x_adv, pgd)


def test_ranks_that_share_a_batch_craft_the_images_of_one_process():
    x, y = images()
    whole = perturb(ATTACK, network().double(), x.double(), y, UNION, Rng(1)).x
    parts = [
        perturb(
            ATTACK,
            network().double(),
            x[rows.start : rows.stop].double(),
            y[rows.start : rows.stop],
            UNION,
            Rng(1).for_shard(rows, len(x)),
        ).x
        for rows in (range(25), range(25, 60))
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-9)


def test_several_threats_cost_as_much_as_one():
    objective = HalfHalf(threat=UNION, attack=ATTACK)
    assert objective.threats() == (LINF, L2)
    assert objective.craft_passes() == Passes(3, 3)
    assert objective.passes() == HalfHalf(threat=LINF, attack=Pgd(steps=3)).passes()


def test_half_half_refuses_an_attack_that_cannot_search_a_union():
    with pytest.raises(ValidationError, match="searches one ball, got the union"):
        HalfHalf(threat=UNION, attack=Pgd(steps=3))


def test_batch_norm_must_be_in_eval_mode():
    with pytest.raises(ValidationError, match=r'in parts, .*set norm_layers = "eval", got "train"'):
        HalfHalf(threat=UNION, attack=ATTACK, norm_layers="train")
    x, y = images()
    with pytest.raises(RecipeError, match="in parts"):
        perturb(Restarts(attack=ATTACK, count=2), network(), x, y, LINF, Rng(1), norm_layers="train_frozen")


@pytest.mark.parametrize("attack", [Msd(steps=3), WorstOf(attack=Pgd(steps=3))])
def test_attacks_that_take_a_union_are_refused(attack: Attack):
    with pytest.raises(ValueError, match="takes several threats itself; use it without random-of"):
        RandomOf(attack=attack)


@pytest.mark.parametrize("weights", [(1, 3), (2, 2), (0.5, 0.25)])
def test_weights_say_how_often_a_threat_is_chosen(weights: tuple[float, float]):
    x, y = (tensor.repeat(10, *[1] * (tensor.dim() - 1)) for tensor in images())
    attack = RandomOf(attack=Pgd(steps=1, step=1.0, start="zero"), weights=weights)
    share = float(in_l2_only(perturb(attack, network(), x, y, UNION, Rng(1)).x, x).float().mean())
    assert share == pytest.approx(weights[1] / sum(weights), abs=0.06)  # three standard deviations of 600


def test_equal_weights_choose_as_no_weights_do():
    x, y = images()
    plain, weighted = (
        perturb(RandomOf(attack=Pgd(steps=1), weights=weights), network(), x, y, UNION, Rng(1)).x
        for weights in (None, (3.0, 3.0))
    )
    assert torch.equal(plain, weighted)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1.0,), (1.0, 0.0), (1.0, -1.0)])
def test_weights_must_be_positive_and_one_for_every_threat(weights: tuple[float, ...]):
    with pytest.raises((ValidationError, RecipeError), match="weight"):
        HalfHalf(threat=UNION, attack=RandomOf(attack=Pgd(steps=1), weights=weights))
