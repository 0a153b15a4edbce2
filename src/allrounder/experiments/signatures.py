"""Signatures: which recipe and which weights an evaluation is of, so that a table never shows other results.

A signature is a JSON file beside the folder of an evaluation, written before the evaluation starts. It is
compared with the files of the run whenever the outcome is read, without torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError

from allrounder.errors import RunError
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.system.files import hash_file, newest_folder

EVALUATION_FOLDER = "eval"
KEYS = ("recipe", "recipe file", "weights file", "weights")
"""The entries of a signature, all of them texts."""


def evaluation_folder(folder: Path, which: str) -> Path:
    """The folder with the outcome of one set of weights of a run."""
    return folder / EVALUATION_FOLDER / which


def signature_file(evaluation: Path) -> Path:
    """The file beside an evaluation folder that says which recipe and weights were evaluated."""
    return evaluation.with_name(f"{evaluation.name}.json")


def make_signature(folder: Path, recipe: str, weights: Path) -> dict[str, str]:
    """Describe a recipe, by its fingerprint and file, and weights, by their file, so that changes show."""
    return {
        "recipe": recipe,
        "recipe file": hash_file(folder / "recipe.toml")[:16],
        "weights file": weights.relative_to(folder).as_posix(),
        "weights": hash_file(weights)[:16],
    }


def load_outcome(folder: Path, recipe: str, which: str, images: int | None) -> Outcome:
    """Load the outcome of a run; raises unless it was measured with the recipe of this fingerprint, the
    weights in the folder, and this number of images."""
    evaluation = evaluation_folder(folder, which)
    recorded = _read_signature(signature_file(evaluation))
    weights = _newest_weights(folder, which, Path(recorded["weights file"]).name)
    try:
        current = make_signature(folder, recorded["recipe"], weights)
    except OSError as error:
        raise RunError(
            f"{folder}: what was evaluated cannot be read ({error}): it was changed by hand; remove it and "
            "call again"
        ) from None
    for key, now in current.items():
        if recorded[key] != now:
            raise RunError(
                f"{folder}: was evaluated with {key} {recorded[key]}, but now has {now}: it was changed by "
                "hand; remove it and call again"
            )
    if recorded["recipe"] != recipe:
        raise RunError(
            f"{folder}: holds a run of another recipe ({recorded['recipe']}, the study expects {recipe}); "
            "remove it, or name the study that it belongs to"
        )
    file = evaluation / OUTCOME_FILE
    try:
        outcome = Outcome.load(file)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise RunError(
            f"{file}: cannot be read ({error}); remove {evaluation.parent} and call again"
        ) from None
    for key, expected in (("recipe", recipe), ("weights", which)):
        if outcome.facts.get(key) != expected:
            raise RunError(
                f"{file}: is the outcome of {key} {outcome.facts.get(key)}, expected {expected}: it was "
                f"changed by hand; remove {evaluation.parent} and call again"
            )
    if images is not None and len(outcome) != images:
        raise RunError(
            f"{folder}: was evaluated on {len(outcome)} images, expected {images}; remove "
            f"{evaluation.parent} and call again"
        )
    return outcome


def _read_signature(file: Path) -> dict[str, str]:
    try:
        raw: Any = json.loads(file.read_text(encoding="utf-8"))
        signature = cast(dict[str, Any], raw) if isinstance(raw, dict) else {}
        if not all(isinstance(signature.get(key), str) for key in KEYS):
            raise ValueError(f"expected a text for each of {', '.join(KEYS)}")
    except (OSError, ValueError) as error:
        raise RunError(
            f"{file}: cannot be read ({error}): it was damaged or changed by hand; remove {file.parent} and "
            "call again"
        ) from None
    return signature


def _newest_weights(folder: Path, which: str, name: str) -> Path:
    """The file `name` in the newest folder that `which` refers to, such as weights/best-00000012."""
    kind = "best" if which == "best" or which.endswith("@best") else "last"
    newest = newest_folder(folder / "weights", kind)
    if newest is None:
        raise RunError(
            f"{folder}: was evaluated, but has no {kind} weights: it was changed by hand; remove it and call "
            "again"
        )
    return newest / name
