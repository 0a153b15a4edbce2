"""The manifest of a study: written, read again, and the only thing but the runs that a table is made from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allrounder.errors import RecipeError, RunError
from allrounder.experiments.manifest import (
    MANIFEST_FILE,
    STUDY_FILE,
    Manifest,
    collect_results,
    default_folder,
    evaluation_folder,
    find_study_folder,
    load_trial_outcome,
    make_signature,
    signature_file,
)
from allrounder.experiments.runner import make_manifest, open_study
from allrounder.experiments.study import Study
from allrounder.report.outcome import OUTCOME_FILE
from allrounder.report.study import render_study
from tests.support.damage import damages, edit_json, flip
from tests.support.interruptions import Killed, Point, give_up, struck
from tests.support.studies import run_here, tiny_study

IMAGES = 9


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """A study of two rows and one seed, and its folder, which no test may change."""
    folder = tmp_path_factory.mktemp("study")
    study = replace(tiny_study(folder), seeds=(0,), images=IMAGES)
    run_here(study, folder / "out")
    return study, folder / "out"


@pytest.fixture
def folder(finished: tuple[Study, Path], tmp_path: Path) -> Path:
    """A copy of the folder, for one test."""
    return Path(shutil.copytree(finished[1], tmp_path / "out"))


@pytest.fixture
def file(finished: tuple[Study, Path], tmp_path: Path) -> Path:
    """The file of the study, as its author wrote it: without defaults, and with texts of its own."""
    study = finished[0]
    rows = '[{ label = "slow", sets = ["task.linf.lr=0.01"] }, { label = "fast" }]'
    path = tmp_path / "mine.toml"
    path.write_text(f'about = "rates"\nbase = "{study.base}"\nimages = {IMAGES}\nrow = {rows}\n')
    return path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_manifest_is_written_and_read_again(finished: tuple[Study, Path], tmp_path: Path):
    study, folder = finished
    manifest = make_manifest(study)
    assert Manifest.load(folder) == manifest
    rich = make_manifest(Study.load("embedded/demo"))
    rich = replace(rich, paper={rich.labels[0]: {"natural": 90.5, "aa mean": 7}}, source="Table \u2160")
    rich.save(tmp_path)
    assert Manifest.load(tmp_path) == rich and rich.images != manifest.images
    before = (tmp_path / MANIFEST_FILE).stat()
    rich.save(tmp_path)
    after = (tmp_path / MANIFEST_FILE).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "it was there already"


def test_seeds_that_are_added_are_in_the_manifest(finished: tuple[Study, Path], folder: Path):
    open_study(replace(finished[0], seeds=(3,)), folder)
    manifest = Manifest.load(folder)
    assert [(trial.folder, trial.seed) for trial in manifest.trials] == [
        ("slow/seed-0", 0),
        ("slow/seed-3", 3),
        ("fast/seed-0", 0),
        ("fast/seed-3", 3),
    ]
    results = collect_results(manifest, folder)
    assert results.missing == ["slow, seed 3", "fast, seed 3"] and list(results.outcomes) == ["slow", "fast"]


def test_a_wrong_recipe_leaves_no_folder(finished: tuple[Study, Path], tmp_path: Path):
    with pytest.raises(RecipeError, match=r'row "slow": (?s:.*)nonsense'):
        open_study(replace(finished[0], sets=("nonsense=1",)), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_results_are_those_of_the_study(finished: tuple[Study, Path]):
    study, folder = finished
    ours, theirs = (
        collect_results(Manifest.load(folder), folder),
        collect_results(make_manifest(study), folder),
    )
    assert render_study(ours, "json") == render_study(theirs, "json")
    assert {row: list(by_seed) for row, by_seed in ours.outcomes.items()} == {"slow": [0], "fast": [0]}
    for row, by_seed in ours.outcomes.items():
        for seed, outcome in by_seed.items():
            other = theirs.outcomes[row][seed]
            assert outcome.facts == other.facts and list(outcome.predicted) == list(other.predicted)
            assert all(np.array_equal(outcome.predicted[k], other.predicted[k]) for k in other.predicted)
    assert (ours.paper, ours.cost, ours.reference, ours.source, list(ours.missing)) == (
        theirs.paper,
        theirs.cost,
        theirs.reference,
        theirs.source,
        list(theirs.missing),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no study ran there, it has no study.json"),
        ("", r"study\.json: cannot be read \(.*\); .*, or run the study again, which keeps"),
        ('{"format": 1', r"study\.json: cannot be read"),
        ("[1]", r"study\.json: cannot be read \(it is not a JSON object\)"),
        ("{}", "got no format version"),
        ('{"format": 1}', "got format version 1, expected format version 2; use the version"),
        ('{"format": "2"}', "got format version '2', expected format version 2"),
        ('{"format": 2}', r"study\.json: cannot be read \(it has no digest\)"),
    ],
)
def test_a_missing_or_damaged_manifest_is_explained(text: str | None, message: str, tmp_path: Path):
    if text is not None:
        (tmp_path / MANIFEST_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=message):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda raw: raw.update(colour="red"), "colour: "),
        (lambda raw: raw.pop("trials"), "trials: "),
        (lambda raw: raw.update(images=0), "images: "),
        (lambda raw: raw.update(images="9"), "images: "),
        (lambda raw: raw["trials"][1].update(seed="0"), r"trials\.1\.seed: "),
        (lambda raw: raw["trials"][1].update(rows=["fast"]), r"trials\.1\.rows: "),
        (lambda raw: raw.update(paper={"fast": {"natural": "high"}}), r"paper\.fast\.natural: "),
    ],
)
def test_a_manifest_with_a_wrong_entry_is_refused(
    edit: Callable[[dict[str, Any]], object], message: str, folder: Path
):
    edit_json(folder / MANIFEST_FILE, edit)
    with pytest.raises(RunError, match=rf"study\.json: {message}.*; run the study again"):
        Manifest.load(folder)


def replace_weights(folder: Path) -> None:
    (best,), (other,) = ((folder / row / "seed-0").glob("weights/best-*") for row in ("fast", "slow"))
    shutil.copy(other / "global.safetensors", best / "global.safetensors")


def add_newer_weights(folder: Path) -> None:
    (best,) = (folder / "fast" / "seed-0").glob("weights/best-*")
    shutil.copytree(best, best.with_name("best-00000999"))


def remove_weights(folder: Path) -> None:
    shutil.rmtree(folder / "fast" / "seed-0" / "weights")


def remove_one_weights_file(folder: Path) -> None:
    (best,) = (folder / "fast" / "seed-0").glob("weights/best-*")
    (best / "global.safetensors").unlink()


def edit_recipe(folder: Path) -> None:
    change(folder / "fast" / "seed-0" / "recipe.toml", "0.05", "0.06")


def edit_signature(folder: Path, **entries: object) -> None:
    file = signature_file(evaluation_folder(folder / "fast" / "seed-0", "best"))
    edit_json(file, lambda raw: raw.update({key.replace("_", " "): new for key, new in entries.items()}))


def sign_other_weights(folder: Path) -> None:
    """Describe the last weights correctly, although the best ones were evaluated."""
    run = folder / "fast" / "seed-0"
    (last,) = run.glob("weights/last-*/global.safetensors")
    recipe = json.loads(signature_file(evaluation_folder(run, "best")).read_text())["recipe"]
    edit_signature(folder, **make_signature(run, recipe, last))


def remove_signature(folder: Path) -> None:
    signature_file(evaluation_folder(folder / "fast" / "seed-0", "best")).unlink()


def swap_runs(folder: Path) -> None:
    for name, other in (("fast", "kept"), ("slow", "fast"), ("kept", "slow")):
        (folder / name).rename(folder / other)


def swap_outcome(folder: Path) -> None:
    here, there = (evaluation_folder(folder / row / "seed-0", "best") for row in ("fast", "slow"))
    shutil.copy(there / OUTCOME_FILE, here / OUTCOME_FILE)


def damage_outcome(folder: Path) -> None:
    (evaluation_folder(folder / "fast" / "seed-0", "best") / OUTCOME_FILE).write_bytes(b"junk")


def expect_more_images(folder: Path) -> None:
    edit_json(folder / MANIFEST_FILE, lambda raw: raw.update(images=IMAGES + 1))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            replace_weights,
            r"fast/seed-0: was evaluated with weights \w{16}, but now has \w{16}: it was changed",
        ),
        (
            add_newer_weights,
            r"was evaluated with weights file weights/best-\d+/\S+, but now has \S+-00000999/",
        ),
        (remove_weights, "fast/seed-0: was evaluated, but has no best weights: it was changed by hand"),
        (
            remove_one_weights_file,
            r"what was evaluated cannot be read \(.*global\.safetensors.*changed by hand",
        ),
        (
            edit_recipe,
            r"fast/seed-0: was evaluated with recipe file \w{16}, but now has \w{16}: it was changed",
        ),
        (lambda folder: edit_signature(folder, recipe="0" * 12), r"holds a run of another recipe \(0{12}, "),
        (lambda folder: edit_signature(folder, recipe_file="0" * 16), "with recipe file 0{16}, but now has"),
        (lambda folder: edit_signature(folder, weights="0" * 16), "with weights 0{16}, but now has"),
        (
            lambda folder: edit_signature(folder, weights_file="weights/x"),
            "what was evaluated cannot be read",
        ),
        (
            lambda folder: edit_signature(folder, weights=None),
            r"best\.json: expected a text for each of recipe",
        ),
        (sign_other_weights, "was evaluated with weights file weights/last-"),
        (
            remove_signature,
            r"best\.json: cannot be read .*; restore .*, or remove .*/fast/seed-0/eval and call",
        ),
        (swap_runs, "holds a run of another recipe"),
        (swap_outcome, r"outcome\.safetensors: is the outcome of recipe \w+, expected \w+: it was changed"),
        (damage_outcome, r"outcome\.safetensors: cannot be read \(.*\); restore .* or move it away"),
        (expect_more_images, f"was evaluated on {IMAGES} images, expected {IMAGES + 1}; remove .*/eval and"),
    ],
)
def test_every_change_by_hand_is_refused(edit: Callable[[Path], None], message: str, folder: Path):
    collect_results(Manifest.load(folder), folder)
    edit(folder)
    with pytest.raises(RunError, match=message):
        collect_results(Manifest.load(folder), folder)


def test_damage_never_changes_a_table(finished: tuple[Study, Path], folder: Path):
    study, _ = finished
    table = render_study(collect_results(Manifest.load(folder), folder), "json")
    evaluation = evaluation_folder(folder / "fast" / "seed-0", "best")
    manifest, toml = folder / MANIFEST_FILE, folder / STUDY_FILE
    for file in (manifest, toml, signature_file(evaluation), evaluation / OUTCOME_FILE):
        content = file.read_bytes()
        for name, damaged in damages(content, 16):
            file.write_bytes(damaged)
            try:
                open_study(study, folder)
                after = render_study(collect_results(Manifest.load(folder), folder), "json")
            except RunError as error:
                assert f"{file.name}: cannot be read" in str(error), name
            else:
                assert after == table, f"{file.name}: {name}"
        file.write_bytes(content)


@pytest.mark.parametrize("name", [STUDY_FILE, MANIFEST_FILE])
@pytest.mark.parametrize("after", [False, True])
def test_a_study_killed_while_its_folder_is_created_is_opened_again(
    name: str, after: bool, finished: tuple[Study, Path], tmp_path: Path
):
    study, folder = finished
    point = Point("pathlib:Path.replace", mentions=f".{name}.tmp", after=after)
    with struck(point, give_up), pytest.raises(Killed):
        open_study(study, tmp_path / "new")
    open_study(study, tmp_path / "new")
    for file in (STUDY_FILE, MANIFEST_FILE):
        assert (tmp_path / "new" / file).read_bytes() == (folder / file).read_bytes()


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_a_damaged_manifest_is_not_shown_and_written_again(
    position: float, finished: tuple[Study, Path], folder: Path
):
    content = (folder / MANIFEST_FILE).read_bytes()
    flip(folder / MANIFEST_FILE, int(position * len(content)))
    with pytest.raises(RunError, match=r"study\.json: cannot be read .*or run the study again"):
        Manifest.load(folder)
    open_study(finished[0], folder)
    assert (folder / MANIFEST_FILE).read_bytes() == content


def test_weights_are_those_that_the_outcome_names(folder: Path):
    run = folder / "fast" / "seed-0"
    recipe = Manifest.load(folder).trials[1].recipe
    best, last = (evaluation_folder(run, which) for which in ("best", "last"))
    assert load_trial_outcome(run, recipe, "best", None).facts["weights"] == "best"
    shutil.copytree(best, last)
    shutil.copy(signature_file(best), signature_file(last))
    with pytest.raises(
        RunError, match=r"was evaluated with weights file weights/best-.*, but now has weights/last-"
    ):
        load_trial_outcome(run, recipe, "last", None)


def test_a_study_is_found_by_folder_name_and_file(
    folder: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shipped = ["embedded/demo"]
    assert find_study_folder(str(folder), None, shipped) == folder
    assert find_study_folder(str(file), folder, shipped) == folder
    monkeypatch.chdir(tmp_path)
    assert default_folder("mine.toml") == Path("runs/studies/mine.toml")
    shutil.copytree(folder, default_folder("mine.toml"))
    assert find_study_folder("mine.toml", None, shipped) == default_folder("mine.toml")
    demo = default_folder("embedded/demo")
    open_study(Study.load("embedded/demo"), demo)
    assert find_study_folder("embedded/demo", None, shipped) == demo
    Path("embedded/demo").mkdir(parents=True)  # a folder of that name holds no study
    assert find_study_folder("embedded/demo", None, shipped) == demo


def test_a_shipped_study_that_ran_with_other_settings_is_refused(tmp_path: Path):
    study = Study.load("embedded/demo")
    open_study(replace(study, sets=("epochs=1",)), tmp_path / "out")
    with pytest.raises(RunError, match=r"embedded/demo: differs from the study that ran in .*out \(sets\)"):
        find_study_folder("embedded/demo", tmp_path / "out", ["embedded/demo"])
    open_study(replace(study, seeds=(0, 1)), tmp_path / "seeds")
    assert find_study_folder("embedded/demo", tmp_path / "seeds", ["embedded/demo"]) == tmp_path / "seeds"


def test_a_folder_of_another_study_is_refused(folder: Path, file: Path, tmp_path: Path):
    shipped = ["embedded/demo"]
    with pytest.raises(RecipeError, match="is a folder, and --out other names another; give one of them"):
        find_study_folder(str(folder), Path("other"), shipped)
    with pytest.raises(RunError, match=r"out: holds another study \(tiny\), asked for embedded/demo; name"):
        find_study_folder("embedded/demo", folder, shipped)
    with pytest.raises(
        RunError, match=r"new: mine\.toml did not run there, .*allrounder sweep .*mine\.toml --out"
    ):
        find_study_folder(str(file), tmp_path / "new", shipped)
    with pytest.raises(RecipeError, match=r'dmo: no such file or folder, .*did you mean "embedded/demo"'):
        find_study_folder("embedded/dmo", None, shipped)
    (tmp_path / "wrong.toml").write_text("= 1")
    with pytest.raises(RecipeError, match=r"wrong\.toml: not TOML"):
        find_study_folder(str(tmp_path / "wrong.toml"), folder, shipped)
    (folder / STUDY_FILE).unlink()
    with pytest.raises(RunError, match=r"study\.toml: cannot be read"):
        find_study_folder(str(file), folder, shipped)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("lr=0.01", "lr=0.02", "row"),
        ('{ label = "fast" }', '{ label = "fast", weights = "last" }', "row"),
        (', { label = "fast" }', "", "row"),
        (f"images = {IMAGES}", "images = 8", "images"),
        (f"images = {IMAGES}", 'reference = "fast"', "images, reference"),
        ("about", 'sets = ["epochs=1"]\nabout', "sets"),
    ],
)
def test_a_file_that_was_changed_since_it_ran_is_refused(
    old: str, new: str, changed: str, folder: Path, file: Path
):
    find_study_folder(str(file), folder, [])
    change(file, old, new)
    with pytest.raises(
        RunError, match=rf"differs from the study that ran in .*out \({changed}\); run it with"
    ):
        find_study_folder(str(file), folder, [])


def test_seeds_and_texts_of_a_file_may_change(folder: Path, file: Path):
    change(file, 'about = "rates"', 'about = "other"\nname = "other"\nseeds = [0, 7]\nprobes = []')
    assert find_study_folder(str(file), folder, []) == folder
