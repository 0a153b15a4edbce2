"""What the table of a study needs, readable without torch: its manifest, and the outcomes of its trainings.

The manifest is study.json beside study.toml. A signature is a JSON file beside the folder of an evaluation,
written before the evaluation starts: it says which recipe and which weights the evaluation is of. It is
compared with the files of the run whenever the outcome is read, so that a table never shows other results.
A published study has no weights: their digests are in the manifests that they were saved with, and every
file is compared with the list of published files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast, final

from pydantic import ValidationError

from allrounder.config.fields import (
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    adapter,
    did_you_mean,
    frozen_config,
)
from allrounder.config.text import shorten
from allrounder.config.toml import is_file, parse_toml, read_toml
from allrounder.errors import RecipeError, RunError
from allrounder.experiments.published import INNER_PATH, REMOVE, find_published, is_inner_path
from allrounder.recipe.init import STAGES_DIR
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.report.study import StudyResults
from allrounder.system.checked_files import read_json, read_manifest, read_toml_text, write_json
from allrounder.system.files import check_location, hash_file, newest_folder
from allrounder.training.record import read_metrics

STUDY_FILE = "study.toml"
STUDIES_FOLDER = "studies"
"""The folder of shipped studies in this package."""
MANIFEST_FILE = "study.json"
FORMAT_VERSION = 2
"""Of manifests and signatures; increased by every incompatible change."""
NOT_COMPARED = ("about", "name", "seeds", "probes")
"""Keys of a study file that are not compared with the study that ran: texts, seeds (which may be added), and
probes (which may be written in several ways). Rows may be added, too, but the study must run again first."""
EVALUATION_FOLDER = "eval"
KEYS = ("recipe", "recipe file", "weights file", "weights")
"""The entries of a signature, all of them texts."""
CHANGED = "it was changed by hand; remove it and call again"


@final
@frozen_config
class TrialEntry:
    """One training: its run folder, its recipe's fingerprint, and the rows of the table that it gives."""

    folder: str
    seed: NonNegativeInt
    recipe: str
    cost: str
    rows: dict[str, str]
    """The weights to show, by label."""


@final
@frozen_config
class Manifest:
    """The rows, trainings and paper numbers of a study."""

    name: str
    labels: tuple[str, ...]
    trials: tuple[TrialEntry, ...]
    paper: dict[str, dict[str, FiniteFloat]]
    reference: str
    source: str
    images: PositiveInt | None
    minutes: dict[str, FiniteFloat] = field(default_factory=dict[str, float])
    """The papers' minutes of training by label. If there are any, the table also has ours."""

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest of a study's folder."""
        file = folder / MANIFEST_FILE
        again = "run the study again, which keeps its finished trainings"
        check_location(folder)
        if not file.is_file():
            reason = f"no study ran there, it has no {MANIFEST_FILE}; name the folder of a study"
            raise RunError(f"{folder}: {reason}, or run one with: allrounder sweep")
        if (published := find_published(folder)) is not None:
            published.check_file(STUDY_FILE, REMOVE)  # publishing again compares it
            published.check_file(MANIFEST_FILE)
        fields = read_json(file, again, FORMAT_VERSION)
        fields.pop("format")
        try:
            manifest = adapter(cls).validate_python(fields)
        except ValidationError as error:
            first = error.errors()[0]
            place = shorten(".".join(str(key) for key in first["loc"]))
            raise RunError(f"{file}: {place}: {first['msg']}; {again}") from None
        for index, trial in enumerate(manifest.trials):
            if unknown := [label for label in trial.rows if label not in manifest.labels]:
                problem = (
                    f"trials.{index}: got the row {shorten(unknown[0])!r}, which is not among the labels"
                )
                raise RunError(f"{file}: {problem}; it was changed by hand, {again}")
            for name in (trial.folder, *trial.rows.values()):
                if not is_inner_path(name):
                    problem = f"trials.{index}: got {shorten(name)!r}, expected {INNER_PATH}"
                    raise RunError(f"{file}: {problem}; it was changed by hand, {again}")
        return manifest

    def save(self, folder: Path) -> None:
        """Write the manifest, unless the folder has it already."""
        file = folder / MANIFEST_FILE
        try:
            is_saved = Manifest.load(folder) == self
        except RunError:  # missing, damaged, or of another version
            is_saved = False
        if not is_saved:
            write_json(file, {"format": FORMAT_VERSION, **asdict(cast(Any, self))})


