"""Published studies that get more rows and seeds, also from other folders."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from allrounder.errors import RunError
from allrounder.experiments.manifest import STUDY_FILE, Manifest
from allrounder.experiments.publish import publish_study
from allrounder.system.checked_files import write_toml_text
from allrounder.system.files import hash_file
from tests.support.damage import flip
from tests.support.interruptions import Killed, Point, give_up, struck
from tests.support.publishing import list_files, remove_seed, render
from tests.support.studies import run_here


def test_trainings_of_other_folders_are_kept_if_the_study_has_them(finished, source: Path, tmp_path: Path):
    target, other = tmp_path / "results", tmp_path / "other"
    shutil.copytree(source, other)
    remove_seed(source, 1)
    remove_seed(other, 0)
    assert publish_study(source, target).unfinished == ("slow/seed-1", "fast/seed-1")
    publication = publish_study(other, target)
    assert (publication.unfinished, publication.trainings, publication.kept) == ((), 2, 2)
    assert render(target) == render(finished[1]) and "MISSING" not in render(target)
    before = {name: hash_file(target / name) for name in list_files(target)}
    assert publish_study(finished[1], target).trainings == 4
    assert before == {name: hash_file(target / name) for name in list_files(target)}
    flip(target / "slow" / "seed-0" / "metrics.jsonl")
    with pytest.raises(RunError, match=r"metrics\.jsonl: .*changed; .*from the folder in which it ran"):
        publish_study(other, target)


def test_trainings_of_another_recipe_are_not_kept(source: Path, published: Path):
    remove_seed(source, 1)
    manifest = Manifest.load(source)
    changed = tuple(replace(trial, recipe="0" * 12) if trial.seed else trial for trial in manifest.trials)
    replace(manifest, trials=changed).save(source)
    with pytest.raises(RunError, match=r"has outcomes that .* does not have: fast/seed-1/"):
        publish_study(source, published)


MENTIONS = [".published.json.tmp", ".recipe.toml.tmp", ".study.toml.tmp", ".study.json.tmp"]


@pytest.mark.parametrize("mentions", MENTIONS)
@pytest.mark.parametrize("has_other_seed", [False, True])
def test_an_interrupted_call_of_an_unfinished_study_is_repeated(
    mentions: str, has_other_seed: bool, finished, source: Path, tmp_path: Path
):
    target, other = tmp_path / "results", tmp_path / "other"
    shutil.copytree(source, other)
    remove_seed(source, 1)
    if has_other_seed:
        remove_seed(other, 0)
        publish_study(other, target)
        write_toml_text(source / STUDY_FILE, replace(finished[0], about="in other words").dumps())
    for after in (False, True):
        place = Point("pathlib:Path.replace", mentions=mentions, after=after)
        with struck(place, give_up), pytest.raises(Killed):
            publish_study(source, target)
    assert publish_study(source, target).kept == (2 if has_other_seed else 0)
    assert render(target) == render(finished[1] if has_other_seed else source)


def test_rows_that_were_not_evaluated_elsewhere_are_named(finished, source: Path, tmp_path: Path):
    target = tmp_path / "results"
    publish_study(finished[1], target)
    remove_seed(source, 1)
    manifest = Manifest.load(source)
    trials = [
        replace(trial, rows={**trial.rows, "last": "last"}) if trial.folder == "fast/seed-1" else trial
        for trial in manifest.trials
    ]
    replace(manifest, labels=(*manifest.labels, "last"), trials=tuple(trials)).save(source)
    publication = publish_study(source, target)
    assert publication.kept == 2 and publication.unfinished == ("fast/seed-1 (last)",)


def test_a_row_that_ran_later_is_added(finished, published: Path, tmp_path: Path):
    study, complete = finished
    folder = Path(shutil.copytree(complete.parent, tmp_path / "again"))
    third = replace(study.row[0], label="third", sets=("epochs=1",))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_here(replace(study, row=(*study.row, third)), Path("out"))
    before = render(published).splitlines()
    assert publish_study(folder / "out", published).trainings == 6
    assert [line for line in render(published).splitlines() if line.startswith("| third")]
    assert "| row |" in before[0] and not any(line.startswith("| third") for line in before)


def test_rows_can_be_added_to_published_results_but_not_removed(finished, published: Path):
    study, source = finished
    fewer = replace(study, row=study.row[:1])
    write_toml_text(published / STUDY_FILE, fewer.dumps())
    publish_study(source, published)
    assert render(published) == render(source)
    more = replace(study, row=(*study.row, replace(study.row[0], label="third")))
    write_toml_text(published / STUDY_FILE, more.dumps())
    with pytest.raises(RunError, match="holds another study than"):
        publish_study(source, published)
    for rows in ((study.row[1], study.row[0]), study.row[1:]):
        write_toml_text(published / STUDY_FILE, replace(study, row=rows).dumps())
        with pytest.raises(RunError, match="holds another study than"):
            publish_study(source, published)


def test_a_study_with_fewer_seeds_names_what_to_add(finished, source: Path, tmp_path: Path):
    target = tmp_path / "results"
    publish_study(finished[1], target)
    remove_seed(source, 1)
    manifest = Manifest.load(source)
    replace(manifest, trials=tuple(trial for trial in manifest.trials if trial.seed == 0)).save(source)
    with pytest.raises(RunError, match=r"fast/seed-1/.*; give the study there all its seeds and rows"):
        publish_study(source, target)
