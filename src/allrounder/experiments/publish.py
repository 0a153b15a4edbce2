"""Publish a study: copy what its table and its report need into a folder that can be kept under version
control. See `published.py` for the folder."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from allrounder.config.toml import parse_toml
from allrounder.errors import RunError
from allrounder.experiments.machine_paths import check_no_machine_paths
from allrounder.experiments.manifest import (
    MANIFEST_FILE,
    STUDY_FILE,
    Manifest,
    TrialEntry,
    evaluation_folder,
    is_same,
    load_trial_outcome,
    newest_weights,
    read_signature,
    read_study_text,
    signature_file,
)
from allrounder.experiments.published import (
    PUBLISHED_FILE,
    REMOVE,
    PublishedFiles,
    check_no_links,
    is_published,
)
from allrounder.experiments.run_rows import ENV_FILE
from allrounder.recipe.init import STAGES_DIR
from allrounder.report.dial import DIAL_FILE, DIAL_FOLDER, read_points
from allrounder.report.outcome import OUTCOME_FILE
from allrounder.system.checked_files import ADVICE, read_json, read_toml_text
from allrounder.system.files import (
    MANIFEST,
    check_location,
    hash_file,
    make_folder,
    newest_folder,
    temporary_path,
    write_atomically,
)
from allrounder.training.record import (
    FORMAT_FILE,
    FORMAT_VERSION,
    METRICS_FILE,
    RECIPE_FILE,
    RunRecord,
    read_metrics,
)

RUN_FILES = (RECIPE_FILE, FORMAT_FILE, ENV_FILE, METRICS_FILE, f"{DIAL_FOLDER}/{DIAL_FILE}")
STUDY_FILES = (STUDY_FILE, MANIFEST_FILE)
MAY_CHANGE = ("about", "name", "seeds")
"""Keys of a study that may differ from those of the study that was published before."""


@final
@dataclass(frozen=True)
class Publication:
    """What was published."""

    trainings: int
    kept: int
    """Trainings of the study that were published before and did not run in its folder."""
    files: int
    size: int
    """In bytes."""
    unfinished: tuple[str, ...]
    """The folders of trainings that are not finished or not evaluated; if only some rows of a training are
    not evaluated, with these rows."""


def publish_study(source: Path, target: Path) -> Publication:
    """Copy the definition, logs and outcomes of all finished trainings of a study, after checking them.

    Every outcome is compared with the weights that it is of. Files are replaced one by one, the list of
    digests comes last. So a study can be published again, with more rows or seeds. Trainings that were
    published before are kept if the study has them, even if they did not run in this folder; their outcomes
    are never replaced by others. Raises RunError if a file is damaged or holds an absolute path, or if the
    target has a symbolic link; then nothing is changed.
    """
    if is_published(source):
        raise RunError(
            f"{source}: is a published study, which has no weights; name the folder that it ran in"
        )
    manifest = Manifest.load(source)
    evaluated = [_select_evaluated_rows(source / trial.folder, trial) for trial in manifest.trials]
    finished = [trial for trial in evaluated if trial.rows]
    folders = {trial.folder for trial in finished}
    if not finished:
        reason = f"no training of {manifest.name} is finished"
        raise RunError(f"{source}: {reason}; run it first with: allrounder sweep {source / STUDY_FILE}")
    names: list[str] = []
    for trial in finished:
        _check_trial(source / trial.folder, trial, manifest.images)
        files = _list_trial_files(source / trial.folder, trial)
        names += [file.relative_to(source).as_posix() for file in files]
    names += STUDY_FILES  # after the trainings that they list
    earlier = _check_target(source, target, names)
    kept = _select_kept_trials(earlier, [trial for trial in manifest.trials if trial.folder not in folders])
    _check_outcomes(source, earlier, names, [trial.folder for trial in kept])
    for name in names:
        check_no_machine_paths(source / name)
    size = _copy_files(source, names, earlier, [trial.folder for trial in kept])
    there = {trial.folder: trial for trial in (*finished, *kept)}
    missing = [_describe_missing_rows(trial, there.get(trial.folder)) for trial in manifest.trials]
    return Publication(len(finished), len(kept), len(names), size, tuple(filter(None, missing)))


def _select_evaluated_rows(run: Path, trial: TrialEntry) -> TrialEntry:
    """Return a training with only those of its rows that have an outcome."""
    rows = {
        label: which
        for label, which in trial.rows.items()
        if (evaluation_folder(run, which) / OUTCOME_FILE).is_file()
    }
    return replace(trial, rows=rows)


def _describe_missing_rows(trial: TrialEntry, evaluated: TrialEntry | None) -> str:
    """Return the folder of a training, with the rows that are missing unless all are; empty if none is."""
    if evaluated is None:
        return trial.folder
    missing = [label for label in trial.rows if label not in evaluated.rows]
    return f"{trial.folder} ({'; '.join(missing)})" if missing else ""


def _check_trial(run: Path, trial: TrialEntry, images: int | None) -> None:
    """Raise RunError if a training is damaged, or if its outcomes are not those of its weights."""
    RunRecord.read(run)
    read_json(run / ENV_FILE, ADVICE, FORMAT_VERSION)
    read_points(run)
    for stage in _list_stages(run):
        read_metrics(stage)
    for which in trial.rows.values():
        for has_weights in (True, False):  # as it is, and as it will be read where it is published
            load_trial_outcome(run, trial.recipe, which, images, has_weights=has_weights)


def _list_trial_files(run: Path, trial: TrialEntry) -> list[Path]:
    """Return the files of a training to publish, each once."""
    evaluations = [evaluation_folder(run, which) for which in dict.fromkeys(trial.rows.values())]
    weights = [newest_folder(run / "weights", kind) for kind in ("best", "last")]
    weights += [newest_weights(run, which) for which in trial.rows.values()]
    files = [run / name for name in RUN_FILES]
    files += [stage / METRICS_FILE for stage in _list_stages(run)]
    files += [folder / MANIFEST for folder in dict.fromkeys(weights) if folder is not None]
    files += [file for folder in evaluations for file in (signature_file(folder), folder / OUTCOME_FILE)]
    return [file for file in files if file.is_file()]  # not every run has a log or measured mixtures


def _list_stages(run: Path) -> list[Path]:
    """Return the folders of the stages of a pipeline."""
    return sorted(path for path in (run / STAGES_DIR).glob("*") if path.is_dir())


def _check_target(source: Path, target: Path, names: Sequence[str]) -> PublishedFiles:
    """Return the files that were published to a folder before; raise RunError if it holds anything else,
    another study, or a symbolic link."""
    check_location(target)
    unchanged = "name another --to, nothing was changed"
    if not is_published(target):
        rest = temporary_path(target / PUBLISHED_FILE)  # of an interrupted call
        if target.exists() and (not target.is_dir() or any(path != rest for path in target.iterdir())):
            raise RunError(f"{target}: is not empty and holds no published study; {unchanged}")
        _check_no_target_links(target, names)
        return PublishedFiles(target, {})
    earlier = PublishedFiles.load(target)
    _check_no_target_links(target, {*names, *earlier.digests})
    if (target / STUDY_FILE).is_file() and not _is_same_study(source, target):
        reason = f"holds another study than {source}, or one with rows that it does not have"
        raise RunError(f"{target}: {reason}; {unchanged}")
    return earlier


def _select_kept_trials(earlier: PublishedFiles, trials: Sequence[TrialEntry]) -> list[TrialEntry]:
    """Return the trainings, of those that did not run where the study is, that were published before with the
    same recipe, with the rows that were. Signatures say the recipe, because an interrupted call may have left
    another manifest."""
    kept: list[TrialEntry] = []
    for trial in trials:
        run = Path(trial.folder)
        evaluations = {label: evaluation_folder(run, which) for label, which in trial.rows.items()}
        published = {
            label: evaluation
            for label, evaluation in evaluations.items()
            if (evaluation / OUTCOME_FILE).as_posix() in earlier.digests
        }
        if not published:
            continue
        earlier.check_files_below(trial.folder, "publish it from the folder in which it ran")
        signatures = [read_signature(earlier.folder / signature_file(path)) for path in published.values()]
        if all(signature["recipe"] == trial.recipe for signature in signatures):
            kept.append(replace(trial, rows={label: trial.rows[label] for label in published}))
    return kept


def _check_outcomes(source: Path, earlier: PublishedFiles, names: Sequence[str], kept: Sequence[str]) -> None:
    """Raise RunError if outcomes that were published before would be removed or changed."""
    kept_names = {name for folder in kept for name in earlier.names_below(folder)}
    outcomes = {
        name: digest
        for name, digest in earlier.digests.items()
        if name.endswith(f"/{OUTCOME_FILE}") and name not in kept_names
    }
    removed = [name for name in outcomes if name not in names]
    if removed:
        reason = f"has outcomes that {source} does not have: {', '.join(sorted(removed))}"
        advice = "give the study there all its seeds and rows, or name another --to, nothing was changed"
        raise RunError(f"{earlier.folder}: {reason}; {advice}")
    _check_same_outcomes(source, earlier.folder, outcomes)


def _check_no_target_links(target: Path, names: Collection[str]) -> None:
    """Raise RunError if a file to write or to remove, or its temporary file, is outside of the target."""
    files = [Path(name) for name in (PUBLISHED_FILE, *sorted(names))]
    paths = [path.as_posix() for file in files for path in (file, temporary_path(file))]
    check_no_links(target, paths, "remove the link, or name another --to; nothing was changed")


def _check_same_outcomes(source: Path, target: Path, outcomes: Mapping[str, str]) -> None:
    """Raise RunError if outcomes, given by their published digests, would change."""
    changed = [name for name, digest in outcomes.items() if hash_file(source / name) != digest]
    if changed:
        reason = f"has outcomes that differ from those of {source}: {', '.join(sorted(changed))}"
        advice = "publish into another folder, or remove this one; nothing was changed"
        raise RunError(f"{target}: {reason}; {advice}")


def _is_same_study(source: Path, target: Path) -> bool:
    """Whether two folders have the same study, except for what may change and rows that the source adds."""
    files = {
        source / STUDY_FILE: read_study_text(source),
        target / STUDY_FILE: read_toml_text(target / STUDY_FILE, REMOVE),
    }
    raw = [parse_toml(text, str(file)) for file, text in files.items()]
    new_rows, old_rows = (study.pop("row", []) for study in raw)
    if not is_same(new_rows[: len(old_rows)], old_rows):
        return False
    return is_same(*({key: value for key, value in study.items() if key not in MAY_CHANGE} for study in raw))


def _copy_files(source: Path, names: Sequence[str], earlier: PublishedFiles, kept: Sequence[str]) -> int:
    """Copy files, remove those that only the earlier list has, except below the kept folders, and write the
    new list; return the bytes."""
    target = earlier.folder
    make_folder(target)
    if not earlier.digests:
        earlier.save()  # so that an interrupted call can be repeated
    digests = {name: earlier.digests[name] for folder in kept for name in earlier.names_below(folder)}
    size = 0
    for name in names:
        content = (source / name).read_bytes()
        digests[name] = hashlib.sha256(content).hexdigest()
        size += len(content)
        make_folder((target / name).parent)
        write_atomically(target / name, lambda path, content=content: path.write_bytes(content))
    for name in earlier.digests:
        if name not in digests:
            (target / name).unlink(missing_ok=True)
    PublishedFiles(target, digests).save()
    return size
