"""The manifest of a study: what its table needs, readable without torch.

`open_study` writes study.json beside study.toml; `allrounder table` reads it and the outcomes of the runs.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict
from importlib import resources
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
from allrounder.errors import RecipeError, RunError
from allrounder.experiments.signatures import evaluation_folder, load_outcome
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.report.study import StudyResults
from allrounder.system.files import write_text

STUDY_FILE = "study.toml"
STUDIES_FOLDER = "studies"
"""The folder of shipped studies in this package."""
MANIFEST_FILE = "study.json"
FORMAT_VERSION = 1
"""Of manifests; increased by every incompatible change."""
NOT_COMPARED = ("about", "name", "seeds", "probes")
"""Keys of a study file that are not compared with the study that ran: texts, seeds (which may be added), and
probes (which may be written in several ways)."""


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

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest of a study's folder."""
        file = folder / MANIFEST_FILE
        again = "run the study again, which keeps its finished trainings"
        if not file.is_file():
            raise RunError(
                f"{folder}: no study ran there, it has no {MANIFEST_FILE}; name the folder of a study, or "
                "run one with: allrounder sweep"
            )
        try:
            raw: Any = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(raw, dict) or "format" not in raw:
                raise ValueError("it names no format version")
        except (OSError, ValueError) as error:
            raise RunError(f"{file}: cannot be read ({error}); {again}") from None
        fields = cast(dict[str, Any], raw)
        version: object = fields.pop("format")
        if version != FORMAT_VERSION:
            raise RunError(
                f"{file}: got format version {version!r}, expected {FORMAT_VERSION}; use the version of "
                f"allrounder that wrote it, or {again}"
            )
        try:
            return adapter(cls).validate_python(fields)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(key) for key in first["loc"])
            raise RunError(f"{file}: {place}: {first['msg']}; {again}") from None

    def dumps(self) -> str:
        """The manifest as JSON; `load` reads it back."""
        return json.dumps({"format": FORMAT_VERSION, **asdict(cast(Any, self))}, indent=1) + "\n"

    def save(self, folder: Path) -> None:
        """Write the manifest, unless the folder has it already."""
        file = folder / MANIFEST_FILE
        if not file.is_file() or file.read_text(encoding="utf-8") != self.dumps():
            write_text(file, self.dumps())


def collect_results(manifest: Manifest, folder: Path) -> StudyResults:
    """Load and check the outcomes of a study by row and seed; list the rows and seeds that are missing."""
    outcomes: dict[str, dict[int, Outcome]] = {label: {} for label in manifest.labels}
    cost: dict[str, str] = {}
    missing: list[str] = []
    for trial in manifest.trials:
        for label, which in trial.rows.items():
            cost[label] = trial.cost
            if (evaluation_folder(folder / trial.folder, which) / OUTCOME_FILE).is_file():
                outcome = load_outcome(folder / trial.folder, trial.recipe, which, manifest.images)
                outcomes[label][trial.seed] = outcome
            else:
                missing.append(f"{label}, seed {trial.seed}")
    finished = {label: by_seed for label, by_seed in outcomes.items() if by_seed}
    return StudyResults(finished, manifest.paper, cost, manifest.reference, manifest.source, missing)


def find_study_folder(source: str, out: Path | None, shipped: Collection[str]) -> Path:
    """The folder of a study, given that folder, the name of a shipped study, or a study file.

    Raises if the folder holds another study, or if the study file was changed since it ran.
    """
    path = Path(source)
    if (path / MANIFEST_FILE).is_file() or (path.is_dir() and source not in shipped):
        if out is not None:
            raise RecipeError(f"{source}: is a folder, and --out {out} names another; give one of them")
        return path
    raw = _read_study(source, shipped)
    name = source if source in shipped else str(raw.get("name") or path.name)
    folder = out or default_folder(name)
    if not (folder / MANIFEST_FILE).is_file():
        raise RunError(
            f"{folder}: {name} did not run there, it has no {MANIFEST_FILE}; run it with: allrounder sweep "
            f"{source} --out {folder}"
        )
    manifest = Manifest.load(folder)
    if source in shipped and manifest.name != name:
        raise RunError(
            f"{folder}: holds another study ({manifest.name}), asked for {name}; name another --out, or the "
            f"folder alone: allrounder table {folder}"
        )
    _check_unchanged(source, raw, folder)
    return folder


def _read_study(source: str, shipped: Collection[str]) -> dict[str, Any]:
    """Read the file of a shipped study, or a study file, as a raw table."""
    if source in shipped:
        file = resources.files("allrounder.experiments") / STUDIES_FOLDER / f"{source}.toml"
        return tomllib.loads(file.read_text(encoding="utf-8"))
    if not Path(source).is_file():
        raise RecipeError(
            f"{source}: no such file or folder, and no shipped study of that name"
            f"{did_you_mean(source, shipped)} (see: allrounder list studies)"
        )
    try:
        return tomllib.loads(Path(source).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{source}: not valid TOML: {error}") from None


def _check_unchanged(source: str, raw: Mapping[str, Any], folder: Path) -> None:
    """Raise if a study file differs from the study that ran in a folder, comparing files without torch."""
    try:
        saved = tomllib.loads((folder / STUDY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / STUDY_FILE}: cannot be read ({error}); restore it") from None
    keys = [key for key in {**saved, **raw} if key not in NOT_COMPARED]
    changed = [key for key in keys if not _is_same(raw.get(key), saved.get(key))]
    if changed:
        raise RunError(
            f"{source}: differs from the study that ran in {folder} ({', '.join(changed)}); run it with "
            f"another --out, or name the folder alone: allrounder table {folder}"
        )


def _is_same(raw: Any, saved: Any) -> bool:
    """Whether two raw values are equal; a missing key equals the empty default that a saved study has."""
    if isinstance(raw, dict) and isinstance(saved, dict):
        pair = cast(dict[str, Any], raw), cast(dict[str, Any], saved)
        return all(_is_same(pair[0].get(key), pair[1].get(key)) for key in {**pair[0], **pair[1]})
    if isinstance(raw, list) and isinstance(saved, list):
        items = cast(list[Any], raw), cast(list[Any], saved)
        return len(items[0]) == len(items[1]) and all(map(_is_same, *items))
    return raw == saved or not (raw or saved)


def slug(label: str) -> str:
    """A label as a folder name: lower case, with dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "row"


def default_folder(name: str) -> Path:
    """The folder of a study unless --out names another."""
    return Path("runs") / "studies" / slug(name)
