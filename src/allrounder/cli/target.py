"""What the command line is asked to examine: a run of ours, or somebody's network with data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from torch import nn

from allrounder.data.base import Data
from allrounder.data.inputs.by_name import data_of
from allrounder.distributed import World
from allrounder.errors import RunError
from allrounder.models.external import network_of
from allrounder.nn.state import weights_of
from allrounder.recipe.recipe import Recipe
from allrounder.report.outcome import Facts
from allrounder.training.run import RECIPE, Run, load


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """A network and its images; a run also says where results go and which threats it was made for."""

    name: str
    model: nn.Module
    data: Data
    folder: Path | None = None
    threats: tuple[str, ...] = ()
    about: Facts = field(default_factory=dict[str, Any])


def subject_of(
    what: str | None,
    *,
    which: str = "best",
    model: str | None = None,
    weights: Path | None = None,
    key: str | None = None,
    data: str | None = None,
) -> Subject:
    """A run folder, with its own data unless other data is named; else a model, its weights, and data.

    `what` may also be the file of the weights.
    """
    path = None if what is None else Path(what)
    if path is not None and (path / RECIPE).is_file():
        if model is not None or weights is not None:
            raise RunError(f"{path}: is a run, which has its own network; leave out --model and --weights")
        return _of_run(path, which, data)
    if path is not None and path.is_dir():
        raise RunError(f"{path}: no run folder, it has no {RECIPE}")
    if path is not None and weights is not None:
        raise RunError(f"{path} and --weights {weights}: got two files of weights, expected one")
    file = weights or path
    if model is None or data is None:
        what = "nothing to examine" if file is None else f"{file}: no run folder"
        raise RunError(f"{what}; give a run folder, or --model NAME --weights FILE --data NAME")
    images = data_of(data)
    network = network_of(model, file, classes=len(images.classes), shape=images.shape, key=key)
    name = model if file is None else f"{model} {file.name}"
    return Subject(name, network, images, about={"name": name, "data": data})


def subject_among(world: World, what: str | None, *, data: str | None = None, **options: Any) -> Subject:
    """The same for all ranks of a world; a run is read by rank 0 alone, which sends recipe and weights.

    Data, and networks and weights from elsewhere, are read on every machine.
    """
    if world.size == 1 or options.get("model") is not None:
        return subject_of(what, data=data, **options)
    own = subject_of(what, data=data, **options) if world.chief else None
    note = None if own is None else {"recipe": Run(Path(str(what))).recipe.dump(), "about": own.about}
    note = world.meet("the run to evaluate", note)[0]
    if own is None:
        recipe = Recipe.loads(note["recipe"])
        images = recipe.read_data() if data is None else data_of(data)
        network = recipe.model.build(len(images.classes), images.shape).eval()
        own = Subject(recipe.name, network, images, Path(str(what)), _threats(recipe), note["about"])
    world.broadcast_(weights_of(own.model), src=0)
    return own


def _threats(recipe: Recipe) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(probe.threat) for probe in recipe.probes))


def _of_run(folder: Path, which: str, data: str | None) -> Subject:
    run = Run(folder)
    recipe = run.recipe
    _, facts = run.weights(which)
    images = recipe.read_data() if data is None else data_of(data)
    if len(images.classes) != len(facts["classes"]):
        told = f"{len(images.classes)} classes, the run has {len(facts['classes'])}"
        raise RunError(f"{folder}: the data has {told}; give data with the same classes")
    about: dict[str, Any] = {"weights": which, "recipe": recipe.fingerprint(), "name": recipe.name}
    if "best" in which:
        about["selected_on"] = recipe.validation.on
    about |= {} if recipe.extra is None else {"extra": str(recipe.extra)}
    about |= {} if data is None else {"data": data}
    where = folder / "eval" / which.replace("@", "-")
    return Subject(recipe.name, load(folder, which), images, where, _threats(recipe), about)
