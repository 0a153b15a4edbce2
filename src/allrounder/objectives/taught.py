"""Learners that teach: soft targets from other learners of the same run, added to any objective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from allrounder.attacks.base import AttackResult
from allrounder.attacks.losses import kl
from allrounder.config.fields import OneOf, PositiveFloat, frozen_config, raise_field_errors
from allrounder.config.schedules import Constant, ShareCurve, order_problem
from allrounder.config.time import Clock, Duration, Time
from allrounder.objectives.base import Objective
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, ImageKind, Images, Logits, Loss, Passes


def _bases() -> Mapping[str, type[Objective]]:
    """Return the objectives that can be taught: all but this one."""
    from allrounder.objectives import OBJECTIVES

    return {kind: cls for kind, cls in OBJECTIVES.items() if cls is not Taught}


@final
@frozen_config
class Teacher:
    """Who teaches on one kind of images, and how much."""

    teacher: str
    """The name of a learner, which teaches by the weights that it gives to the mix: its average, or its
    weights if it keeps none; "global" for the global weights. A learner may name itself if it has an
    average."""
    weight: PositiveFloat = 1.0
    """The weight of the divergence in the loss."""
    temperature: PositiveFloat = 1.0
    """What the logits of both networks are divided by; higher ones compare small probabilities, too."""


@final
@frozen_config
class Taught(Objective):
    """Learners that teach: loss = base + ramp sum_i w_i T_i^2 mean KL(p_i(z; T_i) || p(z; T_i)).

    p(z; T) is the softmax of the logits over T at images z, and p_i that of teacher i, which is frozen, in
    eval mode, and sees the same images z: natural ones, or those that the base crafts. Teachers are other
    learners of the run, its global weights, or the learner's own average. They start at the initial weights
    and get new ones at every `refresh`, after validation and before an exchange. The base's loss keeps its
    full weight. Where the ramp is 0, this is the base bit for bit.
    Hinton, Vinyals and Dean, 2015, Distilling the knowledge in a neural network: soft targets, and T^2. A
    natural teacher on natural images and a robust one on adversarial images: Zhao et al., 2022, Enhanced
    accuracy and robustness via multi-teacher adversarial distillation. In Goldblum et al., 2020,
    Adversarially robust distillation, the teacher of adversarial images sees the natural ones.
    """

    reference: ClassVar[str] = "Hinton et al., 2015"

    base: Annotated[Objective, OneOf(_bases)]
    """The objective that soft targets are added to; it crafts the images."""
    natural: Teacher | None = None
    """The teacher on natural images."""
    adversarial: Teacher | None = None
    """The teacher on the images that the base crafts."""
    ramp: ShareCurve = Constant(value=1.0)
    """The factor of both weights over time, in [0, 1]; the first teachers know nothing yet."""
    refresh: Duration = Time.parse("5%")
    """The time between two updates of the teachers' weights."""

    def __post_init__(self) -> None:
        problems: list[tuple[tuple[str], str]] = []
        if not self.teachers():
            problems.append((("natural",), "missing; give a teacher on natural or on adversarial images"))
        if self.adversarial is not None and self.base.num_crafted == 0:
            problems.append((("adversarial",), "the base crafts no images to teach on; remove this teacher"))
        raise_field_errors(self, problems)

    @property
    @override
    def core(self) -> Objective:
        return self.base

    @property
    @override
    def num_crafted(self) -> int:
        return self.base.num_crafted

    @override
    def needs_whole_batch(self) -> bool:
        return self.base.needs_whole_batch()

    @override
    def threats(self) -> tuple[Threat, ...]:
        return self.base.threats()

    @override
    def craft_passes(self) -> Passes:
        return self.base.craft_passes()

    def loss_passes(self) -> Passes:
        """Those of the base, one forward of every teacher on its images, and a forward and a backward of the
        learner on images whose logits the base does not return."""
        passes = self.base.loss_passes()
        for kind in self._teachers():
            count = 1 if kind == "natural" else self.num_crafted
            known = kind in self.base.logit_kinds()
            passes += (Passes(1, 0) if known else Passes(2, 1)) * count
        return passes

    @override
    def logit_kinds(self) -> frozenset[ImageKind]:
        return self.base.logit_kinds()

    @override
    def teachers(self) -> dict[str, str]:
        return {kind: teacher.teacher for kind, teacher in self._teachers().items()}

    @override
    def refresh_period(self, clock: Clock) -> int:
        return max(self.refresh.to_steps(clock), 1)

    def problems(self, epochs: int) -> list[tuple[str, str]]:
        """Those of the base, times of the ramp that are not in order, and teachers that never change."""
        problems = [("base", f"{field} {message}") for field, message in self.base.problems(epochs)]
        if disorder := order_problem(pairwise(self.ramp.knot_times()), epochs):
            problems.append(("ramp", f"{disorder}, of {epochs} epochs"))
        if self.refresh.to_epochs(epochs) >= epochs:
            got = f"is {self.refresh}, so teachers keep their initial weights in a run of {epochs} epochs"
            problems.append(("refresh", f"{got}; make it shorter"))
        return problems

    @override
    def problem_without_extra(self) -> tuple[str, str] | None:
        problem = self.base.problem_without_extra()
        return None if problem is None else ("base", " ".join(problem))

    @override
    def memory(self) -> dict[str, Tensor]:
        return self.base.memory()

    @override
    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> AttackResult | None:
        return self.base.craft(model, batch, ctx)

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """The base's loss, and the weighted divergences from all teachers."""
        base = self.base.loss(model, batch, crafted, ctx)
        ramp = self.ramp(ctx.clock.schedule_step(ctx.t), ctx.clock)
        if ramp == 0:
            return base
        total, parts = base.total, dict(base.parts)
        for kind, teacher, x in self._lessons(batch, crafted):
            logits = base.logits[kind] if kind in self.base.logit_kinds() else model(x)
            with torch.no_grad():
                targets = ctx.teachers[teacher.teacher](x)
            divergence = distillation(targets, logits, teacher.temperature)
            total = total + ramp * teacher.weight * divergence
            parts[f"taught_{kind}"] = divergence.detach()
        return Loss(total, parts, base.logits)

    def _teachers(self) -> dict[ImageKind, Teacher]:
        teachers: dict[ImageKind, Teacher | None] = {
            "natural": self.natural,
            "adversarial": self.adversarial,
        }
        return {kind: teacher for kind, teacher in teachers.items() if teacher is not None}

    def _lessons(
        self, batch: Batch, crafted: AttackResult | None
    ) -> Iterator[tuple[ImageKind, Teacher, Images]]:
        """Yield every teacher with its kind of images and the images."""
        for kind, teacher in self._teachers().items():
            if kind == "natural":
                yield kind, teacher, batch.x
            else:
                assert crafted is not None
                yield kind, teacher, crafted.x


def distillation(teacher: Logits, learner: Logits, temperature: float) -> Tensor:
    """T^2 mean KL(softmax(teacher / T) || softmax(learner / T)): T^2 keeps the scale of its gradient."""
    return temperature**2 * kl(teacher / temperature, learner / temperature).mean()
