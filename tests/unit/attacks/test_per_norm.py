"""One attack per norm: which one runs, what it costs, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from allrounder.attacks import PerNorm, Pgd, WorstOf, perturb
from allrounder.objectives import Adversarial
from allrounder.objectives.average import Average
from allrounder.rng import Rng
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Passes

LINF, L2, L1 = (Threat.parse(text) for text in ("Linf:0.1", "L2:1", "L1:3"))
BOTH = PerNorm(linf=Pgd(steps=2), l2=Pgd(steps=5, loss="margin", start="boundary"))


@pytest.fixture
def model() -> nn.Module:
    with Rng(0).seed_global():
        return nn.Sequential(nn.Flatten(), nn.Linear(48, 4))


@pytest.mark.parametrize(("threat", "attack"), [(LINF, BOTH.linf), (L2, BOTH.l2)])
def test_it_runs_the_attack_of_the_norm_with_the_same_random_numbers(
    model: nn.Module, threat: Threat, attack: Pgd
):
    x, y = torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 4
    ours, theirs = (perturb(kind, model, x, y, threat, Rng(7)) for kind in (BOTH, attack))
    assert torch.equal(ours.x, theirs.x) and ours.passes == theirs.passes


def test_its_cost_is_that_of_the_attacks_of_the_threats():
    assert BOTH.passes() == Passes(5, 5)
    assert Average(against=(LINF, L2), attack=BOTH).craft_passes() == Passes(7, 7)
    worst = Adversarial(threat=AnyOf((LINF, L2)), attack=WorstOf(attack=BOTH))
    assert worst.craft_passes() == Passes(9, 7)


def test_norms_without_an_attack_and_unions_are_refused():
    with pytest.raises(ValueError, match="has no attack in L1; set its field l1"):
        BOTH.check_supports(L1)
    with pytest.raises(ValueError, match="put it into worst-of"):
        BOTH.check_supports(AnyOf((LINF, L2)))
    with pytest.raises(ValueError, match="expected at least one of linf, l2 and l1"):
        PerNorm()
