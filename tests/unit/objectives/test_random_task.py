"""random-task: every image of a batch trains one task, natural or one threat."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import nn

from allrounder.attacks import Attack, Msd, Pgd, RandomOf, perturb
from allrounder.config.time import Clock
from allrounder.objectives import Adversarial, RandomTask
from allrounder.rng import Rng
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Batch, Context, Passes
from tests.support.networks import Tiny, blobs

LINF, L2 = Threat.parse("Linf:0.1"), Threat.parse("L2:0.5")
UNION = AnyOf((LINF, L2))
PGD = Pgd(steps=4)
DATA = blobs().train


def network() -> nn.Module:
    with Rng(0).seed_global():
        return Tiny().double()


def batch(rows: range = range(60)) -> Batch:
    index = torch.tensor(rows)
    return Batch(DATA.fetch(index).double(), DATA.labels[index], index)


def context(rng: Rng) -> Context:
    return Context(1, Clock(epochs=2, steps_per_epoch=5), rng, {})


def is_natural(objective: RandomTask, given: Batch, rng: Rng) -> torch.Tensor:
    crafted = objective.craft(network(), given, context(rng))
    return (crafted.x == given.x).flatten(1).all(dim=1)


@pytest.mark.parametrize(("share", "natural"), [(0.0, 0), (0.1, 6), (0.2, 12), (0.5, 30), (0.9, 54)])
def test_the_natural_share_of_the_images_is_exact_and_evenly_spaced(share: float, natural: int):
    objective = RandomTask(threat=LINF, natural_share=share, attack=PGD)
    stays = is_natural(objective, batch(), Rng(1))
    assert int(stays.sum()) == natural
    for tenth in stays.view(6, 10):
        assert int(tenth.sum()) == natural // 6


def test_attacked_images_are_those_of_the_attack_and_the_loss_is_one_pass_over_all():
    objective = RandomTask(threat=LINF, natural_share=0.5, attack=PGD)
    given, rng = batch(), Rng(1).fold_in("task", 1)
    crafted = objective.craft(network(), given, context(rng))
    attacked = torch.arange(1, 60, 2)
    part_rng = rng.fold_in("attack").for_shard(range(60), 60).select(attacked)
    expected = given.x.clone()
    expected[attacked] = perturb(PGD, network(), given.x[attacked], given.y[attacked], LINF, part_rng).x
    assert torch.equal(crafted.x, expected)
    model = network().train()
    loss = objective.loss(model, given, crafted, context(rng))
    assert torch.equal(loss.total, F.cross_entropy(network().train()(expected), given.y))


def test_without_a_natural_share_it_is_adversarial_training_bit_for_bit():
    given, ctx = batch(), context(Rng(1))
    crafted = RandomTask(threat=LINF, natural_share=0, attack=PGD).craft(network(), given, ctx)
    adversarial = Adversarial(threat=LINF, attack=PGD).craft(network(), given, ctx)
    assert adversarial is not None and torch.equal(crafted.x, adversarial.x)


def test_each_attacked_image_has_one_of_several_threats():
    objective = RandomTask(threat=UNION, natural_share=0.2, attack=RandomOf(attack=PGD))
    given = batch()
    crafted = objective.craft(network(), given, context(Rng(1))).x
    beyond_linf = ~LINF.contains(given.x, crafted)
    assert bool((LINF.contains(given.x, crafted) | L2.contains(given.x, crafted)).all())
    assert 12 < int(beyond_linf.sum()) < 36
    assert objective.threats() == (LINF, L2)


@pytest.mark.parametrize("attack", [RandomOf(attack=PGD), Msd(steps=4)])
def test_ranks_that_share_a_batch_craft_the_images_of_one_process(attack: Attack):
    union = AnyOf((LINF, Threat.parse("L1:2"))) if isinstance(attack, Msd) else UNION
    objective = RandomTask(threat=union, natural_share=0.3, attack=attack)
    whole = objective.craft(network(), batch(), context(Rng(1))).x
    parts = [
        objective.craft(network(), batch(rows), context(Rng(1).for_shard(rows, 60))).x
        for rows in (range(25), range(25, 26), range(26, 28), range(28, 60))
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-9)


def test_a_part_without_attacked_images_stays_natural():
    objective = RandomTask(threat=LINF, natural_share=0.5, attack=PGD)
    ctx = context(Rng(1).for_shard(range(2, 3), 60))
    crafted = objective.craft(network(), batch(range(2, 3)), ctx)
    assert torch.equal(crafted.x, batch(range(2, 3)).x) and crafted.passes == Passes()


@pytest.mark.parametrize(
    ("share", "passes"),
    [(0.0, Passes(11, 11)), (0.2, Passes(9, 9)), (0.5, Passes(6, 6)), (0.9, Passes(2, 2))],
)
def test_natural_images_save_the_passes_of_the_attack(share: float, passes: Passes):
    assert RandomTask(threat=LINF, natural_share=share).passes() == passes


def test_at_least_every_tenth_image_is_attacked():
    with pytest.raises(ValidationError, match=r"less than or equal to 0\.9"):
        RandomTask(threat=LINF, natural_share=0.99)


def test_an_attack_that_cannot_search_a_union_is_refused():
    with pytest.raises(ValidationError, match="searches one ball, got the union"):
        RandomTask(threat=UNION, attack=PGD)
