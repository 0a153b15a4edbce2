"""The target of eval and doctor: a run folder, or any network with data."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from torch import nn

from allrounder.cli.evaluate import EvalCommand, TargetOptions
from allrounder.data.base import Data
from allrounder.data.inputs.by_name import load_eval_data
from allrounder.distributed import World
from allrounder.errors import RunError
from allrounder.models.external import load_network
from allrounder.models.normalisation import MeanStd, parse_normalisation
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
            if options.normalise is not None:
                raise RunError(f"{path}: is a run, whose network normalises itself; leave out --normalise")
            return _load_run(path, options.which, options.data)
        if path.is_dir():
            module = shlex.quote(str(path / "model.py"))
            export = f"; for an export: --model {module}:load --data NAME --threat THREAT"
            hint = export if (path / "model.py").is_file() else ""
            raise RunError(f"{path}: not a run folder, it has no {RECIPE_FILE}{hint}")
        if file is not None:
            raise RunError(f"{path} and --weights {file}: got two weights files, expected one")
        file = path
    if model is None or options.data is None:
        reason = "not a run folder" if file is not None and file.exists() else "no such file or folder"
        problem = "no network given" if file is None else f"{file}: {reason}"
        raise RunError(f"{problem}; give a run folder, or --model NAME --weights FILE --data NAME")
    images = load_eval_data(options.data)
    network = load_network(
        model,
        file,
        classes=len(images.classes),
        shape=images.shape,
        key=options.key,
        normalise=_parse_normalise(options.normalise),
    )
    name = model if file is None else f"{model} {file.name}"
    about = {"name": name, "data": options.data}
    if options.normalise is not None:
        about["normalised"] = options.normalise
    return EvalTarget(name, network, images, about=about)


def _parse_normalise(text: str | None) -> MeanStd | None:
    return None if text is None else parse_normalisation(text)


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


@final
@dataclass(frozen=True, eq=False)
class Source:
    """A network to craft images on."""

    name: str
    model: nn.Module


def load_source(options: EvalCommand, data: Data) -> Source | None:
    """Load the network of `--source`, for the images of the target; None without one.

    Every machine reads it by itself. The network of a weights file is `--source-model`, or that of the
    target, then with the constants of the target unless others are given.
    """
    model, normalise = options.source_model, options.source_normalise
    if options.source is None and model is None:
        if normalise is not None:
            raise RunError("--source-normalise: there is no source; give --source or --source-model")
        return None
    folder = None if options.source is None else Path(options.source)
    if folder is not None and (folder / RECIPE_FILE).is_file():
        if model is not None:
            raise RunError(
                f"--source {folder}: is a run, which has its own network; leave out --source-model"
            )
        if normalise is not None:
            raise RunError(
                f"--source {folder}: is a run, whose network normalises itself; leave out --source-normalise"
            )
        run = Run(folder)
        _check_classes(folder, run.weights("best")[1], data)
        source = Source(run.recipe.name, load(folder, "best"))
    else:
        spec = model or options.model
        if spec is None or (folder is not None and folder.is_dir()):
            expected = "expected a run folder, or a weights file with --source-model NAME"
            raise RunError(f"--source {folder}: not a run folder, {expected}")
        if model is None and normalise is None:
            normalise = options.normalise
        network = load_network(
            spec,
            folder,
            classes=len(data.classes),
            shape=data.shape,
            normalise=_parse_normalise(normalise),
        )
        source = Source(spec if folder is None else folder.stem, network)
    return replace(source, name=re.sub(r"[^A-Za-z0-9._]+", "-", source.name).strip("-._"))


def _check_classes(folder: Path, facts: Facts, data: Data) -> None:
    if len(data.classes) != len(facts["classes"]):
        expected = f"expected {len(facts['classes'])} as in the run; give data with the same classes"
        raise RunError(f"{folder}: the data has {len(data.classes)} classes, {expected}")


def _probe_threats(recipe: Recipe) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(probe.threat) for probe in recipe.probes))


def _load_run(folder: Path, which: str, data: str | None) -> EvalTarget:
    run = Run(folder)
    recipe = run.recipe
    _, facts = run.weights(which)
    images = load_data(recipe) if data is None else load_eval_data(data)
    _check_classes(folder, facts, images)
    about: dict[str, Any] = {"weights": which, "recipe": recipe.fingerprint(), "name": recipe.name}
    if "best" in which:
        about["selected_on"] = recipe.validation.on
    about |= {key: facts[key] for key in ("mixture", "networks") if key in facts}
    if recipe.extra is not None:
        about["extra"] = str(recipe.extra)
    if data is not None:
        about["data"] = data
    results = folder / "eval" / which.replace("@", "-")
    return EvalTarget(recipe.name, load(folder, which), images, results, _probe_threats(recipe), about)
