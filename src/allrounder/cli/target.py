"""The target of eval and doctor: a run folder, or any network with data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from torch import nn

from allrounder.cli.evaluate import TargetOptions
from allrounder.data.base import Data
from allrounder.data.inputs.by_name import load_eval_data
from allrounder.distributed import World
from allrounder.errors import RunError
from allrounder.models.external import load_network
from allrounder.nn.state import weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import Facts
from allrounder.training.data import load_data
from allrounder.training.run import RECIPE_FILE, Run, load


@final
@dataclass(frozen=True, eq=False)
class EvalTarget:
    """A network and its images; for a run, also the results folder and the threats of its recipe."""

    name: str
    model: nn.Module
    data: Data
    folder: Path | None = None
    threats: tuple[str, ...] = ()
    about: Facts = field(default_factory=dict[str, Any])


def load_target(options: TargetOptions) -> EvalTarget:
    """Load a run, with its own data unless the options name other data; or a network, weights and data."""
    model, file = options.model, options.weights
    if options.target is not None:
        path = Path(options.target)
        if (path / RECIPE_FILE).is_file():
            if model is not None or file is not None:
                advice = "leave out --model and --weights"
                raise RunError(f"{path}: is a run, which has its own network; {advice}")
            return _load_run(path, options.which, options.data)
        if path.is_dir():
            raise RunError(f"{path}: not a run folder, it has no {RECIPE_FILE}")
        if file is not None:
            raise RunError(f"{path} and --weights {file}: got two weights files, expected one")
        file = path
    if model is None or options.data is None:
        problem = "no network given" if file is None else f"{file}: not a run folder"
        raise RunError(f"{problem}; give a run folder, or --model NAME --weights FILE --data NAME")
    images = load_eval_data(options.data)
    network = load_network(model, file, classes=len(images.classes), shape=images.shape, key=options.key)
    name = model if file is None else f"{model} {file.name}"
    return EvalTarget(name, network, images, about={"name": name, "data": options.data})


def load_target_on_all_ranks(world: World, options: TargetOptions) -> EvalTarget:
    """Load the same target on all ranks. Rank 0 reads a run and sends its recipe and weights to the others.

    Every machine reads data and external networks by itself.
    """
    if world.size == 1 or options.model is not None:
        return load_target(options)
    folder = Path(str(options.target))
    own = load_target(options) if world.is_main else None
    note = None if own is None else {"recipe": Run(folder).recipe.dumps(), "about": own.about}
    note = world.all_gather_object("the run to evaluate", note)[0]
    if own is None:
        recipe = Recipe.loads(note["recipe"])
        images = load_data(recipe) if options.data is None else load_eval_data(options.data)
        network = recipe.model.build(len(images.classes), images.shape).eval()
        own = EvalTarget(recipe.name, network, images, folder, _probe_threats(recipe), note["about"])
    world.broadcast_(weights_of(own.model), src=0)
    return own


def _probe_threats(recipe: Recipe) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(probe.threat) for probe in recipe.probes))


def _load_run(folder: Path, which: str, data: str | None) -> EvalTarget:
    run = Run(folder)
    recipe = run.recipe
    _, facts = run.weights(which)
    images = load_data(recipe) if data is None else load_eval_data(data)
    if len(images.classes) != len(facts["classes"]):
        expected = f"expected {len(facts['classes'])} as in the run; give data with the same classes"
        raise RunError(f"{folder}: the data has {len(images.classes)} classes, {expected}")
    about: dict[str, Any] = {"weights": which, "recipe": recipe.fingerprint(), "name": recipe.name}
    if "best" in which:
        about["selected_on"] = recipe.validation.on
    if recipe.extra is not None:
        about["extra"] = str(recipe.extra)
    if data is not None:
        about["data"] = data
    results = folder / "eval" / which.replace("@", "-")
    return EvalTarget(recipe.name, load(folder, which), images, results, _probe_threats(recipe), about)
