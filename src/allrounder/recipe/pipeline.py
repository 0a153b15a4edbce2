"""Methods of several trainings: which trainings they are, and how their results become one network.

Values alone; `programs` performs them. A recipe's own fields describe the last training of its program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar, Literal, final

from pydantic import Field

from allrounder.config.fields import Count, Number, Positive, Ratio, Some, value
from allrounder.config.time import Time
from allrounder.data.datasets.npz import Given
from allrounder.data.extra import Extra
from allrounder.optim.mode_curve import OnCurve
from allrounder.recipe.init import Phases
from allrounder.recipe.mix import Mix
from allrounder.recipe.task import NAME, Task
from allrounder.recipe.validation import Validation
from allrounder.threats.threat import Threat

Problem = tuple[tuple[str | int, ...], str]
Which = Literal["last", "best"]
CURVE, FINAL = "curve", "final"
"""What the last trainings of programs are called."""


@final
@value
class Phase:
    """A training before the last one. What it does not say is as in the recipe."""

    name: Annotated[str, Field(pattern=NAME)]
    """Its folder's name, below `phases` of the run folder."""
    task: Annotated[tuple[Task, ...], Some]
    mix: Mix | None = None
    length: Annotated[Ratio, Field(gt=0)] = 1.0
    """Its epochs, as a multiple of the recipe's; so a shortened recipe has shortened phases."""
    threats: tuple[Threat, ...] | None = None
    """What its best weights are chosen by, in the place of `validation.threats`."""

    def changes(self, epochs: int, rule: Validation) -> dict[str, Any]:
        """What is different from the recipe."""
        rule = rule if self.threats is None else replace(rule, threats=self.threats)
        whole = max(1, int(self.length * epochs + 0.5))
        return {"task": self.task, "mix": self.mix, "epochs": whole, "validation": rule}


class Program(ABC):
    """Several trainings with one network as their result; frozen."""

    reference: ClassVar[str]
    """Authors and year, for lists."""
    joins: ClassVar[bool] = False
    """Whether it joins the recipe's learners itself, so that they need no mix."""
    extra: ClassVar[bool] = False
    """Whether it brings the second set of images."""

    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The trainings before the last, in order."""

    @abstractmethod
    def lasts(self, task: tuple[Task, ...]) -> tuple[str, ...]:
        """What the last trainings are called."""

    @abstractmethod
    def changes(self, task: tuple[Task, ...], epochs: int, rule: Validation) -> dict[str, dict[str, Any]]:
        """All trainings by name, in order: the fields in which each differs from the recipe."""

    def problems(
        self, task: tuple[Task, ...], mix: Mix | None, rule: Validation, extra: Extra | None
    ) -> list[Problem]:
        """Fields of the recipe that make no sense with this program, each with what is wrong."""
        return []


@final
@value
class Curve(Program):
    """Robust mode connectivity (RMC): the best point of a curve of networks between two trained ones.

    Two end points w1 and w2 are trained; then the bend c of phi(s) = (1-s)^2 w1 + 2s(1-s) c + s^2 w2, by the
    recipe's task with the update `curve`. Of points along it, each with batch-norm statistics measured anew
    on natural training images, the most robust one on held-out images is the result. One network: the
    ensembles of the paper are left out. Wang, Li and Liu, 2024, Robust mode connectivity-oriented
    adversarial defense.
    """

    reference: ClassVar[str] = "Wang et al., 2024"

    end: tuple[Phase, Phase]
    """The trainings of the two end points."""
    points: Annotated[Count, Field(ge=2)] = 61
    """How many places from 0 to 1 are tried."""
    choose: Literal["worst", "mean"] = "worst"
    """By the images that are right under every threat, or by the mean over the threats."""
    images: Annotated[Count | None, Field(ge=2)] = None
    """Training images that statistics are measured on, of every point; by default all."""
    which: Which = "last"
    """Which weights of the end points."""

    def phases(self) -> tuple[Phase, ...]:
        """The end points'."""
        return self.end

    def lasts(self, task: tuple[Task, ...]) -> tuple[str, ...]:
        """The curve's."""
        return (CURVE,)

    def changes(self, task: tuple[Task, ...], epochs: int, rule: Validation) -> dict[str, dict[str, Any]]:
        """The end points, then the bend, which begins half-way between them."""
        names = tuple(phase.name for phase in self.end)
        ends = {phase.name: phase.changes(epochs, rule) for phase in self.end}
        # The bend itself is no network of the curve: it is measured once, as every training is, and no more.
        once = replace(rule, every=Time.read("100%"), train_images=0)
        return ends | {CURVE: {"init": Phases(phases=names, which=self.which), "validation": once}}

    def problems(
        self, task: tuple[Task, ...], mix: Mix | None, rule: Validation, extra: Extra | None
    ) -> list[Problem]:
        """One task that follows the curve, and images with threats to choose by."""
        found, own = list[Problem](), tuple(threat for one in task for threat in one.objective.threats())
        if len(task) > 1 or not all(isinstance(one.update, OnCurve) for one in task):
            said = 'expected one, with update = { kind = "curve" }: it is what bends the curve'
            found.append((("task",), said))
        if rule.on == "validation" and rule.images == 0:
            found.append((("validation", "images"), "is 0; the point of the curve is chosen on some"))
        if not (own if rule.threats is None else rule.threats):
            found.append((("validation", "threats"), "are none; the point of the curve is chosen by some"))
        return found


