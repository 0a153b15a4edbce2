"""Pipelines, which are methods of several trainings: their stages, and how the results become one network.

This module holds values only; `allrounder.training.pipelines` runs them. A recipe's own fields describe the
last stage of its pipeline.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar, Literal, final

from pydantic import Field

from allrounder.config.fields import FiniteFloat, NonEmpty, PositiveFloat, PositiveInt, Ratio, frozen_config
from allrounder.config.time import Time
from allrounder.data.datasets.npz import InMemory
from allrounder.data.extra import Extra
from allrounder.nn.mixing.chosen import simplex_grid
from allrounder.optim.mode_curve import ModeCurve
from allrounder.recipe.init import FromStages
from allrounder.recipe.mix import Mix
from allrounder.recipe.task import NAME_PATTERN, Task
from allrounder.recipe.validation import Validation
from allrounder.threats.threat import Threat

Problems = list[tuple[tuple[str | int, ...], str]]
"""The paths of fields, and what is wrong with them."""
Tasks = tuple[Task, ...]
StageOverrides = list[tuple[str, dict[str, Any]]]
"""The stages of a pipeline in order, each with the fields in which it differs from the recipe."""
Which = Literal["last", "best"]
CURVE_STAGE, FINAL_STAGE = "curve", "final"
"""The names of the last stages."""


@final
@frozen_config
class Stage:
    """A training before the last one. Everything that it does not set is as in the recipe."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """The name of its folder, below `stages` in the run folder."""
    tasks: Annotated[Tasks, NonEmpty, Field(alias="task")]
    mix: Mix | None = None
    length: Annotated[Ratio, Field(gt=0)] = 1.0
    """Its epochs as a multiple of the recipe's, so that a shortened recipe has shortened stages."""
    threats: tuple[Threat, ...] | None = None
    """The threats that its best weights are selected by, instead of `validation.threats`."""

    def overrides(self, epochs: int, validation: Validation) -> tuple[str, dict[str, Any]]:
        """Return the name of the stage, and the fields in which it differs from the recipe."""
        if self.threats is not None:
            validation = replace(validation, threats=self.threats)
        epochs = max(1, int(self.length * epochs + 0.5))
        return self.name, {"tasks": self.tasks, "mix": self.mix, "epochs": epochs, "validation": validation}


class Pipeline(ABC):
    """Several trainings that result in one network."""

    reference: ClassVar[str]
    """Authors and year, for lists."""
    merges_learners: ClassVar[bool] = False
    """Whether it merges the recipe's learners itself, so that they need no mix."""
    provides_extra: ClassVar[bool] = False
    """Whether it provides the extra images."""

    @abstractmethod
    def stage_overrides(self, tasks: Tasks, epochs: int, validation: Validation) -> StageOverrides:
        """Return all stages of a recipe with these fields."""

    @abstractmethod
    def problems(self, tasks: Tasks, mix: Mix | None, validation: Validation, has_extra: bool) -> Problems:
        """Return the fields of the recipe that do not fit this pipeline, and why."""


@final
@frozen_config
class ModeConnectivity(Pipeline):
    """Robust mode connectivity (RMC): the best point of a curve of networks between two trained ones.

    Two end points w1 and w2 are trained; then the bend c of phi(s) = (1-s)^2 w1 + 2s(1-s) c + s^2 w2, by the
    recipe's task with the update `curve`. Points along the curve get recalibrated batch-norm statistics,
    estimated on natural training images. The most robust point on held-out images is the result. The
    ensembles of the paper are not implemented. Wang, Li and Liu, 2024, Robust mode connectivity-oriented
    adversarial defense.
    """

    reference: ClassVar[str] = "Wang et al., 2024"

    end: tuple[Stage, Stage]
    """The trainings of the two end points."""
    points: Annotated[PositiveInt, Field(ge=2)] = 61
    """The number of points, from s = 0 to 1, that are measured."""
    choose: Literal["worst", "mean"] = "worst"
    """Select by accuracy under the worst threat per image, or by the mean over the threats."""
    images: Annotated[PositiveInt | None, Field(ge=2)] = None
    """Training images that batch-norm statistics are estimated on; by default all."""
    which: Which = "last"
    """Which weights of the end points are used."""

    def stage_overrides(self, tasks: Tasks, epochs: int, validation: Validation) -> StageOverrides:
        """Return the end points, then the bend, which starts half-way between them."""
        # The bend itself is not a network on the curve, so it is validated only once, at its end.
        once = replace(validation, every=Time.parse("100%"), train_images=0)
        init = FromStages(stages=tuple(stage.name for stage in self.end), which=self.which)
        ends = [stage.overrides(epochs, validation) for stage in self.end]
        return [*ends, (CURVE_STAGE, {"init": init, "validation": once})]

    def problems(self, tasks: Tasks, mix: Mix | None, validation: Validation, has_extra: bool) -> Problems:
        """Require one task with the update `curve`, and images and threats to select by."""
        problems: Problems = []
        if len(tasks) > 1 or not all(isinstance(task.update, ModeCurve) for task in tasks):
            message = 'expected one task, with update = { kind = "curve" }, which bends the curve'
            problems.append((("task",), message))
        return problems + _selection_problems("point of the curve is", tasks, validation)