def collect_results(manifest: Manifest, folder: Path) -> StudyResults:
    """Load and check the outcomes of a study by row and seed; list the rows and seeds that are missing."""
    outcomes: dict[str, dict[int, Outcome]] = {label: {} for label in manifest.labels}
    cost: dict[str, str] = {}
    missing: list[str] = []
    minutes: dict[str, list[float]] = {}
    published = find_published(folder)
    for trial in manifest.trials:
        run = folder / trial.folder
        if published is not None:
            published.check_files_below(trial.folder)
        for label, which in trial.rows.items():
            cost[label] = trial.cost
            if (evaluation_folder(run, which) / OUTCOME_FILE).is_file():
                outcomes[label][trial.seed] = load_trial_outcome(
                    run, trial.recipe, which, manifest.images, has_weights=published is None
                )
                if manifest.minutes:
                    minutes.setdefault(label, []).append(training_seconds(run) / 60)
            else:
                missing.append(f"{label}, seed {trial.seed}")
    finished = {label: by_seed for label, by_seed in outcomes.items() if by_seed}
    return StudyResults(
        finished,
        manifest.paper,
        cost,
        manifest.reference,
        manifest.source,
        missing,
        minutes,
        manifest.minutes,
    )


def training_seconds(run: Path) -> float:
    """Return the seconds of all epochs of a run and of the stages of its pipeline, without validation."""
    total = 0.0
    for folder in (run, *sorted(run.glob(f"{STAGES_DIR}/*"))):
        events = read_metrics(folder)
        seconds: dict[int, float] = {}
        for event in events:
            if event["event"] == "epoch":  # every learner logs the seconds of the whole epoch on its rank
                seconds[event["t"]] = max(event["seconds"], seconds.get(event["t"], 0.0))
        total += sum(seconds.values())
    return total


def evaluation_folder(folder: Path, which: str) -> Path:
    """Return the folder with the outcome of one set of weights of a run."""
    return folder / EVALUATION_FOLDER / which


def signature_file(evaluation: Path) -> Path:
    """Return the file beside an evaluation folder that says which recipe and weights were evaluated."""
    return evaluation.with_name(f"{evaluation.name}.json")


def make_signature(folder: Path, recipe: str, weights: Path, *, has_weights: bool = True) -> dict[str, str]:
    """Describe a recipe, by its fingerprint and file, and weights, by their file, so that changes show.
    If there are no weights, their digest is that of the manifest."""
    digest = (
        hash_file(weights) if has_weights else read_manifest(weights.parent)["files"].get(weights.name, "")
    )
    return {
        "recipe": recipe,
        "recipe file": hash_file(folder / "recipe.toml")[:16],
        "weights file": weights.relative_to(folder).as_posix(),
        "weights": digest[:16],
    }


def load_trial_outcome(
    folder: Path, recipe: str, which: str, images: int | None, *, has_weights: bool = True
) -> Outcome:
    """Load the outcome of a run; raise RunError unless it is of the recipe with this fingerprint, the weights
    in the folder (in a published one, those that its manifest describes), and this number of images."""
    evaluation = evaluation_folder(folder, which)
    file = evaluation / OUTCOME_FILE
    again = f"remove {evaluation.parent} and call again"
    recorded = read_signature(signature_file(evaluation), again)
    weights = newest_weights(folder, which) / Path(recorded["weights file"]).name
    try:
        current = make_signature(folder, recorded["recipe"], weights, has_weights=has_weights)
    except OSError as error:
        raise RunError(f"{folder}: what was evaluated cannot be read ({error}): {CHANGED}") from None
    for key, now in current.items():
        if recorded[key] != now:
            change = f"was evaluated with {key} {recorded[key]}, but now has {now}"
            raise RunError(f"{folder}: {change}: {CHANGED}")
    if recorded["recipe"] != recipe:
        raise RunError(
            f"{folder}: holds a run of another recipe ({recorded['recipe']}, the study expects {recipe}); "
            "remove it, or name the study that it belongs to"
        )
    outcome = Outcome.load(file)
    for key, expected in (("recipe", recipe), ("weights", which)):
        if outcome.facts.get(key) != expected:
            got = f"{key} {outcome.facts.get(key)}, expected {expected}"
            raise RunError(f"{file}: is the outcome of {got}: it was changed by hand; {again}")
    if images is not None and len(outcome) != images:
        raise RunError(f"{folder}: was evaluated on {len(outcome)} images, expected {images}; {again}")
    return outcome


def write_signature(evaluation: Path, signature: Mapping[str, str]) -> None:
    """Write the signature of an evaluation beside its folder."""
    write_json(signature_file(evaluation), {"format": FORMAT_VERSION, **signature})


def read_signature(file: Path, again: str = "restore it from a copy") -> dict[str, str]:
    """Read the signature of an evaluation; `again` says what to do if it is damaged."""
    signature = read_json(file, again, FORMAT_VERSION)
    if not all(isinstance(signature.get(key), str) for key in KEYS):
        raise RunError(f"{file}: expected a text for each of {', '.join(KEYS)}; {again}")
    return {key: signature[key] for key in KEYS}


