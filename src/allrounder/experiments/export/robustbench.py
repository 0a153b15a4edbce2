"""Writes what RobustBench asks for: the JSON file of a model, its weights and its architecture."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allrounder.config.fields import kind_of
from allrounder.data import DATASETS
from allrounder.errors import InputError, RunError
from allrounder.experiments.export.check import check_module
from allrounder.experiments.export.folder import write_state_dict
from allrounder.experiments.export.module import MODULE_FILE, write_module
from allrounder.experiments.export.trained_network import TrainedNetwork
from allrounder.models.base import ModelSpec
from allrounder.models.ensemble import EnsembleModel
from allrounder.models.wide_resnet import FIXED_LAYERS, WideResNet
from allrounder.report.outcome import JUDGE, Outcome
from allrounder.report.robustbench import REQUIRED_FIELDS, TEST_IMAGES, to_robustbench
from allrounder.system.files import make_folder, write_text
from allrounder.threats.norms import Norm, parse_norm
from allrounder.threats.threat import Threat

ARCHITECTURES = {
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "preactresnet18": "PreActResNet-18",
    "resnet50": "ResNet-50",
    "wrn-50-2": "WideResNet-50-2",
}
"""RobustBench's names of architectures."""
NORMS = ("Linf", "L2")
"""The norms that RobustBench has lists for."""
ENTRY = '''

def build_for_zoo() -> nn.Module:
    """Build the network with the names of weights that RobustBench expects."""
    {build}


ZOO_ENTRY = {{{id}: {{"model": build_for_zoo, "gdrive_id": None}}}}
"""The entry of RobustBench's model zoo; gdrive_id is the place of the weights once they are uploaded."""
'''
README = """# {id} for RobustBench

| file | place in RobustBench |
| --- | --- |
| `{info}` | the same |
| `{weights}` | the same below the folder from which it is used; upload it for others |
| `model.py` | `robustbench/model_zoo/architectures/{module}.py` |

1. Upload the weights, and put the id of the file into `ZOO_ENTRY` at the end of `model.py`.
2. Add `ZOO_ENTRY` to the models of `{norm}` in `robustbench/model_zoo/{dataset}.py`.
3. Check it: `load_model("{id}", dataset="{dataset}", threat_model="{norm}")`.

The numbers are those of this project's AutoAttack; RobustBench runs its own before it lists a model.
"""


def write_robustbench(
    trained: TrainedNetwork, folder: Path, about: Mapping[str, Any], threat: Threat | Norm | None
) -> tuple[dict[str, Any], list[str]]:
    """Write the files of a model into a folder; return its check, and notes for the user.

    `about` gives the fields of `report/robustbench.py` that a run does not know, and may give "model_id" and
    replace what it knows.
    """
    outcome, doubt = trained.read_outcome()
    probe = _find_autoattack(trained, outcome, threat)
    assert outcome is not None
    given = dict(about)
    model_id = str(given.pop("model_id", "") or re.sub(r"[^A-Za-z0-9_.-]+", "_", trained.name))
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", model_id):
        expected = "expected letters, digits, _, . and -, such as Wang2024Better_WRN-28-10"
        raise RunError(f"about.model_id: got {model_id!r}, {expected}; change it")
    fields = {**_known_fields(trained), **given}
    if missing := [key for key in REQUIRED_FIELDS if fields.get(key) in (None, "")]:
        example = 'such as venue = "Unpublished"'
        advice = f"write a TOML file with these keys, {example}, and give it with --about (in Python: about=)"
        raise InputError(f"about: missing {', '.join(missing)}; {advice}")
    norm = probe.partition("@")[2].partition(":")[0]
    dataset = fields["dataset"] = _normalise_dataset(str(fields["dataset"]))
    text = to_robustbench(outcome, fields, probe.partition("@")[2])
    place = f"{_safe_name(dataset)}/{norm}/{model_id}"
    info, weights = f"model_info/{place}.json", f"models/{place}.pt"
    make_folder((folder / info).parent)
    write_text(folder / info, text.rstrip() + "\n")
    write_state_dict(folder / weights, trained.state_dict())
    module = write_module(trained.spec, trained.classes, trained.shape, weights, trained.describe())
    write_text(
        folder / MODULE_FILE, module + ENTRY.format(id=f'"{model_id}"', build=_describe_zoo_model(dataset))
    )
    words = {"id": model_id, "info": info, "weights": weights, "norm": norm, "dataset": _safe_name(dataset)}
    name = re.sub(r"\W", "_", model_id.lower())
    write_text(folder / "README.md", README.format(**words, module=name))
    notes = [f"it was not checked what the numbers are of: {doubt}"] if doubt else []
    return check_module(folder / MODULE_FILE, trained), notes + _list_notes(outcome, norm, dataset)


