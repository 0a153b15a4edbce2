"""The index of everything that has a name: recipes, studies, objectives, attacks, ...

`allrounder list`, `allrounder schema`, help texts and completion read it from generated files, because
importing the tables themselves imports torch. `make index` (`python -m allrounder.cli.index`) writes the
files; a test compares them with the tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import typer

from allrounder.cli.echo import echo

if TYPE_CHECKING:
    from allrounder.recipe.recipe import Recipe

INDEX_FILE = "index.json"
SCHEMA_FILE = "schema.json"
STUDY_STYLES = ("markdown", "latex", "csv", "json")
"""The styles of the table of a study."""
NOTE_LEVELS = ("all", "short", "no")
"""The notes below the table of a study."""


class RecipeFacts(TypedDict):
    """What the list of recipes shows beside a name and its line."""

    methods: str
    """Kinds of pipelines, objectives, updates and attacks, without descend and pgd, separated by spaces;
    "generalist" comes first if learners are mixed."""
    norms: str
    passes: str
    """Forward/backward passes per training image and step; of a pipeline's last stage."""


class Index(TypedDict):
    """The content of the index file."""

    lists: dict[str, dict[str, str]]
    """By the title of a list, its names with one line each."""
    recipes: dict[str, RecipeFacts]
    suites: list[str]
    budgets: dict[str, int | None]
    """The number of images by name; null for all."""
    table_styles: list[str]
    """The styles of the table of an evaluation."""
    class_tables: list[str]
    """The tables of single classes that an evaluation prints."""
    corruptions: list[str]
    perturbations: list[str]
    downloads: list[str]
    """The datasets that `allrounder data get` downloads."""


@cache
def read_index() -> Index:
    """Read the generated index."""
    return json.loads(Path(__file__).with_name(INDEX_FILE).read_text(encoding="utf-8"))


def read_schema() -> str:
    """Read the generated JSON Schema of recipes."""
    return Path(__file__).with_name(SCHEMA_FILE).read_text(encoding="utf-8")


def check_choice(got: str, choices: Iterable[str], option: str | None = None) -> None:
    """Raise a usage error unless an argument, or the value of an option, is one of the choices."""
    names = list(choices)
    if got not in names:
        from allrounder.config.fields import did_you_mean

        message = f"{got}: expected one of {', '.join(names)}{did_you_mean(got, names)}"
        raise typer.BadParameter(message, param_hint=option)


def _completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def list_folders() -> list[str]:
    """Return the folders of shipped recipes and studies."""
    lists = read_index()["lists"]
    return sorted({name.split("/")[0] for title in ("recipes", "studies") for name in lists[title]})


def list_methods() -> list[str]:
    """Return the methods of the shipped recipes."""
    return sorted(
        {method for facts in read_index()["recipes"].values() for method in facts["methods"].split()}
    )


complete_recipe = _completion(lambda: read_index()["lists"]["recipes"])
complete_study = _completion(lambda: read_index()["lists"]["studies"])
complete_figure = _completion(lambda: read_index()["lists"]["figures"])
complete_list = _completion(lambda: (*read_index()["lists"], *list_folders()))
complete_method = _completion(lambda: list_methods())
complete_dataset = _completion(lambda: read_index()["downloads"])


def schema() -> None:
    """Print the JSON Schema of recipes, for editors that complete and check TOML."""
    echo(read_schema().rstrip())


