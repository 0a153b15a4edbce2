"""A recipe: everything that decides the result of a training, as one frozen value and one TOML file."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, final

import tomli_w
from pydantic import Field, ValidationError

from allrounder.config.decode import EXTENDS, Table, decode, merge, override
from allrounder.config.fields import Count, Kind, Some, Whole, adapter, deciding, refuse, value
from allrounder.config.schedules import Schedule, disordered
from allrounder.config.time import Pace, Span, Time
from allrounder.data import DATASETS
from allrounder.data.base import Batches, Data, DataSpec, Split
from allrounder.data.extra import Extra, ExtraBatches, check_fits
from allrounder.errors import RecipeError
from allrounder.evaluation.probes import Probe
from allrounder.models import MODELS, ModelSpec
from allrounder.recipe.compute import Compute
from allrounder.recipe.init import INITS, Init, Random
from allrounder.recipe.library import beside, locate, parse, read
from allrounder.recipe.library import shipped as shipped
from allrounder.recipe.mix import Mix
from allrounder.recipe.pipeline import PROGRAMS, Program
from allrounder.recipe.task import Task
from allrounder.recipe.validation import Validation as Validation
from allrounder.rng import Draws
from allrounder.threats.threat import Threat
from allrounder.types import Passes

At = tuple[str | int, ...]
Problem = tuple[At, str]


@final
@value
class Recipe:
    """A tuple of tasks and a mix, with the data, network and length they share."""

    data: Annotated[DataSpec, Kind(lambda: DATASETS)]
    model: Annotated[ModelSpec, Kind(lambda: MODELS)]
    epochs: Count
    task: Annotated[tuple[Task, ...], Some]
    """One block for every learner."""
    mix: Mix | None = None
    """How the learners become one network; a single learner needs none."""
    extra: Extra | None = None
    """A second set of images to train on; tables made from the run say so."""
    batch: Annotated[Count, Field(ge=2)] = 128
    seed: Whole = 0
    pace: Pace = "epoch"
    """Learning rates and shares hold for an epoch (as released), or follow every step."""
    init: Annotated[Init, Kind(lambda: INITS)] = Random()
    program: Annotated[Program | None, Kind(lambda: PROGRAMS, optional=True)] = None
    """For methods of several trainings: those before the last, which the other fields describe; false for
    none."""
    compute: Compute = Compute()
    validation: Validation = Validation()
    checkpoint: Span = Time.read(1)
    """How often the state is saved for resuming."""
    probes: tuple[Probe, ...] = ()
    """What the demonstration, or `evaluate` from Python, puts the finished network to:
    "pgd-20@Linf:8/255"."""
    about: str = ""
    """One line for lists."""
    name: str = ""
    """What tables call it; by default the file's name."""

    def __post_init__(self) -> None:
        found = [*self._misnamed(), *self._mismixed(), *self._disordered(), *self._misshared()]
        refuse(self, [*found, *self._untimely(), *self._unfounded()] or self._unprogrammed())

    def _misnamed(self) -> list[Problem]:
        names = self.names
        return [
            (("task",), f'two learners are called "{name}"; names must differ')
            for name in sorted({name for name in names if names.count(name) > 1})
        ]

    def _mismixed(self) -> list[Problem]:
        names, found = list(self.names), list[Problem]()
        if self.mix is None:
            needed = len(names) > 1 and not (self.program is not None and self.program.joins)
            return [(("mix",), f"missing; say how {names} are mixed")] if needed else []
        if len(names) == 1 and self.mix.exchange is not None:
            found.append((("mix", "exchange"), "an exchange needs at least two learners; there is one"))
        if len(names) > 1 and self.mix.shares is None:
            found.append((("mix", "shares"), f"missing; say the share of each of {names}"))
        if self.mix.shares is not None and (problem := self.mix.shares.problem(names)):
            found.append((("mix", "shares", problem[0]), problem[1]))
        return found

    def _disordered(self) -> list[Problem]:
        """Curves whose times, some in epochs and some as shares of the run, are out of order in this run."""
        curves: list[tuple[At, Schedule]] = [(("task", i, "lr"), task.lr) for i, task in enumerate(self.task)]
        if self.mix is not None and self.mix.shares is not None:
            curves.append((("mix", "shares", "curve"), self.mix.shares.curve))
        problems = [(at, disordered(pairwise(curve.times()), self.epochs)) for at, curve in curves]
        return [(at, f"{said}, of {self.epochs} epochs") for at, said in problems if said is not None]

    def _misshared(self) -> list[Problem]:
        count = 1 if self.extra is None else self.extra.count(self.batch)
        said = f"is {count} of the {self.batch} images of a batch; some must be extra and some not"
        return [] if 0 < count < self.batch else [(("extra", "share"), said)]

    def _untimely(self) -> list[Problem]:
        """What a method asks for and a run of this length, or with this optimiser, cannot give."""
        found = [(i, problem) for i, task in enumerate(self.task) for problem in task.problems(self.epochs)]
        return [(("task", i, *at), said) for i, (at, said) in found]

    def _unfounded(self) -> list[Problem]:
        """Updates that need the weights of runs, or objectives a second set of images, that are not there."""
        found, runs = list[Problem](), len(self.init.sources(Path()))
        for i, task in enumerate(self.task):
            needed = task.update.members
            if needed is not None and needed != runs and self.program is None:
                said = f"starts from {runs} runs; the update of {task.name} needs {needed} to start from"
                found.append((("init",), said))
            weighed = self.extra is None and not (self.program is not None and self.program.extra)
            if weighed and (said := task.objective.without_extra()) is not None:
                found.append((("task", i, "objective", said[0]), said[1]))
        return found

    def _unprogrammed(self) -> list[Problem]:
        """What is wrong with the trainings of a program; asked where the recipe itself is right."""
        if self.program is None:
            return []
        found = self.program.problems(self.task, self.mix, self.validation, self.extra)
        names = [*(phase.name for phase in self.program.phases()), *self.program.lasts(self.task)]
        twice = sorted({name for name in names if names.count(name) > 1})
        found += [(("program",), f'two trainings are called "{name}"; names must differ') for name in twice]
        for name in () if found else self.changes():
            try:
                self.training(name)
            except ValidationError as error:
                found += [(("program", name, *item["loc"]), str(item["msg"])) for item in error.errors()]
        return found

    def changes(self) -> dict[str, dict[str, Any]]:
        """The trainings of a program, each with the fields that differ; of a plain recipe, only itself."""
        if self.program is None:
            return {"": {}}
        return self.program.changes(self.task, self.epochs, self.validation)

    def training(self, name: str) -> Recipe:
        """One training of a program as a recipe of its own."""
        told = {"program": None, "name": f"{self.name}, {name}".strip(" ,"), **self.changes()[name]}
        return replace(self, **told)

    def trainings(self) -> dict[str, Recipe]:
        """Every training of a program by name, in order; a plain recipe is its only one."""
        return {"": self} if self.program is None else {name: self.training(name) for name in self.changes()}

    def passes(self) -> Passes:
        """What a step of all learners takes, at most; of a program, one of its last training."""
        return sum((task.passes() for task in self.task), Passes())

    def whole_passes(self) -> Passes:
        """What every training image takes over the whole run, at most, in all trainings of a program."""
        every = [recipe.passes() * recipe.epochs for recipe in self.trainings().values()]
        return sum(every, Passes())

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The learners' tasks, in order."""
        return self.task

    @property
    def mixing(self) -> Mix:
        """The mix, or plain training where there is none."""
        return self.mix if self.mix is not None else Mix.solo()

    @property
    def selection_threats(self) -> tuple[Threat, ...]:
        """The threats that count in choosing the best weights."""
        if self.validation.threats is not None:
            return self.validation.threats
        return tuple(dict.fromkeys(threat for task in self.task for threat in task.objective.threats()))

    @property
    def names(self) -> tuple[str, ...]:
        """The learners' names, in order."""
        return tuple(task.name for task in self.task)

    @classmethod
    def load(cls, source: str | Path, sets: Sequence[str] = ()) -> Recipe:
        """Read a TOML file, or a shipped recipe by its name, with `a.b=c` overrides."""
        file = locate(source)
        raw = read(file)
        base = raw.pop(EXTENDS, None)
        if base is not None:
            raw = merge(read(beside(source, file, base)), raw)
            if EXTENDS in raw:
                raise RecipeError(f"{source}: {base} extends yet another recipe; one level is allowed")
        raw.setdefault("name", str(source) if str(source) in shipped() else Path(source).stem)
        if sets:
            with suppress(RecipeError):  # an override may mend what is wrong, and may reach any default
                raw = tomllib.loads(decode(cls, raw, str(source)).dump())
        for text in sets:
            override(raw, text)
        return decode(cls, raw, str(source))

    @classmethod
    def loads(cls, text: str, source: str = "recipe") -> Recipe:
        """Read a resolved recipe from TOML text."""
        return decode(cls, parse(text, source), source)

    def read_data(self) -> Data:
        """The dataset, read; what is wrong with it is a mistake of the recipe."""
        try:
            return self.data.load()
        except RecipeError:
            raise
        except (ValueError, OSError, RuntimeError) as error:
            raise RecipeError(f"data: {error}") from error

    def with_extra(self, data: Data) -> Data:
        """The dataset with the extra images that training takes, read unless they are there."""
        if self.extra is None:
            if data.extra is not None:
                raise RecipeError("extra: the data has some, the recipe does not say their share; add it")
            return data
        try:
            found = data.extra if data.extra is not None else self.extra.read(data)
            check_fits(found, data)
        except RecipeError:
            raise
        except (ValueError, OSError, RuntimeError) as error:
            raise RecipeError(f"extra: {error}") from error
        return replace(data, extra=found)

    def batches(self, split: Split, extra: Split | None) -> Batches | ExtraBatches:
        """The batches of training: of a split, and of extra images where the recipe wants them."""
        if self.extra is None or extra is None:
            assert self.extra is None, "the extra images were not read"
            return Batches(split, self.batch, Draws(self.seed))
        try:
            return ExtraBatches(split, extra, self.extra.count(self.batch), self.batch, Draws(self.seed))
        except ValueError as error:
            raise RecipeError(f"extra: {error}") from None

    def dump(self) -> str:
        """The resolved recipe as TOML; `loads(dump())` is the recipe again."""
        return tomli_w.dumps(self._table())

    def fingerprint(self) -> str:
        """A short name for all that decides the result: the same for equal recipes, in any order."""
        extra = None if self.extra is None else replace(self.extra, data=deciding(self.extra.data))
        table = replace(self, name="", about="", data=deciding(self.data), extra=extra)._table()
        if self.compute == Compute():  # so recipes are known as they were before there was a choice
            del table["compute"]
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]

    def _table(self) -> Table:
        return adapter(type(self)).dump_python(self, mode="json", exclude_none=True)