@final
@value
class WeightSoup(Program):
    """A robust weight soup: every task of the recipe is trained alone, from a common base, and the plain
    average of what they become is the result.

    The natural competitor of learners that exchange their weights while they train: the same tasks, joined
    once, at the end. Croce et al., 2023, Seasoning model soups for robustness to adversarial and natural
    distribution shifts.
    """

    reference: ClassVar[str] = "Croce et al., 2023"
    joins: ClassVar[bool] = True

    base: Phase
    """The training that all members start from; members without it lie too far apart to be averaged."""
    shares: Mapping[str, Positive] = field(default_factory=dict[str, float])
    """The weight of every task, summing to one; by default all the same."""
    buffers: Literal["average", "recalibrate"] = "average"
    """Batch-norm statistics: averaged like weights, or re-estimated on training images."""
    which: Which = "last"
    """Which weights of the base go on."""

    def phases(self) -> tuple[Phase, ...]:
        """The base."""
        return (self.base,)

    def lasts(self, task: tuple[Task, ...]) -> tuple[str, ...]:
        """The members."""
        return tuple(member.name for member in task)

    def changes(self, task: tuple[Task, ...], epochs: int, rule: Validation) -> dict[str, dict[str, Any]]:
        """The base, then every task."""
        start = Phases(phases=(self.base.name,), which=self.which)
        members = {member.name: {"task": (member,), "init": start} for member in task}
        return {self.base.name: self.base.changes(epochs, rule)} | members

    def problems(
        self, task: tuple[Task, ...], mix: Mix | None, rule: Validation, extra: Extra | None
    ) -> list[Problem]:
        """Several members that share everything, and no other mix."""
        names, found = [member.name for member in task], unselected(self.which, rule)
        if len(task) < 2:
            found.append((("task",), "expected two or more members of the soup, got one"))
        if mix is not None:
            found.append((("mix",), "a soup mixes its members itself; leave it out"))
        if self.shares and (set(self.shares) != set(names) or abs(sum(self.shares.values()) - 1) > 1e-9):
            said = f"expected a share for each of {names} that sum to one, got {dict(self.shares)}"
            found.append((("program", "shares"), said))
        return found


@final
@value
class SelfTraining(Program):
    """Self-training: a teacher labels images, which then are the second set of images of the recipe's task.

    The papers add images without labels; here the training set has to do. Without `hidden`, the teacher
    labels the images it was trained on; as it fits them, nearly all labels stay. With it, labels of so many
    images are hidden from everybody, and the teacher learns from the rest. Raghunathan et al., 2020,
    Understanding and mitigating the tradeoff between robustness and accuracy; with the objective TRADES,
    Carmon et al., 2019, Unlabeled data improves adversarial robustness.
    """

    reference: ClassVar[str] = "Raghunathan et al., 2020"
    extra: ClassVar[bool] = True

    teacher: Phase
    hidden: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """The part of the training images whose labels are hidden, the same of every class; 0 hides none, and all
    images are labelled by the teacher a second time."""
    share: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    """The part of every batch with labels of the teacher."""
    which: Which = "last"
    """Which weights of the teacher give the labels."""

    def phases(self) -> tuple[Phase, ...]:
        """The teacher's."""
        return (self.teacher,)

    def lasts(self, task: tuple[Task, ...]) -> tuple[str, ...]:
        """The one that learns from the teacher."""
        return (FINAL,)

    def changes(self, task: tuple[Task, ...], epochs: int, rule: Validation) -> dict[str, dict[str, Any]]:
        """The teacher, then the recipe with a second set."""
        second = Extra(data=Given(name=f"labels by {self.teacher.name}"), share=self.share)
        return {self.teacher.name: self.teacher.changes(epochs, rule), FINAL: {"extra": second}}

    def problems(
        self, task: tuple[Task, ...], mix: Mix | None, rule: Validation, extra: Extra | None
    ) -> list[Problem]:
        """No other second set."""
        said = "the program brings the second set of images; leave it out"
        return unselected(self.which, rule) + ([] if extra is None else [(("extra",), said)])


def unselected(which: str, rule: Validation) -> list[Problem]:
    """Best weights, where none are chosen."""
    said = 'is "best", but validation.images = 0 chooses none; use "last", or hold images out'
    return [(("program", "which"), said)] if which == "best" and not rule.images and rule.on != "test" else []


PROGRAMS: dict[str, type[Program]] = {"curve": Curve, "soup": WeightSoup, "self-training": SelfTraining}
