"""A study: several trainings to compare, as one frozen value and one TOML file.

about = "How often learners restart"
base  = "embedded/generalist-d-nt-linf"     the recipe that the axes vary
seeds = [0, 1]

[[axis]]                                    with several axes, every combination is trained
name  = "c"
point = [{ label = "1 epoch", sets = ["mix.exchange.every=1"] }, { label = "2 epochs", sets = [...] }]

[[row]]                                     a training beside those of the axes
label  = "AT"
recipe = "embedded/at-linf"
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, final

import tomli_w
from pydantic import Field

from allrounder.config.decode import decode
from allrounder.config.fields import (
    FiniteFloat,
    NonEmpty,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    adapter,
    did_you_mean,
    frozen_config,
    raise_field_errors,
)
from allrounder.config.text import MAX_LINE, shorten
from allrounder.config.toml import parse_toml
from allrounder.errors import RecipeError
from allrounder.evaluation.probes import Probe
from allrounder.evaluation.shifts import parse_shifts
from allrounder.experiments.manifest import read_study, shipped_studies, slug
from allrounder.recipe.recipe import Problem, Recipe
from allrounder.types import Passes

Label = Annotated[str, Field(min_length=1, max_length=80)]
Percent = Annotated[FiniteFloat, Field(ge=0, le=100)]
MAX_TRAININGS = 2000
"""Trainings of a study, rows times seeds; the recipe of each is read before the first one starts."""
MAX_LABEL = 200
"""Characters of the label of a row, which is the name of a folder; that of a combination joins several."""
MAX_AXES = 20
MAX_SETS = 1000
Sets = Annotated[tuple[str, ...], Field(max_length=MAX_SETS)]
"""Overrides of a recipe, `a.b=c`."""


@final
@frozen_config
class Point:
    """One value on an axis, or one row: a label and the changes to a recipe."""

    label: Label
    sets: Sets = ()
    """Overrides of the recipe, `a.b=c`."""
    recipe: str = ""
    """The recipe to use instead of the base."""
    weights: str = ""
    """The weights to evaluate: "last", "live" (the only learner's, without its average), a learner's name,
    ...; by default the selected global weights. Rows that only differ in this field share a training."""
    paper: Mapping[str, Percent] = Field(default_factory=dict[str, float])  # pyright: ignore[reportAssignmentType]
    """The accuracies that a paper reports, in percent, by probe ("natural", "aa@Linf:8/255") or by attack
    with "worst" or "mean" ("aa mean"), or by column of `ood` ("corruptions severity 5 (official)")."""
    minutes: PositiveFloat | None = None
    """The minutes of training that a paper reports. With them, the table also has the measured ones."""


@final
@frozen_config
class Axis:
    """A setting to vary, with its values."""

    name: Label
    point: Annotated[tuple[Point, ...], NonEmpty]


@final
@frozen_config
class Study:
    """Recipes to train with several seeds, evaluate alike and compare in one table."""

    about: str = ""
    base: str = ""
    """The recipe that the axes vary: the name of a shipped one, or a file."""
    sets: Sets = ()
    """Overrides for all trainings, applied before those of points."""
    seeds: Annotated[tuple[NonNegativeInt, ...], NonEmpty] = (0,)
    axis: Annotated[tuple[Axis, ...], Field(max_length=MAX_AXES)] = ()
    row: tuple[Point, ...] = ()
    """Trainings beside those of the axes, each of its own recipe or of the base."""
    probes: tuple[Probe, ...] = ()
    """The probes for all trainings; by default those of each recipe."""
    ood: tuple[str, ...] = ()
    """Images that were changed without an adversary, for all trainings: "c:5" (corruptions of severity 5),
    "p" (perturbations), or single ones such as "fog@c"."""
    images: PositiveInt | None = None
    """The number of images to evaluate on, balanced over the classes; by default all."""
    held_out: bool = False
    """Whether to evaluate on the training images that each recipe holds out for validation, instead of test
    images: tune with it, so that test images never decide a setting."""
    reference: str = ""
    """The label of the row that the others are compared with, image by image; by default the first."""
    source: str = ""
    """The table or figure that the papers' numbers come from."""
    name: str = ""

    def __post_init__(self) -> None:
        raise_field_errors(self, self._problems())

    def _problems(self) -> Iterator[Problem]:
        """Yield the fields to fix, each with a message."""
        if (num_trainings := self.num_rows * len(self.seeds)) > MAX_TRAININGS:
            got = f"{self.num_rows:,} rows times {len(self.seeds):,} seeds are {num_trainings:,} trainings"
            yield ("axis",), f"{got}, expected at most {MAX_TRAININGS:,}; vary less, or write several studies"
            return
        labels = self.labels()
        if not labels:
            yield ("row",), "missing; name the trainings to compare with [[axis]] or [[row]]"
        for field in ("recipe", "weights"):
            setters = [axis.name for axis in self.axis if any(getattr(point, field) for point in axis.point)]
            if len(setters) > 1:
                yield ("axis",), f"{field} is set by {setters}; expected at most one axis that sets it"
        if longest := max((label for label in labels if len(label) > MAX_LABEL), key=len, default=""):
            got = f'a row has a label of {len(longest)} characters, "{shorten(longest)}"'
            yield ("row",), f"{got}, expected at most {MAX_LABEL}; shorten the labels of the axes"
        for label in sorted(label for label, count in Counter(labels).items() if count > 1):
            yield ("row",), f'two rows have the label "{label}"; labels must differ'
        if len(set(map(slug, labels))) < len(set(labels)):
            shown = shorten(str(labels), MAX_LINE)
            yield ("row",), f"some labels give the same folder name: {shown}; change them"
        for number, point in enumerate(self.row):
            if not point.recipe and not self.base:
                yield ("row", number, "recipe"), "missing; name a recipe, because the study has no base"
        if self.axis and not self.base:
            yield ("base",), "missing; name the recipe that the axes vary"
        try:
            parse_shifts(self.ood)
        except ValueError as error:
            yield ("ood",), str(error).removeprefix("ood: ")
        if self.reference and self.reference not in labels:
            got = f'"{shorten(self.reference)}" is not a row'
            yield ("reference",), f"{got}{did_you_mean(self.reference, labels)}"

    @property
    def num_rows(self) -> int:
        """The number of the table's rows."""
        return (math.prod(len(axis.point) for axis in self.axis) if self.axis else 0) + len(self.row)

    def _rows(self) -> list[tuple[str, str, tuple[Point, ...]]]:
        """Return label, recipe and points of every row: the combinations of the axes, then `row`."""
        rows = [*(product(*(axis.point for axis in self.axis)) if self.axis else ())]
        rows += [(point,) for point in self.row]
        labels = [", ".join(point.label for point in points) for points in rows]
        recipes = [next((point.recipe for point in points if point.recipe), self.base) for points in rows]
        return list(zip(labels, recipes, rows, strict=True))

    def labels(self) -> list[str]:
        """Return the labels of the table's rows."""
        return [label for label, _, _ in self._rows()]

    def paper_results(self) -> dict[str, dict[str, float]]:
        """Return the papers' numbers by label; a combination takes those of its only point that has any."""
        papers = {label: [dict(p.paper) for p in points if p.paper] for label, _, points in self._rows()}
        return {label: reported[0] for label, reported in papers.items() if len(reported) == 1}

    def paper_minutes(self) -> dict[str, float]:
        """Return the papers' minutes of training by label, under the same rule."""
        minutes = {label: [p.minutes for p in points if p.minutes] for label, _, points in self._rows()}
        return {label: reported[0] for label, reported in minutes.items() if len(reported) == 1}

    def trials(self) -> list[Trial]:
        """Return all trainings, with recipes read and checked. Rows with the same recipe share a trial."""
        by_recipe: dict[tuple[str, int], Trial] = {}
        for label, source, points in self._rows():
            weights = next((point.weights for point in points if point.weights), "")
            changes = [*self.sets, *(text for point in points for text in point.sets)]
            for seed in self.seeds:
                try:
                    recipe = Recipe.load(source, [*changes, f"seed={seed}"])
                except RecipeError as error:
                    raise RecipeError(f'row "{label}": {error}') from None
                if self.held_out and not recipe.validation.holds_out:
                    fix = 'set validation.images to a number above 0 and validation.on to "validation"'
                    raise RecipeError(f'row "{label}": held_out: the recipe holds out no images; {fix}')
                recipe = replace(recipe, probes=self.probes or recipe.probes, name=f"{label}, seed {seed}")
                new = Trial(seed, recipe, f"{slug(label)}/seed-{seed}", {})
                trial = by_recipe.setdefault((recipe.fingerprint(), seed), new)
                trial.rows[label] = weights or trial.selected_weights
        return list(by_recipe.values())

    def dumps(self) -> str:
        """Return the study as TOML; `Study.loads` reads it back."""
        return tomli_w.dumps(adapter(type(self)).dump_python(self))

    @classmethod
    def loads(cls, text: str, source: str = "study") -> Study:
        """Parse a study from TOML text; `source` names it in errors."""
        return decode(cls, parse_toml(text, source), source)

    @classmethod
    def load(cls, source: str | Path) -> Study:
        """Read a study from a file, or a shipped one by its name."""
        name, shipped = str(source), shipped_studies()
        file = shipped.get(name, Path(source))
        study = decode(cls, read_study(name, file, shipped, "file"), name)
        return study if study.name else replace(study, name=name if name in shipped else file.name)

    @classmethod
    def from_recipes(
        cls, recipes: Sequence[str], *, seeds: Sequence[int] = (0,), sets: Sequence[str] = ()
    ) -> Study:
        """Return a study with one row per recipe."""
        rows = tuple(Point(label=name, recipe=name) for name in recipes)
        return cls(name="comparison", row=rows, seeds=tuple(seeds), sets=tuple(sets))


@final
@dataclass(frozen=True)
class Trial:
    """One training of a study, with one seed."""

    seed: int
    recipe: Recipe
    folder: str
    """The run folder below the study's folder, named after the first row."""
    rows: dict[str, str]
    """The rows of the table that this training gives, each with the weights to evaluate."""

    @property
    def label(self) -> str:
        """The labels of its rows."""
        return " / ".join(self.rows)

    @property
    def selected_weights(self) -> str:
        """The weights that the recipe selects: "best" if it validates, else "last"."""
        return "best" if self.recipe.validation.selects else "last"

    @property
    def cost(self) -> Passes:
        """The most forward and backward passes that one training image takes over the whole run."""
        return self.recipe.total_passes()
