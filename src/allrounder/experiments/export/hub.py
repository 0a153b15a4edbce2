"""Writes a folder for the Hugging Face Hub: weights, configuration, model card and module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allrounder.errors import RunError
from allrounder.experiments.export.card import write_card
from allrounder.experiments.export.check import check_module
from allrounder.experiments.export.folder import write_safetensors
from allrounder.experiments.export.module import MODULE_FILE, write_module
from allrounder.experiments.export.trained_network import TrainedNetwork
from allrounder.experiments.machine_paths import check_no_machine_paths
from allrounder.system.files import write_text
from allrounder.training.record import RECIPE_FILE

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


def write_hub(trained: TrainedNetwork, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Write the files into a folder, all but the configuration; return the check, and notes for the user."""
    module = write_module(trained.spec, trained.classes, trained.shape, WEIGHTS_FILE, trained.describe())
    write_text(folder / MODULE_FILE, module)
    write_safetensors(folder / WEIGHTS_FILE, trained.state_dict())
    check = check_module(folder / MODULE_FILE, trained)
    (outcome, doubt), notes = trained.read_outcome(), list[str]()
    if outcome is None:
        notes.append(f"the card has no results; evaluate first: {trained.eval_command}")
    if doubt:
        notes.append(f"it was not checked what the results are of: {doubt}")
    has_recipe = _write_recipe(folder / RECIPE_FILE, trained)
    if not has_recipe:
        notes.append(f"{RECIPE_FILE} is left out, because it holds an absolute path of this machine")
    write_text(folder / "README.md", write_card(trained, outcome, doubt, has_recipe))
    return check, notes


def _write_recipe(file: Path, trained: TrainedNetwork) -> bool:
    """Write the recipe unless it holds an absolute path; return whether it was written."""
    write_text(file, trained.recipe.dumps())
    try:
        check_no_machine_paths(file)
    except RunError:
        file.unlink()
        return False
    return True
