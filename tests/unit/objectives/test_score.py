from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from allrounder.attacks import Pgd
from allrounder.objectives import Score
from allrounder.objectives.score import clip_constant
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Passes
from tests.support.steps import NATURAL, ROBUST, batch, context, loss_with_logits, network

THREAT = Threat.parse("Linf:0.1")


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Squared, by loops."""
    return torch.stack([sum((a[i, k] - b[i, k]) ** 2 for k in range(a.shape[1])) for i in range(len(a))])  # pyright: ignore[reportArgumentType, reportCallIssue]


def terms(given: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """||p - e_y||^2, ||q - e_y||^2, ||q - p||^2 of every example."""
    p, q, e = NATURAL.softmax(1), ROBUST.softmax(1), given.targets(3)
    return distance(p, e), distance(q, e), distance(q, p)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_trades_lse_is_the_error_of_natural_images_and_the_weighted_drift(smoothing: float):
    given = replace(batch(4, smoothing), x=batch(4).x.double())
    loss, model = loss_with_logits(Score(threat=THREAT, beta=4), ROBUST, NATURAL, given=given)
    natural, _, drift = terms(given)
    assert torch.allclose(loss.total, (natural + 4 * drift).mean(), rtol=1e-12)
    crafted, natural = model.seen
    assert torch.equal(natural, given.x) and not torch.equal(crafted, given.x), "crafted first"


def test_pgd_lse_is_the_error_of_crafted_images():
    given = replace(batch(4), x=batch(4).x.double())
    loss, model = loss_with_logits(Score(threat=THREAT, variant="pgd-lse"), ROBUST, given=given)
    assert torch.allclose(loss.total, terms(given)[1].mean(), rtol=1e-12)
    assert len(model.seen) == 1 and not torch.equal(model.seen[0], given.x)


def test_the_gradient_flows_through_both_predictions():
    natural, robust = (z.clone().requires_grad_() for z in (NATURAL, ROBUST))
    loss, _ = loss_with_logits(Score(threat=THREAT, beta=2), robust, natural)
    p, q, e = natural.softmax(1), robust.softmax(1), torch.eye(3, dtype=torch.float64)[batch(4).y]
    expected = (distance(p, e) + 2 * distance(q, p)).mean()
    ours, theirs = (torch.autograd.grad(total, (natural, robust)) for total in (loss.total, expected))
    assert all(torch.allclose(a, b) and bool(a.any()) for a, b in zip(ours, theirs, strict=True))


def test_what_clipping_allows_are_the_published_numbers():
    assert clip_constant(0.4, 10) == pytest.approx(0.17778, abs=5e-6)
    assert clip_constant(0.3, 10) == pytest.approx(0.1)
    unsure = torch.tensor([[0.6, *[0.4 / 9] * 9]], dtype=torch.float64)
    assert clip_constant(0.4, 10) == pytest.approx(
        float(distance(unsure, torch.eye(10, dtype=torch.float64)[:1]))
    )


@pytest.mark.parametrize("clips", ["all", "robust"])
def test_clipping_forgives_each_image_the_same_error(clips: Any):
    given = replace(batch(4), x=batch(4).x.double())
    natural, robust, drift = terms(given)
    free = 0.6**2 * 3 / 2
    loss, _ = loss_with_logits(
        Score(threat=THREAT, beta=2, clip=0.6, clips=clips), ROBUST, NATURAL, given=given
    )
    by_hand = {
        "all": (natural + 2 * drift - free).clamp(min=0),
        "robust": natural + 2 * (drift - free).clamp(min=0),
    }
    assert torch.allclose(loss.total, by_hand[clips].mean(), rtol=1e-12)
    assert bool((drift < free).any()) and bool((drift > free).any())
    alone, _ = loss_with_logits(
        Score(threat=THREAT, variant="pgd-lse", clip=0.6, clips=clips), ROBUST, given=given
    )
    assert torch.allclose(alone.total, (robust - free).clamp(min=0).mean(), rtol=1e-12)


def test_each_variant_searches_as_released():
    drift, error = Score(threat=THREAT), Score(threat=THREAT, variant="pgd-lse")
    assert drift.effective_attack == Pgd(steps=10, step=0.25, loss="lse-drift", start="gaussian")
    assert error.effective_attack == Pgd(steps=10, step=0.25, loss="lse", start="random")
    assert (drift.passes(), error.passes()) == (Passes(13, 12), Passes(11, 11))
    given = Pgd(steps=2, loss="lse")
    assert Score(threat=THREAT, attack=given).effective_attack == given


@pytest.mark.parametrize(("variant", "moves"), [("trades-lse", False), ("pgd-lse", True)])
def test_the_running_statistics_move_while_crafting_as_in_the_released_variant(variant: Any, moves: bool):
    for layers, expected in ((None, moves), ("train_frozen", False)):
        model = network()
        Score(threat=THREAT, variant=variant, norm_layers=layers).craft(model, batch(), context())  # pyright: ignore[reportArgumentType]
        assert bool(model.get_buffer("bn.num_batches_tracked")) == expected


@pytest.mark.parametrize("loss", ["kl", "lse-drift"])
def test_a_search_for_drift_must_start_beside_the_image(loss: Any):
    with pytest.raises(ValueError, match=f"the loss {loss} is flat at the image itself"):
        Pgd(loss=loss, start="zero")


def test_a_clip_beyond_certainty_is_refused():
    with pytest.raises(ValueError, match="less than or equal to 1"):
        Score(threat=THREAT, clip=1.1)