def newest_weights(folder: Path, which: str) -> Path:
    """Return the newest folder that `which` refers to, such as weights/best-00000012."""
    kind = "best" if which == "best" or which.endswith("@best") else "last"
    newest = newest_folder(folder / "weights", kind)
    if newest is None:
        raise RunError(f"{folder}: was evaluated, but has no {kind} weights: {CHANGED}")
    return newest


def find_study_folder(source: str, out: Path | None, shipped: Collection[str]) -> Path:
    """Return the folder of a study, given that folder, the name of a shipped study, or a study file. Raise if
    the folder holds another study, or if the study file was changed since it ran."""
    path = Path(source)
    if (path / MANIFEST_FILE).is_file() or (path.is_dir() and source not in shipped):
        if out is not None:
            raise RecipeError(f"{source}: is a folder, and --out {out} names another; give one of them")
        return path
    file = resources.files("allrounder.experiments") / STUDIES_FOLDER / f"{source}.toml"
    raw = read_study(source, file if source in shipped else path, shipped, "file or folder")
    name = source if source in shipped else str(raw.get("name") or path.name)
    folder = out or default_folder(name)
    if not (folder / MANIFEST_FILE).is_file():
        reason = f"{name} did not run there, it has no {MANIFEST_FILE}"
        raise RunError(f"{folder}: {reason}; run it with: allrounder sweep {source} --out {folder}")
    manifest = Manifest.load(folder)
    if source in shipped and manifest.name != name:
        reason = f"holds another study ({manifest.name}), asked for {name}; name another --out"
        raise RunError(f"{folder}: {reason}, or the folder alone: allrounder table {folder}")
    _check_unchanged(source, raw, folder)
    return folder


def read_study_text(folder: Path) -> str:
    """Read the study that ran in a folder; to change a study, change a copy of its file."""
    return read_toml_text(folder / STUDY_FILE, "run a copy of it with another --out")


def read_study(source: str, file: Traversable, shipped: Collection[str], kind: str) -> dict[str, Any]:
    """Read the file of a study as a raw table; errors call it `source`, and `kind` says what it may be."""
    if not is_file(file):
        reason = f"no such {kind}, and no shipped study of that name{did_you_mean(source, shipped)}"
        raise RecipeError(f"{shorten(source)}: {reason} (see: allrounder list studies)")
    return read_toml(file, source)


def _check_unchanged(source: str, raw: Mapping[str, Any], folder: Path) -> None:
    """Raise if a study file differs from the study that ran in a folder, comparing files without torch."""
    saved = parse_toml(read_study_text(folder), str(folder / STUDY_FILE))
    keys = [key for key in {**saved, **raw} if key not in NOT_COMPARED]
    changed = [key for key in keys if not is_same(raw.get(key), saved.get(key))]
    if changed:
        old, new = saved.get("row", []), raw.get("row", [])
        is_extended = changed == ["row"] and is_same(new[: len(old)], old)
        fix = f"run it there to add its rows with: allrounder sweep {source} --out {folder}"
        other = "run it with another --out"
        raise RunError(
            f"{source}: differs from the study that ran in {folder} ({', '.join(changed)}); "
            f"{fix if is_extended else other}, or name the folder alone: allrounder table {folder}"
        )


def is_same(raw: Any, saved: Any) -> bool:
    """Whether two raw values are equal; a missing key equals the empty default that a saved study has."""
    if isinstance(raw, dict) and isinstance(saved, dict):
        first, second = cast(dict[str, Any], raw), cast(dict[str, Any], saved)
        return all(is_same(first.get(key), second.get(key)) for key in {**first, **second})
    if isinstance(raw, list) and isinstance(saved, list):
        items = cast(list[Any], raw), cast(list[Any], saved)
        return len(items[0]) == len(items[1]) and all(map(is_same, *items))
    return raw == saved or not (raw or saved)


def shipped_studies() -> dict[str, Traversable]:
    """Return the files of the studies in this package, by name."""
    root = resources.files("allrounder.experiments") / STUDIES_FOLDER
    folders = [entry for entry in root.iterdir() if entry.is_dir()]
    files = {f"{folder.name}/{file.name}": file for folder in folders for file in folder.iterdir()}
    return {name.removesuffix(".toml"): files[name] for name in sorted(files) if name.endswith(".toml")}


def slug(label: str) -> str:
    """Return a label as a folder name: lower case, with dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "row"


def default_folder(name: str) -> Path:
    """Return the folder of a study unless --out names another."""
    return Path("runs") / "studies" / slug(name)
