"""A study: several trainings to be compared, as one frozen value and one TOML file.

about = "How often learners restart"
base  = "embedded/generalist-d-nt-linf"     the recipe that points of axes change
seeds = [0, 1]

[[axis]]                                    several axes: every combination
name  = "c"
point = [{ label = "1 epoch", sets = ["mix.exchange.every=1"] }, { label = "2 epochs", sets = [...] }]

[[row]]                                     what is compared with them, by itself
label  = "AT"
recipe = "embedded/at-linf"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import product
from pathlib import Path
from typing import Annotated, final

import tomli_w
from pydantic import Field

from allrounder.config.decode import decode
from allrounder.config.fields import Count, Some, Whole, adapter, nearest, refuse, value
from allrounder.errors import RecipeError
from allrounder.evaluation.probes import Probe
from allrounder.recipe.recipe import Recipe
from allrounder.types import Passes

Label = Annotated[str, Field(min_length=1, max_length=80)]
Percent = Annotated[float, Field(ge=0, le=100)]
FOLDER = "studies"


@final
@value
class Point:
    """One place on an axis: what it is called, and what it changes."""

    label: Label
    sets: tuple[str, ...] = ()
    """Overrides, `a.b=c`."""
    recipe: str = ""
    """Another recipe than the base."""
    weights: str = ""
    """Which weights are evaluated: "last", "live" (of the only learner, without its average), a learner's
    name, ...; by default the selected global ones. Rows that differ in this alone share a training."""
    paper: Mapping[str, Percent] = Field(default_factory=dict[str, float])  # pyright: ignore[reportAssignmentType]
    """What a paper reports for it, in percent by probe ("natural", "aa@Linf:8/255") or attack with "worst" or
    "mean" ("aa mean")."""


@final
@value
class Axis:
    """Something that is varied."""

    name: Label
    point: Annotated[tuple[Point, ...], Some]


@final
@value
class Study:
    """Recipes to be trained with several seeds, evaluated alike and compared in one table."""

    about: str = ""
    base: str = ""
    """The recipe that axes vary: a shipped one by name, or a file."""
    sets: tuple[str, ...] = ()
    """Overrides for all trainings, before those of points."""
    seeds: Annotated[tuple[Whole, ...], Some] = (0,)
    axis: tuple[Axis, ...] = ()
    row: tuple[Point, ...] = ()
    """Trainings beside those of the axes, each from a recipe of its own or from the base."""
    probes: tuple[Probe, ...] = ()
    """What all are put to; by default what the recipe of each says."""
    images: Count | None = None
    """Test images, as many of every class; by default all."""
    reference: str = ""
    """The label of the row that others are compared with, image by image; by default the first."""
    source: str = ""
    """Where the papers' numbers stand."""
    name: str = ""

    def __post_init__(self) -> None:
        labels = [label for label, _, _ in self._rows()]
        problems: list[tuple[tuple[str | int, ...], str]] = []
        if not labels:
            problems.append((("row",), "missing; say what is compared, with [[axis]] or [[row]]"))
        for field in ("recipe", "weights"):
            having = [axis.name for axis in self.axis if any(getattr(point, field) for point in axis.point)]
            if len(having) > 1:
                problems.append((("axis",), f"{field} is named by {having}; expected one axis that does"))
        for label in sorted({label for label in labels if labels.count(label) > 1}):
            problems.append((("row",), f'two rows are called "{label}"; names must differ'))
        slugs = [slug(label) for label in labels]
        if len(set(slugs)) < len(set(labels)):
            problems.append((("row",), f"labels that make the same folder: {labels}; tell them apart"))
        for number, point in enumerate(self.row):
            if not point.recipe and not self.base:
                problems.append((("row", number, "recipe"), "missing, as there is no base"))
        if self.axis and not self.base:
            problems.append((("base",), "missing; say which recipe the axes vary"))
        if self.reference and self.reference not in labels:
            problems.append(
                (("reference",), f'"{self.reference}" is no row{nearest(self.reference, labels)}')
            )
        refuse(self, problems)

    def _rows(self) -> list[tuple[str, str, tuple[Point, ...]]]:
        """Label, recipe and points of every row: first the combinations of the axes, then the others."""
        found: list[tuple[str, str, tuple[Point, ...]]] = []
        for points in product(*(axis.point for axis in self.axis)) if self.axis else ():
            label = ", ".join(point.label for point in points)
            found.append((label, next((p.recipe for p in points if p.recipe), self.base), points))
        found += [(point.label, point.recipe or self.base, (point,)) for point in self.row]
        return found

    def labels(self) -> list[str]:
        """The rows of the table."""
        return [label for label, _, _ in self._rows()]

    def paper(self) -> dict[str, dict[str, float]]:
        """The papers' numbers by label; of a combination, those of its only point that has some."""
        found: dict[str, dict[str, float]] = {}
        for label, _, points in self._rows():
            told = [dict(point.paper) for point in points if point.paper]
            if len(told) == 1:
                found[label] = told[0]
        return found

    def trials(self) -> list[Trial]:
        """Every training, read and checked, so that what is wrong is said before the first begins."""
        found: dict[tuple[str, int], Trial] = {}
        for label, recipe, points in self._rows():
            weights = next((point.weights for point in points if point.weights), "")
            changes = [*self.sets, *(text for point in points for text in point.sets)]
            for seed in self.seeds:
                try:
                    read = Recipe.load(recipe, [*changes, f"seed={seed}"])
                except RecipeError as error:
                    raise RecipeError(f'row "{label}": {error}') from None
                asked = replace(read, probes=self.probes or read.probes, name=f"{label}, seed {seed}")
                new = Trial(seed, asked, f"{slug(label)}/seed-{seed}", {})
                trial = found.setdefault((asked.fingerprint(), seed), new)
                trial.rows[label] = weights or trial.selected
        return list(found.values())

    def dump(self) -> str:
        """The study as TOML; `Study.loads(dump())` is the study again."""
        return tomli_w.dumps(adapter(type(self)).dump_python(self, mode="json", exclude_none=True))

    @classmethod
    def loads(cls, text: str, source: str = "study") -> Study:
        """Read a study from TOML text."""
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(f"{source}: not TOML: {error}") from None
        return decode(cls, raw, source)

    @classmethod
    def load(cls, source: str | Path) -> Study:
        """Read a file, or a shipped study by its name."""
        known = shipped_studies()
        file = known[str(source)] if str(source) in known else Path(source)
        if not file.is_file():
            hint = nearest(str(source), known)
            raise RecipeError(
                f"{source}: no such file, and no shipped study of that name{hint} "
                "(see: allrounder list studies)"
            )
        study = cls.loads(file.read_text(encoding="utf-8"), str(source))
        return (
            study if study.name else replace(study, name=str(source) if str(source) in known else file.name)
        )

    @classmethod
    def of(cls, recipes: Sequence[str], *, seeds: Sequence[int] = (0,), sets: Sequence[str] = ()) -> Study:
        """Compare recipes, each a row."""
        rows = tuple(Point(label=name, recipe=name) for name in recipes)
        return cls(name="comparison", row=rows, seeds=tuple(seeds), sets=tuple(sets))


@final
@dataclass(frozen=True)
class Trial:
    """One training of a study."""

    seed: int
    recipe: Recipe
    folder: str
    """Below the study's folder, called after its first row."""
    rows: dict[str, str]
    """The rows of the table that it gives, each with the weights that are evaluated for it."""

    @property
    def label(self) -> str:
        """Its rows."""
        return " / ".join(self.rows)

    @property
    def selected(self) -> str:
        """The weights that its recipe selects."""
        validation = self.recipe.validation
        return "best" if validation.images or validation.on == "test" else "last"

    @property
    def cost(self) -> Passes:
        """Forward and backward passes that every training image takes over the whole run, at most."""
        return self.recipe.whole_passes()


def slug(label: str) -> str:
    """A label as the name of a folder."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "row"


def shipped_studies() -> dict[str, Traversable]:
    """The studies inside the package, by name."""
    root = resources.files("allrounder.experiments") / FOLDER
    found: dict[str, Traversable] = {}
    for folder in sorted(root.iterdir(), key=lambda entry: entry.name):
        if folder.is_dir():
            for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
                if file.name.endswith(".toml"):
                    found[f"{folder.name}/{file.name.removesuffix('.toml')}"] = file
    return found
