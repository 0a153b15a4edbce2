"""Regrets from logs, on quadratic losses whose sums have closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from allrounder.report.regret import Regret, exchange_jumps, global_regret, learner_regret, trade_off_regret

RATE, STEPS = 0.1, 40


def descend(name: str, start: float, centre: float) -> list[dict[str, Any]]:
    """The log of gradient descent on 1/2 (theta - centre)^2, one step an epoch."""
    theta = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    events: list[dict[str, Any]] = []
    for t in range(1, STEPS + 1):
        loss = (theta - centre).square() / 2
        (grad,) = torch.autograd.grad(loss, theta)
        events.append({"event": "epoch", "t": t, "epoch": t, "learner": name, "loss": float(loss.detach())})
        theta = (theta - RATE * grad).detach().requires_grad_()
    return events


def quadratic_regret(distance: float) -> float:
    """sum_t 1/2 d^2 q^t with q = (1 - rate)^2: a geometric series."""
    q = (1 - RATE) ** 2
    return distance**2 / 2 * (1 - q**STEPS) / (1 - q)


def test_the_regret_of_gradient_descent_on_a_quadratic_is_a_geometric_series():
    events = [*descend("a", 3.0, 1.0), *descend("b", 3.0, -4.0)]
    regret = trade_off_regret(events, ["a", "b"], infima={"a": 0.0, "b": 0.0})
    assert [one.total for one in regret.learners] == pytest.approx([quadratic_regret(2), quadratic_regret(7)])
    assert regret.total == pytest.approx((quadratic_regret(2) + quadratic_regret(7)) / 2)
    assert regret.per_step == pytest.approx(regret.total / STEPS)
    assert regret.over_time()[-1] == pytest.approx(regret.total)


def test_the_best_own_epoch_gives_a_smaller_regret_than_the_true_infimum():
    events = descend("a", 3.0, 1.0)
    own = learner_regret(events, "a")
    assert own.infimum == min(own.losses) > 0
    assert own.total == pytest.approx(quadratic_regret(2) - STEPS * own.infimum)
    assert learner_regret(events, "a", infimum=99.0) == own, "a worse solo run changes nothing"


def test_epochs_count_by_their_steps():
    regret = Regret("a", (10, 15), (0.5, 0.2), 0.1)
    assert regret.steps == (10, 5) and regret.over_time() == pytest.approx((4.0, 4.5))
    assert regret.per_step == pytest.approx(0.3)


def test_the_error_is_one_minus_the_accuracy():
    accuracies = {1: 0.5, 2: 0.75}
    events = [
        {"event": "epoch", "t": 10 * e, "epoch": e, "learner": "a", "loss": 9.0, "accuracy": accuracy}
        for e, accuracy in accuracies.items()
    ]
    assert learner_regret(events, "a", "error").total == 2.5


def validation(t: int, natural: float, robust: float) -> dict[str, Any]:
    accuracies = {"natural": natural, "robust": {"Linf:0.1": robust}}
    return {"event": "validation", "t": t, "epoch": t, **accuracies}


def test_the_global_regret_is_the_mean_error_of_all_tasks_at_validations():
    events = [validation(4, 0.5, 0.25), validation(8, 0.75, 0.5)]
    regret = global_regret(events, [(), ("Linf:0.1",)])
    assert regret is not None and regret.losses == (0.625, 0.375)
    assert regret.total == 4 * 0.25
    assert global_regret(events, [("L2:1",)]) is None, "no validation measures this threat"
    assert global_regret([], [()]) is None


def test_the_slice_of_training_images_is_preferred_to_validation_images():
    event = validation(4, 0.5, 0.25) | {"train": {"natural": 1.0, "robust": {"Linf:0.1": 1.0}}}
    regret = global_regret([event], [()])
    assert regret is not None and regret.losses == (0.0,)


def test_r_bar_may_exceed_r_t_so_equation_24_is_no_theorem():
    # l_a = 1/2 (theta - c_a)^2 with c = (0, 1). Learners that stay at their own optimum have no regret, but
    # with shares (1, 0) the global weights stay at c_1, and the best fixed weights are in the middle.
    centres, theta_g = (0.0, 1.0), 0.0
    learners = [
        {"event": "epoch", "t": 10, "epoch": 1, "learner": name, "loss": 0.0} for name in ("first", "second")
    ]
    r_t = trade_off_regret(learners, ["first", "second"], infima={"first": 0.0, "second": 0.0}).total
    mean_loss, best = (sum((theta - c) ** 2 / 4 for c in centres) for theta in (theta_g, 0.5))
    r_bar = Regret("global", (10,), (mean_loss,), best).total
    assert r_t == 0 and r_bar == pytest.approx(10 / 8)
    transfer = 10 * mean_loss  # sum_t mean_a (l_a(theta_g) - l_a(theta_a)), where l_a(theta_a) = 0
    assert r_bar <= r_t + transfer, "what survives"


def test_jumps_compare_epochs_with_an_exchange_to_later_ones_without():
    losses = {1: 9.0, 2: 2.0, 3: 3.0, 4: 2.5, 5: 3.25}
    jumps = exchange_jumps(losses, {2, 4})
    assert (jumps.across, jumps.elsewhere, jumps.num_across) == (0.875, -0.5, 2)
    none = exchange_jumps(losses, set())
    assert math.isnan(none.across) and none.num_across == 0
    assert math.isnan(exchange_jumps(losses, {1, 2, 3, 4}).elsewhere)