@final
@frozen_config
class ChooseShares:
    """How the shares of a soup are chosen after its members are trained: by accuracy on held-out images.

    All combinations of shares that are multiples of 1 / parts are measured, so with n members
    (parts + n - 1)! / (parts! (n - 1)!) networks.
    """

    parts: Annotated[PositiveInt, Field(ge=2)] = 10
    by: Literal["worst", "mean"] = "worst"
    """Select by accuracy under the worst threat per image, or by the mean over the threats."""

    def combinations(self, names: Sequence[str]) -> list[dict[str, float]]:
        """Return the shares of every combination, in a fixed order."""
        return [dict(zip(names, point, strict=True)) for point in simplex_grid(len(names), self.parts)]


@final
@frozen_config
class WeightSoup(Pipeline):
    """A robust weight soup: every task of the recipe is trained separately from a common base, and an average
    of the resulting weights is the result, with fixed shares, or with shares that are chosen afterwards.

    It is the natural competitor of learners that exchange their weights during training: the same tasks,
    averaged once, at the end. Croce et al., 2023, Seasoning model soups for robustness to adversarial and
    natural distribution shifts, who choose the shares on a few images.
    """

    reference: ClassVar[str] = "Croce et al., 2023"
    merges_learners: ClassVar[bool] = True

    base: Stage
    """The training that all members start from; without it, members are too far apart to be averaged."""
    shares: Mapping[str, PositiveFloat] = field(default_factory=dict[str, float])
    """The weight of every task, summing to one; by default all equal."""
    choose: ChooseShares | None = None
    """Choose the shares on the validation images instead, once the members are trained."""
    buffers: Literal["average", "recalibrate"] = "average"
    """Batch-norm statistics: averaged like weights, or re-estimated on training images."""
    which: Which = "last"
    """Which weights of the base the members start from."""

    def stage_overrides(self, tasks: Tasks, epochs: int, validation: Validation) -> StageOverrides:
        """Return the base, then every member."""
        init = FromStages(stages=(self.base.name,), which=self.which)
        members = [(task.name, {"tasks": (task,), "init": init}) for task in tasks]
        return [self.base.overrides(epochs, validation), *members]

    def problems(self, tasks: Tasks, mix: Mix | None, validation: Validation, has_extra: bool) -> Problems:
        """Require several members, a share for each or none, and no mix."""
        names = [task.name for task in tasks]
        problems = _which_problems(self.which, validation)
        if len(tasks) < 2:
            problems.append((("task",), "expected two or more members of the soup, got one"))
        if mix is not None:
            problems.append((("mix",), "a soup mixes its members itself; remove it"))
        if self.shares and (set(self.shares) != set(names) or abs(sum(self.shares.values()) - 1) > 1e-9):
            message = f"expected a share for each of {names}, summing to one, got {dict(self.shares)}"
            problems.append((("pipeline", "shares"), message))
        if self.choose is not None:
            problems += _selection_problems("shares of the soup are", tasks, validation)
            if self.shares:
                problems.append((("pipeline", "shares"), "choose selects the shares; remove one of the two"))
        return problems


@final
@frozen_config
class SelfTraining(Pipeline):
    """Self-training: a teacher labels images, which become the extra images of the recipe's task.

    The papers add unlabelled images; here they come from the training set. With hidden = 0, the teacher
    labels the images that it was trained on; since it fits them, nearly all labels stay the same. With
    hidden > 0, that part of the labels is hidden from all stages, and the teacher learns from the rest.
    Raghunathan et al., 2020, Understanding and mitigating the tradeoff between robustness and accuracy; with
    the objective TRADES, Carmon et al., 2019, Unlabeled data improves adversarial robustness.
    """

    reference: ClassVar[str] = "Raghunathan et al., 2020"
    provides_extra: ClassVar[bool] = True

    teacher: Stage
    hidden: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.0
    """The fraction of training images whose labels are hidden, the same in every class. With 0 none are
    hidden, and the teacher labels all training images."""
    share: Annotated[FiniteFloat, Field(gt=0, lt=1)] = 0.5
    """The fraction of every batch that has the teacher's labels."""
    which: Which = "last"
    """Which weights of the teacher predict the labels."""

    def stage_overrides(self, tasks: Tasks, epochs: int, validation: Validation) -> StageOverrides:
        """Return the teacher, then the recipe with the extra images."""
        extra = Extra(data=InMemory(name=f"labels by {self.teacher.name}"), share=self.share)
        return [self.teacher.overrides(epochs, validation), (FINAL_STAGE, {"extra": extra})]

    def problems(self, tasks: Tasks, mix: Mix | None, validation: Validation, has_extra: bool) -> Problems:
        """Refuse other extra images."""
        problems = _which_problems(self.which, validation)
        if has_extra:
            problems.append((("extra",), "the pipeline provides the extra images; remove it"))
        return problems


def _selection_problems(what: str, tasks: Tasks, validation: Validation) -> Problems:
    """Refuse a selection after the trainings without images or threats to select by."""
    problems: Problems = []
    if not validation.selects:
        message = f"is 0, but the {what} selected on held-out images; set it above 0"
        problems.append((("validation", "images"), message))
    trained = tuple(threat for task in tasks for threat in task.objective.threats())
    if not (trained if validation.threats is None else validation.threats):
        message = f"is empty, but the {what} selected by its threats; name at least one"
        problems.append((("validation", "threats"), message))
    return problems


def _which_problems(which: str, validation: Validation) -> Problems:
    """Refuse the best weights of a stage if none are selected."""
    if which != "best" or validation.selects:
        return []
    message = 'is "best", but validation.images = 0 selects none; use "last", or hold images out'
    return [(("pipeline", "which"), message)]


PIPELINES: dict[str, type[Pipeline]] = {
    "curve": ModeConnectivity,
    "soup": WeightSoup,
    "self-training": SelfTraining,
}