def _find_autoattack(trained: TrainedNetwork, outcome: Outcome | None, threat: Threat | Norm | None) -> str:
    """Return the probe of AutoAttack to write; raise RunError with the command to run if there is none."""
    probes = [] if outcome is None else outcome.probes(JUDGE)
    chosen = [name for name in probes if threat is None or _is_under(name, threat)]
    if len(chosen) == 1:
        return chosen[0]
    folder = trained.run.folder
    if len(chosen) > 1:
        raise RunError(f"{folder}: has {', '.join(chosen)}, expected one; choose one with --threat")
    known = dict.fromkeys(probe.threat for probe in trained.recipe.probes)
    if isinstance(threat, Threat):
        threats = [str(threat)]
    else:
        threats = [str(found) for found in known if threat is None or found.norm == threat]
    example = "Linf:8/255" if threat is None else f"{threat}:BUDGET"
    under = "".join(f" --threat {shlex.quote(name)}" for name in threats or [example])
    command = f"{trained.eval_command} --attack {JUDGE}{under} --budget full"
    got = "has no evaluation with AutoAttack"
    if probes:
        got = f"has {', '.join(probes)}, but not {JUDGE}@{threat}"
    raise RunError(f"{folder}: {got}, which RobustBench needs; run first: {command}")


def parse_threat_or_norm(raw: object) -> Threat | Norm:
    """Parse "Linf:8/255", or "Linf" for any budget."""
    if isinstance(raw, Threat | Norm):
        return raw
    return Threat.parse(raw) if ":" in str(raw) else parse_norm(raw)


def _is_under(probe: str, threat: Threat | Norm) -> bool:
    """Return whether a probe is under a threat, or under one of its norm; budgets are compared as numbers."""
    found = Threat.parse(probe.partition("@")[2])
    if isinstance(threat, Norm):
        return found.norm == threat
    return (found.norm, found.eps) == (threat.norm, threat.eps)


def _known_fields(trained: TrainedNetwork) -> dict[str, Any]:
    """Return the fields that the run knows."""
    recipe = trained.recipe
    return {
        "additional_data": recipe.extra is not None,
        "number_forward_passes": trained.spec.num_networks,
        "dataset": kind_of(recipe.data, DATASETS),
        "architecture": describe_architecture(trained.spec, str(trained.describe_model()["kind"])),
    }


def describe_architecture(spec: ModelSpec, kind: str) -> str:
    """Return the name of an architecture as RobustBench writes it, with its width if that is unusual."""
    if isinstance(spec, EnsembleModel):
        return f"Ensemble of {spec.num_networks}"
    if isinstance(spec, WideResNet):
        name = f"WideResNet-{6 * spec.num_blocks() + FIXED_LAYERS['usual']}-{spec.widen}"
    else:
        name = ARCHITECTURES.get(kind, kind)
    width = getattr(spec, "width", None)
    if width is None or width == type(spec)().width:  # pyright: ignore
        return name
    return f"{name}, width {width}"


def _describe_zoo_model(dataset: str) -> str:
    """Return the body of a function. For ImageNet, RobustBench adds "model." to the names of all weights."""
    if dataset != "imagenet":
        return "return build()"
    return 'network = nn.Sequential()\n    network.add_module("model", build())\n    return network'


def _normalise_dataset(name: str) -> str:
    """Return RobustBench's spelling of a dataset that it lists, such as cifar10 for CIFAR-10."""
    key = name.lower().replace("-", "")
    return key if key in TEST_IMAGES else name


def _list_notes(outcome: Outcome, norm: str, dataset: str) -> list[str]:
    """Return what keeps RobustBench from listing the model."""
    notes: list[str] = []
    if dataset not in TEST_IMAGES:
        notes.append(f"RobustBench has no list for the dataset {dataset}")
    elif len(outcome) != TEST_IMAGES[dataset]:
        notes.append(f"measured on {len(outcome)} images; RobustBench expects {TEST_IMAGES[dataset]}")
    if norm not in NORMS:
        notes.append(f"RobustBench has no list for {norm}")
    return notes


def _safe_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)
