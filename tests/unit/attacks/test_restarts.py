from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from allrounder.attacks import Attack, AttackResult, Pgd, Restarts, perturb
from allrounder.errors import ThreatError
from allrounder.rng import Rng
from allrounder.threats.norms import ALL_NORMS, Linf
from allrounder.threats.threat import Threat
from allrounder.types import Passes
from tests.unit.attacks.test_pgd import batch, network

L2_HALF = Threat.parse("L2:1/2")


class Scripted(Attack):
    """Returns prepared results, one after the other."""

    norms = ALL_NORMS

    def __init__(self, *results):
        self.results = list(results)
        self.rng = []

    def __repr__(self):
        return "Scripted"

    def run(self, model, x, y, threat, rng):
        self.rng.append(rng.path)
        return self.results.pop(0)


def restarts(attack, count):
    """Around an attack that no table knows."""
    wrapped = Restarts(attack=Pgd(), count=count)
    object.__setattr__(wrapped, "attack", attack)
    return wrapped


def result(value, loss, fooled):
    x = torch.full((3, 1, 2, 2), value)
    return AttackResult(x=x, passes=Passes(1, 1), loss=torch.tensor(loss), fooled=torch.tensor(fooled))


def test_restarts_keep_the_first_that_fools_else_the_highest_loss():
    attack = Scripted(
        result(0.1, [5.0, 1.0, 1.0], [True, False, False]),
        result(0.2, [9.0, 0.5, 3.0], [True, True, False]),
        result(0.3, [9.0, 9.0, 2.0], [True, True, False]),
    )
    x, y = torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.long)
    best_result = restarts(attack, 3).run(lambda x: x, x, y, Threat.parse("Linf:1"), Rng(0, ("a",)))
    assert best_result.x[:, 0, 0, 0].tolist() == pytest.approx([0.1, 0.2, 0.2])
    assert best_result.loss is not None and best_result.loss.tolist() == [5.0, 0.5, 3.0]
    assert best_result.fooled is not None and best_result.fooled.tolist() == [True, True, False]
    assert best_result.passes == Passes(3, 3)
    assert attack.rng == [("a", "restart", i) for i in range(3)]


def test_restarts_work_where_their_attack_works():
    attack = Scripted()
    attack.norms = frozenset({Linf})  # pyright: ignore[reportAttributeAccessIssue]
    restarts(attack, 2).check_supports(Threat.parse("Linf:1"))
    with pytest.raises(ValueError, match="Scripted works in Linf, got the threat L2:1"):
        restarts(attack, 2).check_supports(Threat.parse("L2:1"))


def test_restarts_do_not_hide_nan():
    x, y = batch()
    with pytest.raises(ThreatError, match="3 of 3 images with NaN"):
        perturb(
            Restarts(attack=Pgd(), count=2), lambda x: x.flatten(1) * float("nan"), x, y * 0, L2_HALF, Rng(0)
        )


def test_restarts_stop_once_everything_is_fooled():
    attack = Scripted(result(0.1, [1.0] * 3, [True] * 3))
    x, y = torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.long)
    best_result = restarts(attack, 9).run(lambda x: x, x, y, Threat.parse("Linf:1"), Rng(0))
    assert best_result.passes == Passes(1, 1)


def test_restarts_compare_by_cross_entropy_if_the_attack_reports_no_loss():
    model, (x, y) = network(), batch()
    y = model(x).argmax(1)
    best_result = Restarts(attack=Pgd(steps=1, step=1e-3), count=4).run(
        model, x, y, Threat.parse("L2:1/100"), Rng(0)
    )
    assert best_result.passes == Passes(8, 4)
    torch.testing.assert_close(best_result.loss, F.cross_entropy(model(best_result.x), y, reduction="none"))
    single = [
        Pgd(steps=1, step=1e-3).run(model, x, y, Threat.parse("L2:1/100"), Rng(0).fold_in("restart", i))
        for i in range(4)
    ]
    best = torch.stack([F.cross_entropy(model(s.x), y, reduction="none") for s in single]).amax(0)
    torch.testing.assert_close(best_result.loss, best)
