"""Soft targets that teachers add to an objective."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from allrounder.config.fields import OneOf
from allrounder.config.schedules import Linear
from allrounder.config.time import Clock, Time
from allrounder.objectives import OBJECTIVES, Adversarial, HalfHalf, Iat, Natural, Objective, Taught
from allrounder.objectives.taught import Teacher, distillation
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Loss, Passes
from tests.reference import taught as reference
from tests.support.networks import Tiny, blobs, same

CLOCK = Clock(epochs=10, steps_per_epoch=4, pace="step")
LINF = Threat.parse("Linf:0.1")
DATA = blobs(train=12, test=6)
RAMP = Linear(at=(Time.parse(0), Time.parse("100%")), to=(0.0, 1.0))


def network(seed: int = 0) -> nn.Module:
    with Rng(seed).seed_global():
        return Tiny().double().train()


def batch() -> Batch:
    index = torch.arange(12)
    return Batch(DATA.train.fetch(index).double(), DATA.train.labels[index], index)


def teachers() -> dict[str, nn.Module]:
    return {"natural": network(1).eval(), "global": network(2).eval()}


def step(objective: Objective, model: nn.Module, t: int) -> Loss:
    ctx = Context(t, CLOCK, Rng(0), objective.memory(), teachers())
    crafted = objective.craft(model, batch(), ctx)
    return objective.loss(model.train(), batch(), crafted, ctx)


def taught(base: Objective, **fields: Any) -> Taught:
    return Taught(base=base, natural=Teacher(teacher="natural", weight=0.7, temperature=2.0), **fields)


@pytest.mark.parametrize("t", [4, 30, 40])
def test_the_loss_equals_the_literal_reference(t: int):
    base = HalfHalf(threat=LINF)
    both = taught(base, adversarial=Teacher(teacher="global", weight=0.5), ramp=RAMP)
    crafted = base.craft(network(), batch(), Context(t, CLOCK, Rng(0), {}))
    assert crafted is not None
    lessons = [
        {
            "teacher": teachers()[name](x).tolist(),
            "student": network()(x).tolist(),
            "weight": weight,
            "temperature": temperature,
        }
        for name, x, weight, temperature in (
            ("natural", batch().x, 0.7, 2.0),
            ("global", crafted.x, 0.5, 1.0),
        )
    ]
    expected = reference.taught_loss(step(base, network(), t).total.item(), t / 40, lessons)
    loss = step(both, network(), t)
    assert loss.total.item() == pytest.approx(expected, rel=1e-12)
    assert float(loss.parts["taught_natural"]) == pytest.approx(
        reference.soft_target_loss(lessons[0]["teacher"], lessons[0]["student"], 2.0)
    )


def test_where_the_ramp_is_zero_it_is_the_base_bit_for_bit():
    """Also where the base does not return logits, so that another pass would move batch-norm."""
    base = Iat(threat=LINF)
    off = taught(base, ramp=Linear(at=(Time.parse(1), Time.parse(2)), to=(0.0, 1.0)))
    one, other = network(), network()
    assert torch.equal(step(base, one, 1).total, step(off, other, 1).total)
    assert same(one.state_dict(), other.state_dict())
    assert not torch.equal(step(base, one, 9).total, step(off, other, 9).total)


def test_no_gradient_reaches_a_teacher_and_it_does_not_change():
    objective, model, ctx_teachers = taught(Natural()), network(), teachers()
    before = {name: copy.deepcopy(teacher.state_dict()) for name, teacher in ctx_teachers.items()}
    loss = objective.loss(model, batch(), None, Context(1, CLOCK, Rng(0), {}, ctx_teachers))
    loss.total.backward()
    assert all(p.grad is None for teacher in ctx_teachers.values() for p in teacher.parameters())
    assert all(same(before[name], teacher.state_dict()) for name, teacher in ctx_teachers.items())
    assert all(p.grad is not None for p in model.parameters())


def test_the_squared_temperature_keeps_the_scale_of_the_gradient():
    """At high temperatures it tends to the squared difference of centred logits, without T."""
    teacher, student = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)).double()
    centred = [z - z.mean(1, keepdim=True) for z in (teacher, student)]
    limit = (centred[0] - centred[1]).square().sum(1).mean() / (2 * 3)
    assert torch.allclose(distillation(teacher, student, 1e4), limit, rtol=1e-3)
    assert distillation(teacher, teacher, 2.0) == 0


def test_passes_of_the_learner_are_counted_only_where_the_base_returns_no_logits():
    both: dict[str, Any] = {"adversarial": Teacher(teacher="global")}
    assert taught(Natural()).loss_passes() == Passes(2, 1)
    assert taught(HalfHalf(threat=LINF), **both).loss_passes() == Passes(4, 2)
    assert taught(Adversarial(threat=LINF), **both).loss_passes() == Passes(4, 2)
    assert taught(Iat(threat=LINF), **both).loss_passes() == Passes(6, 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"base": "natural"}, "give a teacher on natural or on adversarial images"),
        ({"base": "natural", "adversarial": {"teacher": "global"}}, "the base crafts no images to teach on"),
        (
            {"base": {"kind": "half-half", "threat": "Linf:0.1", "beta": 0}, "adversarial": {"teacher": "a"}},
            "the base crafts no images",
        ),
        (
            {"base": "natural", "natural": {"teacher": "a"}, "ramp": 2.0},
            r"expected shares in \[0, 1\], got 2",
        ),
        ({"base": "natural", "natural": {"teacher": "a", "weight": 0.0}}, "greater than 0"),
        ({"base": {"kind": "taught", "base": "natural"}}, 'unknown kind "taught"'),
    ],
)
def test_a_lesson_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        OneOf(lambda: OBJECTIVES).decode({"kind": "taught", **fields})


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"refresh": Time.parse(10)}, "refresh", "is 10, so teachers keep their initial weights"),
        (
            {"ramp": Linear(at=(Time.parse(9), Time.parse("50%")), to=(0.0, 1.0))},
            "ramp",
            "ascending order, got 9 before 50%, of 10 epochs",
        ),
    ],
)
def test_times_that_do_not_fit_the_run_are_problems(fields: dict[str, Any], field: str, message: str):
    ((place, text),) = taught(Natural(), **fields).problems(10)
    assert place == field and message in text
    assert taught(Natural()).problems(10) == []