def build_index() -> Index:
    """Build the index from the tables; imports torch."""
    from allrounder.attacks import ATTACKS, SEARCHES
    from allrounder.config.schedules import DECAYS, SCHEDULES
    from allrounder.data import DATASETS
    from allrounder.data.augment import AUGMENTS
    from allrounder.data.corruptions import CORRUPTIONS
    from allrounder.data.corruptions.perturbations import PERTURBATIONS
    from allrounder.data.files.catalog import PUBLISHED
    from allrounder.evaluation.evaluate import BUDGETS
    from allrounder.evaluation.probes import SUITES
    from allrounder.experiments.study import Study, shipped_studies
    from allrounder.models import MODELS
    from allrounder.nn.mixing import MIXES
    from allrounder.objectives import OBJECTIVES, describe_objective
    from allrounder.optim import UPDATES
    from allrounder.optim.optimizers import OPTIMIZERS
    from allrounder.recipe.init import INITS
    from allrounder.recipe.library import shipped_recipes
    from allrounder.recipe.pipeline import PIPELINES
    from allrounder.recipe.recipe import Recipe
    from allrounder.report.class_tables import CLASS_TABLES
    from allrounder.report.figures import FIGURES
    from allrounder.report.render import SHIFT_STYLES

    tables: dict[str, Mapping[str, type[Any]]] = {
        "attacks": ATTACKS,
        "searches": SEARCHES,
        "models": MODELS,
        "datasets": DATASETS,
        "optimizers": OPTIMIZERS,
        "schedules": {**SCHEDULES, **DECAYS},
        "augmentations": AUGMENTS,
        "updates": UPDATES,
        "mixes": MIXES,
        "inits": INITS,
        "pipelines": PIPELINES,
    }
    recipes = {name: Recipe.load(name) for name in shipped_recipes()}
    lists = {
        "recipes": {name: recipe.about for name, recipe in recipes.items()},
        "studies": {name: Study.load(name).about for name in shipped_studies()},
        "objectives": {
            k: f"{_first_sentence(cls)} ({describe_objective(k)})" for k, cls in OBJECTIVES.items()
        },
    }
    for title, table in tables.items():
        lists[title] = {name: _first_sentence(cls) for name, cls in table.items()}
    lists["figures"] = {name: kind.about for name, kind in FIGURES.items()}
    return {
        "lists": lists,
        "recipes": {name: _describe_recipe(recipe) for name, recipe in recipes.items()},
        "suites": list(SUITES),
        "budgets": dict(BUDGETS),
        "table_styles": [*STUDY_STYLES, "robustbench", *SHIFT_STYLES],
        "class_tables": list(CLASS_TABLES),
        "corruptions": list(CORRUPTIONS),
        "perturbations": list(PERTURBATIONS),
        "downloads": list(PUBLISHED),
    }


def _describe_recipe(recipe: Recipe) -> RecipeFacts:
    from allrounder.attacks import ATTACKS
    from allrounder.config.fields import kind_of
    from allrounder.objectives import OBJECTIVES
    from allrounder.optim import UPDATES
    from allrounder.recipe.pipeline import PIPELINES

    methods = ["generalist"] if recipe.mix is not None and len(recipe.tasks) > 1 else []
    if recipe.pipeline is not None:
        methods.append(kind_of(recipe.pipeline, PIPELINES))
    for task in recipe.tasks:
        objective = kind_of(task.objective.core, OBJECTIVES)
        attack = getattr(task.objective.core, "attack", None)
        methods += ["taught"] if task.objective.teachers() else []
        methods += [objective, kind_of(task.update, UPDATES)]
        if objective == "adversarial":  # other objectives have their own attacks
            methods.append(kind_of(attack, ATTACKS))
    norms = [threat.norm.name for task in recipe.tasks for threat in task.objective.threats()]
    return {
        "methods": " ".join(method for method in dict.fromkeys(methods) if method not in ("descend", "pgd")),
        "norms": " ".join(dict.fromkeys(norms)),
        "passes": str(recipe.passes()),
    }


def build_schema() -> str:
    """Build the JSON Schema of recipes; imports torch."""
    from allrounder.config.decode import json_schema
    from allrounder.recipe.recipe import Recipe

    return json.dumps(json_schema(Recipe), indent=1) + "\n"


def write_index(folder: Path) -> None:
    """Write the index and the schema into a folder."""
    (folder / INDEX_FILE).write_text(json.dumps(build_index(), indent=1) + "\n", encoding="utf-8")
    (folder / SCHEMA_FILE).write_text(build_schema(), encoding="utf-8")


def _first_sentence(cls: type[Any]) -> str:
    paragraph = " ".join((cls.__doc__ or "").split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


if __name__ == "__main__":
    write_index(Path(__file__).parent)
