"""A recipe: everything that decides the result of a training, as one frozen value and one TOML file."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, cast, final

import tomli_w
from pydantic import Field, ValidationError
from typing_extensions import override

from allrounder.config.decode import decode
from allrounder.config.fields import (
    NonEmpty,
    NonNegativeInt,
    OneOf,
    PositiveInt,
    Switch,
    adapter,
    canonical,
    frozen_config,
    kind_of,
    raise_field_errors,
)
from allrounder.config.schedules import Schedule, order_problem
from allrounder.config.time import Duration, Pace, Time
from allrounder.config.toml import Table, parse_toml
from allrounder.data import DATASETS
from allrounder.data.base import DataSpec
from allrounder.data.extra import Extra
from allrounder.data.synthetic import dataset_shape
from allrounder.errors import RecipeError
from allrounder.evaluation.probes import Probe
from allrounder.models import MODELS, ModelSpec
from allrounder.objectives import OBJECTIVES
from allrounder.recipe.budgets import FieldPath, Problem, budget_problems
from allrounder.recipe.compute import Compute
from allrounder.recipe.inherit import Chain
from allrounder.recipe.init import INITS, Init, Random
from allrounder.recipe.library import shipped_recipes as shipped_recipes
from allrounder.recipe.mix import Mix
from allrounder.recipe.overrides import apply_overrides, overrides_field
from allrounder.recipe.pipeline import PIPELINES, Pipeline
from allrounder.recipe.task import BatchSize, Task
from allrounder.recipe.teachers import teacher_problems
from allrounder.recipe.validation import Validation as Validation
from allrounder.system.summary import HasSummary, Summary
from allrounder.threats.threat import Threat
from allrounder.types import Passes


@final
@frozen_config
class Recipe(HasSummary):
    """Everything that decides the result of a training: tasks, mix, data, network and length."""

    data: Annotated[DataSpec, OneOf(lambda: DATASETS)]
    model: Annotated[ModelSpec, OneOf(lambda: MODELS)]
    epochs: PositiveInt
    tasks: Annotated[tuple[Task, ...], NonEmpty, Field(alias="task")]
    """One [[task]] block per learner."""
    mix: Mix | None = None
    """How the learners become one network; a single learner needs none."""
    extra: Extra | None = None
    """A second set of training images; tables made from the run mention it."""
    train_images: PositiveInt | None = None
    """Training images to use: a class-balanced part of the dataset; by default all of them. Held-out images
    are taken from it; an inherited `validation.images` does not apply, but the default, 10%."""
    batch_size: BatchSize = 128
    seed: NonNegativeInt = 0
    pace: Pace = "epoch"
    """Whether learning rates and shares change once per epoch, as released, or at every step."""
    init: Annotated[Init, OneOf(lambda: INITS)] = Random()
    pipeline: Annotated[Pipeline | None, OneOf(lambda: PIPELINES, optional=True)] = None
    """For methods of several trainings: the stages before the last one, which the other fields describe;
    false for none."""
    compute: Compute = Compute()
    validation: Validation = Validation()
    checkpoint: Duration = Time.parse(1)
    """The time between two checkpoints."""
    tensorboard: Switch = None
    """Whether to write events for TensorBoard to the folder tensorboard of the run; this changes no result,
    so a run may be resumed with or without it. Needs: pip install "allrounder[tensorboard]"."""
    probes: tuple[Probe, ...] = ()
    """The attacks that the demonstration, or `evaluate` from Python, runs on the trained network:
    "pgd-20@Linf:8/255"."""
    about: str = ""
    """A one-line description for lists."""
    name: str = ""
    """The name in tables; by default that of the file."""

    def __post_init__(self) -> None:
        problems = [
            *self._name_problems(),
            *self._mix_problems(),
            *self._time_order_problems(),
            *self._extra_problems(),
            *self._task_problems(),
            *teacher_problems(self.tasks, self.effective_mix),
            *budget_problems(self.tasks, self.validation, self.probes, dataset_shape(self.data)),
        ]
        raise_field_errors(self, problems or self._pipeline_problems())

    def _name_problems(self) -> Iterator[Problem]:
        for name in _duplicates(self.names):
            yield ("task",), f'two learners are called "{name}"; names must differ'

    def _mix_problems(self) -> Iterator[Problem]:
        names = list(self.names)
        if self.mix is None:
            if len(names) > 1 and not (self.pipeline is not None and self.pipeline.merges_learners):
                yield ("mix",), f"missing; it must define how {names} are mixed"
            return
        if self.mix.crafts_for_statistics and not self.selection_threats:
            yield ("mix", "buffers"), "needs a threat to craft images under; set validation.threats"
        if self.mix.rule.needs_held_out and (self.validation.on == "test" or not self.validation.selects):
            got = 'validation.on is "test"' if self.validation.on == "test" else "validation.images is 0"
            hint = "hold out training images, or choose another rule"
            yield ("mix", "rule"), f"measures held-out images, but {got}; {hint}"
        if len(names) == 1 and self.mix.exchange is not None:
            yield ("mix", "exchange"), "an exchange needs at least two learners; there is one"
        if len(names) > 1 and self.mix.shares is None and self.mix.rule.uses_shares:
            yield ("mix", "shares"), f"missing; it must give the share of each of {names}"
        if self.mix.shares is not None and (problem := self.mix.shares.find_problem(names)):
            yield ("mix", "shares", problem[0]), problem[1]
        elif self.mix.shares is not None and (message := self.mix.shares.find_zero(self.epochs, self.pace)):
            yield ("mix", "shares", "curves"), message

    def _time_order_problems(self) -> Iterator[Problem]:
        """Yield schedules whose times, some in epochs and some as shares of the run, are out of order."""
        schedules: list[tuple[FieldPath, Schedule]] = [
            (("task", i, "lr"), task.lr) for i, task in enumerate(self.tasks)
        ]
        if self.mix is not None and self.mix.shares is not None:
            shares = self.mix.shares
            schedules += [(("mix", "shares", *path), curve) for path, curve in shares.schedules().items()]
        for path, schedule in schedules:
            if message := order_problem(pairwise(schedule.knot_times()), self.epochs):
                yield path, f"{message}, of {self.epochs} epochs"

    def _extra_problems(self) -> Iterator[Problem]:
        count = None if self.extra is None else self.extra.num_in_batch(self.batch_size)
        if count is not None and not 0 < count < self.batch_size:
            got = f"gives {count} extra images per batch of {self.batch_size}"
            message = f"{got}, expected at least one of each kind; change the share or batch_size"
            yield ("extra", "share"), message
        for i, task in enumerate(self.tasks):
            batch_size, count = task.batch_size or self.batch_size, self.extra_per_batch(task)
            key = "batch_size" if task.extra_share is None else "extra_share"
            if self.extra is None and task.extra_share is not None:
                yield ("task", i, key), "there are no extra images; remove it, or add [extra]"
            elif self.extra is None or not task.has_own_batches or task.extra_share == 0:
                continue
            elif not 0 < count < batch_size:
                got = f"gives {count} extra images per batch of {batch_size}"
                hint = "change extra_share or batch_size"
                yield ("task", i, key), f"{got}, expected at least one of each kind; {hint}"

    def _task_problems(self) -> Iterator[Problem]:
        """Yield what methods need and the recipe does not give: epochs, earlier runs, or extra images."""
        num_runs = len(self.init.sources(Path()))
        has_extra = self.extra is not None or (self.pipeline is not None and self.pipeline.provides_extra)
        for i, task in enumerate(self.tasks):
            for path, message in task.problems(self.epochs):
                yield ("task", i, *path), message
            needed = task.update.num_init_runs
            if needed is not None and needed != num_runs and self.pipeline is None:
                yield ("init",), f"starts from {num_runs} runs; the update of {task.name} needs {needed}"
            uses_extra = has_extra and task.extra_share != 0
            if not uses_extra and (problem := task.objective.problem_without_extra()):
                yield ("task", i, "objective", problem[0]), problem[1]

    def _pipeline_problems(self) -> list[Problem]:
        """Return what is wrong with the stages of a pipeline, in a recipe that is otherwise correct."""
        if self.pipeline is None:
            return []
        problems = self.pipeline.problems(self.tasks, self.mix, self.validation, self.extra is not None)
        stages = self.pipeline.stage_overrides(self.tasks, self.epochs, self.validation)
        for name in _duplicates([name for name, _ in stages]):
            problems.append((("pipeline",), f'two stages are called "{name}"; names must differ'))
        for name, overrides in [] if problems else stages:
            try:
                self._override(name, overrides)
            except ValidationError as error:
                problems += [(("pipeline", name, *item["loc"]), str(item["msg"])) for item in error.errors()]
        return problems

    def _override(self, name: str, overrides: Table) -> Recipe:
        return replace(self, **{"pipeline": None, "name": f"{self.name}, {name}".strip(" ,"), **overrides})

    def stage_recipe(self, name: str) -> Recipe:
        """Return one stage of a pipeline as a plain recipe."""
        return self.stage_recipes()[name]

    def stage_recipes(self) -> dict[str, Recipe]:
        """Return every stage of a pipeline by name, in order; a plain recipe is its only one, named ""."""
        if self.pipeline is None:
            return {"": self}
        stages = self.pipeline.stage_overrides(self.tasks, self.epochs, self.validation)
        return {name: self._override(name, overrides) for name, overrides in stages}

    def passes(self) -> Passes:
        """Return an upper bound on the mean passes of a step of all learners; of a pipeline's last stage."""
        return sum((task.mean_passes(self.epochs) for task in self.tasks), Passes())

    def total_passes(self) -> Passes:
        """Return an upper bound on the passes per training image over the whole run, in all stages. A learner
        with another batch size than the recipe has more or fewer of them, rounded up."""
        passes = (
            (task.total_passes(stage.epochs) * stage.batch_share(task)).round_up()
            for stage in self.stage_recipes().values()
            for task in stage.tasks
        )
        return sum(passes, Passes())

    def extra_per_batch(self, task: Task) -> int:
        """Return the number of extra images in every batch of a learner."""
        batch_size = task.batch_size or self.batch_size
        return 0 if self.extra is None else self.extra.num_in_batch(batch_size, task.extra_share)

    def batch_share(self, task: Task) -> Fraction:
        """Return the size of a learner's batches relative to those of the recipe."""
        return Fraction(task.batch_size or self.batch_size, self.batch_size)

    __repr__ = HasSummary.__repr__  # else the dataclass would write its own

    @override
    def summary(self) -> Summary:
        """Describe data, network and length, and for each learner the objective and its threats."""
        data, model = kind_of(self.data, DATASETS), kind_of(self.model, MODELS)
        rows = [("data", data), ("model", model), ("epochs", str(self.epochs))]
        rows += [] if self.pipeline is None else [("pipeline", kind_of(self.pipeline, PIPELINES))]
        for task in self.tasks:
            threats = " and ".join(map(str, task.objective.threats()))
            objective = kind_of(task.objective.core, OBJECTIVES)
            teachers = " and ".join(dict.fromkeys(task.objective.teachers().values()))
            text = f"{objective} under {threats}" if threats else objective
            rows.append((f"task {task.name}", f"{text}, taught by {teachers}" if teachers else text))
        return Summary(f"Recipe {self.name}".strip(), rows)

    @property
    def effective_mix(self) -> Mix:
        """The mix, or that of plain training if the recipe has none."""
        return self.mix if self.mix is not None else Mix.solo()

    @property
    def selection_threats(self) -> tuple[Threat, ...]:
        """The threats that the best weights are selected by."""
        if self.validation.threats is not None:
            return self.validation.threats
        return tuple(dict.fromkeys(threat for task in self.tasks for threat in task.objective.threats()))

    @property
    def names(self) -> tuple[str, ...]:
        """The learners' names, in order."""
        return tuple(task.name for task in self.tasks)

    @classmethod
    def load(cls, source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """Load a TOML file, or a shipped recipe by its name; apply `a.b=c` overrides.

        The file may extend others, see `recipe/inherit.py`.
        """
        chain = Chain.read(source)
        raw = chain.merge()
        raw.setdefault("name", str(source) if str(source) in shipped_recipes() else Path(source).stem)
        if overrides:
            # Overrides may reach any default value, and may fix an invalid recipe.
            with suppress(RecipeError):
                raw = tomllib.loads(decode(cls, raw, str(source)).dumps())
            apply_overrides(raw, overrides)
        recipe = decode(cls, raw, str(source), origin=None if overrides else chain.origin)
        held_out = recipe.validation.images
        origin = chain.inherited_from(("validation", "images"))
        if held_out is None or origin is None or overrides_field(overrides, "validation.images"):
            return recipe
        # An inherited number is meant for all images; with a part of them, the default share is held out.
        images = replace(held_out, inherited_from=origin) if recipe.train_images is None else None
        return replace(recipe, validation=replace(recipe.validation, images=images))

    @classmethod
    def loads(cls, text: str, source: str = "recipe") -> Recipe:
        """Parse a resolved recipe from TOML text."""
        return decode(cls, parse_toml(text, source), source)

    def dumps(self) -> str:
        """Return the resolved recipe as TOML; `loads(dumps())` is the recipe again."""
        return tomli_w.dumps(self._to_table())

    def fingerprint(self) -> str:
        """Return a short digest of everything that decides the result; equal for equal recipes."""
        extra = None if self.extra is None else replace(self.extra, data=canonical(self.extra.data))
        deciding = replace(canonical(self), name="", about="", data=canonical(self.data), extra=extra)
        table = deciding._to_table()
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]

    def differences(self, other: Recipe) -> list[str]:
        """Return the keys in which two recipes differ, apart from their names and what changes no result."""
        tables = [replace(canonical(recipe), name="", about="")._to_table() for recipe in (self, other)]
        old, new = (dict(_flatten(table)) for table in tables)
        return [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]

    def _to_table(self) -> Table:
        return adapter(type(self)).dump_python(self)


def _flatten(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value in nested tables and lists with its path."""
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in cast(Table, value).items()]
    elif isinstance(value, list):
        items = [(str(number), item) for number, item in enumerate(cast(list[object], value))]
    else:
        yield path, value
        return
    for key, item in items:
        yield from _flatten(item, f"{path}.{key}" if path else key)


def _duplicates(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
