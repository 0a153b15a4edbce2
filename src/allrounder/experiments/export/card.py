"""The model card of a Hugging Face folder: what the network is, what was measured on it, and its limits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from allrounder.data.datasets.npz import InMemory
from allrounder.experiments.export.robustbench import describe_architecture
from allrounder.experiments.export.trained_network import TrainedNetwork
from allrounder.experiments.machine_paths import ABSOLUTE_PATH
from allrounder.report.corruption_metrics import parse_shift_id
from allrounder.report.outcome import Outcome
from allrounder.report.render import render

TAGS = ("image-classification", "adversarial-robustness", "allrounder")
USAGE = """```python
import model  # model.py of this folder; it needs torch and safetensors

network = model.load()
logits = network(images)  # float32 in [0, 1], of shape (n, {shape}); do not normalise them
names = [model.CLASSES[index] for index in logits.argmax(1)]
```"""
RECIPE = "`recipe.toml` has every setting: `allrounder train recipe.toml --out RUN` trains it again."
NO_RECIPE = "The recipe is not part of this folder, because it names folders of the machine that it ran on."
NO_DATA = (
    "`recipe.toml` has every setting, but not the images {names}, which were given from Python: "
    "`allrounder.train(recipe, out, data=...)` needs them to train it again."
)
MIXED = "`allrounder dial` made it of these trained runs, so no recipe alone trains it again: {sources}."
NOT_CHECKED = "It was not checked that these numbers are of these weights and of the test images: {doubt}."
NOT_EVALUATED = "These weights were not evaluated. Measure them before you rely on them."
LIMITS = (
    "Robustness was measured with attacks, not proven: a stronger attack can only lower these numbers.",
    "It holds for the norms and budgets of the table, and for images from the same source as the training "
    "images. Other norms, larger budgets, rotations, patches or new cameras are not covered.",
    "An accuracy on n images has the interval beside it; differences inside of it mean little.",
)
ONE_TRAINING = "The numbers are those of one training (one seed). Another seed gives others."
ONE_MIXTURE = "The numbers are those of one mixture of trained networks. Other trainings of them give others."


def write_card(trained: TrainedNetwork, outcome: Outcome | None, doubt: str, has_recipe: bool) -> str:
    """Return the text of README.md, with the front matter that Hugging Face reads.

    `doubt` says why it is not known what the outcome is of; it is empty if this was checked.
    """
    recipe, names = trained.recipe, ", ".join(trained.recipe.names)
    usage = USAGE.format(shape=", ".join(map(str, trained.shape)))
    selected = trained.facts.get("selected_on")
    selection = f", selected on {selected} images" if selected and "best" in trained.which else ""
    facts = [
        ("architecture", describe_architecture(trained.spec, str(trained.describe_model()["kind"]))),
        ("data", f"{trained.facts['data']}, {len(trained.classes)} classes"),
        ("extra data", _hide_path(str(trained.facts.get("extra", "none")))),
        ("recipe", f"{trained.name}, fingerprint {recipe.fingerprint()}"),
        ("learners", names),
        ("threats of the training", ", ".join(_training_threats(trained)) or "none"),
        ("weights", f"{trained.which}, of step {trained.facts['t']}{selection}"),
        ("training seed", str(recipe.seed)),
        ("networks per prediction", str(trained.spec.num_networks)),
    ]
    is_mixture = "mixture" in trained.facts
    if is_mixture:
        facts.append(("mixed after training", json.dumps(trained.facts["mixture"], ensure_ascii=False)))
    if outcome is not None and "extra" in outcome.facts:
        shown = {**outcome.facts, "extra": _hide_path(str(outcome.facts["extra"]))}
        outcome = replace(outcome, facts=shown)
    results = NOT_EVALUATED if outcome is None else render({trained.name: outcome}).strip()
    parts = [
        _front_matter(trained, outcome),
        f"# {_escape(trained.name)}",
        _escape(recipe.about),
        "An image classifier that was trained with Allrounder. It maps images in [0, 1] to logits; "
        "normalisation is part of the network.",
        usage,
        "## Network",
        "| | |\n| --- | --- |\n" + "\n".join(f"| {key} | {_escape(value)} |" for key, value in facts),
        _describe_recipe(trained, has_recipe),
        "## Results",
        results,
        NOT_CHECKED.format(doubt=doubt) if doubt else "",
        "## Limits",
        "\n".join(f"- {limit}" for limit in (*LIMITS, ONE_MIXTURE if is_mixture else ONE_TRAINING)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _hide_path(extra: str) -> str:
    """Return the description of extra images, without their options if these hold a path of this machine."""
    return extra.partition(" (")[0] if ABSOLUTE_PATH.search(extra) else extra


def _describe_recipe(trained: TrainedNetwork, has_recipe: bool) -> str:
    """Say how the network can be trained again."""
    recipe = trained.recipe
    if "mixture" in trained.facts:
        sources = "; ".join(f"{label}, recipe {name}" for label, name in trained.facts["sources"].items())
        return _escape(MIXED.format(sources=sources))
    if not has_recipe:
        return NO_RECIPE
    used = [recipe.data] if recipe.extra is None else [recipe.data, recipe.extra.data]
    given = dict.fromkeys(spec.name for spec in used if isinstance(spec, InMemory))
    return _escape(NO_DATA.format(names=", ".join(given))) if given else RECIPE


def _training_threats(trained: TrainedNetwork) -> list[str]:
    tasks = trained.recipe.tasks
    return list(dict.fromkeys(str(threat) for task in tasks for threat in task.objective.threats()))


def _front_matter(trained: TrainedNetwork, outcome: Outcome | None) -> str:
    """Return the metadata. YAML includes JSON, so texts need no other quoting."""
    fields: dict[str, Any] = {
        "library_name": "pytorch",
        "pipeline_tag": "image-classification",
        "tags": list(TAGS),
    }
    if outcome is not None:
        dataset = {"name": str(trained.facts["data"]), "type": str(trained.facts["data"])}
        result = {
            "task": {"type": "image-classification"},
            "dataset": {**dataset, "split": "test"},
            "metrics": _list_metrics(outcome),
        }
        fields["model-index"] = [{"name": trained.name, "results": [result]}]
    matter = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items())
    return "\n".join(["---", *matter, "---"])


def _list_metrics(outcome: Outcome) -> list[dict[str, Any]]:
    names = [name for name in outcome.predicted if parse_shift_id(name) is None]
    return [
        {
            "type": "accuracy",
            "name": f"accuracy, {name}, {len(outcome)} images",
            "value": round(100 * outcome.accuracy(name), 2),
        }
        for name in names
    ]


def _escape(text: str) -> str:
    """Return a text for one line or cell of Markdown."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
