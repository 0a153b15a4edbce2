"""FAB beside the public implementation, example by example, on an adversarially trained network."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allrounder.attacks.base import perturb
from allrounder.attacks.fab import Fab
from allrounder.attacks.pgd import Pgd
from allrounder.attacks.search.base import RoundInit, query_model
from allrounder.data.datasets.embedded import Embedded
from allrounder.models.small_cnn import SmallCnn
from allrounder.rng import Rng
from allrounder.threats.norms import NORMS
from allrounder.threats.threat import Threat
from allrounder.types import Passes

pytestmark = pytest.mark.slow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    public = pytest.importorskip(
        "pyautoattack.fab_pt",
        reason="pyautoattack, the public implementation to compare with, is not installed",
    )

IMAGES, STEPS, TARGETS = 100, 30, 3
NETWORKS = pytest.mark.parametrize("name", list(NORMS))


@pytest.fixture(scope="module")
def trained():
    """A network after an epoch of adversarial training, and test images that it gets right."""
    data, threat = Embedded().load(), Threat.parse("Linf:0.05")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = SmallCnn(width=8).build(10, (1, 28, 28))
        order = torch.randperm(4000)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for t, index in enumerate(order.split(50)):
        x, y = data.train.fetch(index), data.train.labels[index]
        x_adv = perturb(Pgd(steps=3, step=0.5), model, x, y, threat, Rng(t)).x
        optimiser.zero_grad()
        F.cross_entropy(model.train()(x_adv), y).backward()
        optimiser.step()
    model.eval().requires_grad_(False)
    x, y = data.test.fetch(torch.arange(300)), data.test.labels[:300]
    right = (model(x).argmax(1) == y).nonzero().squeeze(1)[:IMAGES]
    assert len(right) == IMAGES
    return model, x[right], y[right]


class Counted(nn.Module):
    """A network that counts what it is asked, in examples."""

    def __init__(self, model):
        super().__init__()
        self.model, self.forwards, self.backwards = model, 0, 0

    def forward(self, x):
        logits = self.model(x)
        self.forwards += len(x)
        if logits.requires_grad:
            self.backwards += len(x)
        return logits


def ours(search, model, x, y, threat):
    """The length of the shortest perturbation found for every image, and the passes it took."""
    best, natural, passes = torch.full((len(x),), float("inf")), model(x), Passes()
    for number in range(search.num_rounds(natural.shape[1])):
        state = search.begin(RoundInit(x, y, natural, threat, Rng(0).fold_in("round", number), number))
        while not search.is_finished(state).all():
            for gradient in search.needs_grad_cycle:
                answer = query_model(search, model, state, threat, gradient)
                state, passes = search.tell(state, answer, threat), passes + answer.passes
        best = torch.minimum(best, state["best_length"])
    return best, passes


@pytest.fixture(scope="module")
def theirs(trained):
    """The same by the public code, computed once for each norm, and its forward and backward passes."""
    model, x, y = trained

    @cache
    def find(name, targeted=True):
        counted, best = Counted(model), torch.full((len(x),), float("inf"))
        attack = public.FABAttack_PT(
            counted, norm=name, n_iter=STEPS, eps=1.0, device="cpu", targeted=targeted
        )
        for target in range(2, TARGETS + 2 if targeted else 3):
            attack.target_class = target
            result = attack.attack_single_run(x, y, is_targeted=targeted)
            length = NORMS[name]().length(result - x)
            best = torch.where(model(result).argmax(1) != y, torch.minimum(best, length), best)
        return best, counted.forwards / len(x), counted.backwards / len(x)

    return find


def budgets(best):
    """Budgets that break from a fifth to four fifths of the examples."""
    return [float(best.quantile(q)) for q in (0.2, 0.4, 0.6, 0.8)]


@NETWORKS
def test_fab_fools_the_same_examples_as_the_public_code(trained, theirs, name):
    model, x, y = trained
    mine, passes = ours(Fab(steps=STEPS, targets=TARGETS), model, x, y, Threat(NORMS[name](), "1"))
    other, forwards, backwards = theirs(name)
    print(
        f"\n{name}: {float((mine / other - 1).mean()):+.2%} mean length, median {float(mine.median()):.4g}; ",
        end="",
    )
    print(f"forward and backward passes {passes}, theirs {forwards:.0f} and {backwards:.0f}")
    assert passes == Passes(forwards=2 * STEPS * TARGETS, backwards=STEPS * TARGETS)
    assert passes.forwards <= 1.05 * forwards and passes.backwards <= 1.05 * backwards
    assert (mine / other).mean() <= 1.001 and (mine / other).median() <= 1.0001
    assert ((mine / other - 1).abs() <= 0.01).float().mean() >= 0.9
    for eps in budgets(other):
        broken, expected = mine <= eps * (1 + 1e-5), other <= eps
        assert int(broken.sum()) >= int(expected.sum())
        assert int((broken != expected).sum()) <= 2


@NETWORKS
def test_decisions_inside_a_budget_agree(trained, theirs, name):
    model, x, y = trained
    other, _, _ = theirs(name)
    threat = Threat(NORMS[name](), f"{float(other.median()):.6g}")
    result = perturb(Fab(steps=STEPS, targets=TARGETS), model, x, y, threat, Rng(0))
    assert result.fooled is not None
    attack = public.FABAttack_PT(
        model, norm=name, n_iter=STEPS, eps=threat.eps, device="cpu", targeted=True, n_target_classes=TARGETS
    )
    broken = model(attack.perturb(x, y)).argmax(1) != y
    assert int(result.fooled.sum()) >= int(broken.sum())
    assert int((result.fooled != broken).sum()) <= 2


@NETWORKS
def test_the_untargeted_form_agrees_with_the_public_one(trained, theirs, name):
    model, x, y = trained
    mine, _ = ours(Fab(steps=STEPS, targets=0), model, x, y, Threat(NORMS[name](), "1"))
    other, _, _ = theirs(name, targeted=False)
    both = mine.isfinite() & other.isfinite()  # a search that finds nothing returns an infinite length
    ratios = (mine / other)[both]
    print(f"\n{name}: {float((ratios - 1).mean()):+.2%} mean length, {int((~both).sum())} not found")
    assert int(mine.isfinite().sum()) >= int(other.isfinite().sum()) - 1 and int(both.sum()) >= len(x) - 3
    assert ratios.mean() <= 1.005 and ratios.median() <= 1.0001
