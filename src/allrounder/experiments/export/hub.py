"""Writes a folder for the Hugging Face Hub: weights, configuration, model card and module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allrounder.errors import RunError
from allrounder.experiments.export.card import write_card
from allrounder.experiments.export.check import check_module
from allrounder.experiments.export.folder import write_safetensors
from allrounder.experiments.export.module import MODULE_FILE, write_module
from allrounder.experiments.export.subject import Subject
from allrounder.experiments.machine_paths import check_no_machine_paths
from allrounder.system.files import write_text
from allrounder.training.record import RECIPE_FILE

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"


def write_hub(subject: Subject, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Write the files into a folder, all but the configuration; return the check, and notes for the user."""
    module = write_module(subject.spec, subject.classes, subject.shape, WEIGHTS_FILE, subject.describe())
    write_text(folder / MODULE_FILE, module)
    write_safetensors(folder / WEIGHTS_FILE, subject.state_dict())
    check = check_module(folder / MODULE_FILE, subject)
    (outcome, doubt), notes = subject.read_outcome(), list[str]()
    if outcome is None:
        notes.append(f"the card has no results; evaluate first: {subject.eval_command}")
    if doubt:
        notes.append(f"it was not checked what the results are of: {doubt}")
    has_recipe = _write_recipe(folder / RECIPE_FILE, subject)
    if not has_recipe:
        notes.append(f"{RECIPE_FILE} is left out, because it holds an absolute path of this machine")
    write_text(folder / "README.md", write_card(subject, outcome, doubt, has_recipe))
    return check, notes


def _write_recipe(file: Path, subject: Subject) -> bool:
    """Write the recipe unless it holds an absolute path; return whether it was written."""
    write_text(file, subject.recipe.dumps())
    try:
        check_no_machine_paths(file)
    except RunError:
        file.unlink()
        return False
    return True
