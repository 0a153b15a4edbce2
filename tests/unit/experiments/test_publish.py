"""Published studies: the same tables and reports as the study, without weights, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from allrounder.errors import RunError
from allrounder.experiments.collect import read_results
from allrounder.experiments.manifest import MANIFEST_FILE, STUDY_FILE, Manifest, collect_results
from allrounder.experiments.publish import publish_study
from allrounder.experiments.published import PUBLISHED_FILE, PublishedFiles
from allrounder.experiments.runner import open_study
from allrounder.report.dial import DialPoint
from allrounder.system.checked_files import add_digest, write_json, write_toml_text
from allrounder.system.files import hash_file
from allrounder.training.run import load
from tests.support.damage import cut, edit_json, flip
from tests.support.interruptions import Killed, Point, give_up, struck
from tests.support.publishing import change_outcome, list_files, remove_seed, render

RUN = "fast/seed-0"
OUTCOME = f"{RUN}/eval/best/outcome.safetensors"


def test_what_a_table_and_a_report_need_is_published_and_nothing_else(finished, published: Path):
    _, source = finished
    files = [name for name in list_files(published) if name.startswith(f"{RUN}/")]
    (best,) = (source / RUN / "weights").glob("best-*")
    expected = ["recipe.toml", "format.json", "env.json", "metrics.jsonl", "eval/best.json"]
    expected += ["eval/best/outcome.safetensors", f"weights/{best.name}/manifest.json"]
    expected += ["weights/last-00000006/manifest.json"]
    assert files == sorted(f"{RUN}/{name}" for name in expected)
    assert all((published / name).read_bytes() == (source / name).read_bytes() for name in files)
    listed = PublishedFiles.load(published).digests
    assert sorted([*listed, PUBLISHED_FILE]) == list_files(published)
    assert {STUDY_FILE, MANIFEST_FILE} < listed.keys()
    assert all(digest == hash_file(published / name) for name, digest in listed.items())


@pytest.mark.parametrize("style", ["markdown", "latex", "csv", "json"])
def test_the_table_is_that_of_the_study(style: str, finished, published: Path):
    assert render(published, style) == render(finished[1], style)


def test_the_numbers_are_those_of_their_rows_and_seeds(published: Path):
    outcomes = collect_results(Manifest.load(published), published).outcomes
    right = {row: [9 * o.accuracy() for o in by_seed.values()] for row, by_seed in outcomes.items()}
    assert right == {"slow": pytest.approx([5, 7]), "fast": pytest.approx([1, 3])}


def test_the_report_has_the_rows_of_the_study(finished, published: Path):
    entries, others = (read_results(folder).entries for folder in (published, finished[1]))
    for entry, other in zip(entries, others, strict=True):
        assert (entry.name, entry.study, entry.cost, entry.minutes, entry.classes, entry.problems) == (
            *(other.name, other.study, other.cost, other.minutes, other.classes),
            (),
        )
        assert list(entry.outcomes) == list(other.outcomes) == [0, 1]
        for seed, outcome in entry.outcomes.items():
            assert outcome.accuracy() == other.outcomes[seed].accuracy()
        for seed, training in entry.trainings.items():
            assert vars(replace(training, folder="")) == vars(replace(other.trainings[seed], folder=""))


def test_no_published_file_has_a_path_of_the_machine(finished, published: Path):
    for name in list_files(published):
        assert str(finished[1].parent).encode() not in (published / name).read_bytes(), name


def test_unfinished_trainings_are_left_out_and_published_later(finished, source: Path, tmp_path: Path):
    complete, target = finished[1], tmp_path / "results"
    shutil.rmtree(source / "slow" / "seed-1" / "eval")
    shutil.rmtree(source / "fast" / "seed-1")
    publication = publish_study(source, target)
    assert publication.unfinished == ("slow/seed-1", "fast/seed-1") and publication.trainings == 2
    assert publication.files == len(list_files(target)) - 1
    assert not (target / "slow" / "seed-1").exists()
    assert render(target) == render(source) and "MISSING: slow, seed 1" in render(target)
    advice = "finish it where the study runs, and publish the study again"
    (problem,) = read_results(target).entries[0].problems
    assert problem == f"{target / 'slow' / 'seed-1'}: not trained yet; {advice}"
    assert publish_study(complete, target).unfinished == ()
    assert render(target) == render(complete) and "MISSING" not in render(target)


def add_row(folder: Path, label: str, which: str) -> None:
    """Add a row with other weights of the trainings of the row "fast"."""
    manifest = Manifest.load(folder)
    trials = [
        replace(trial, rows={**trial.rows, label: which}) if "fast" in trial.rows else trial
        for trial in manifest.trials
    ]
    replace(manifest, labels=(*manifest.labels, label), trials=tuple(trials)).save(folder)


def test_the_evaluated_rows_of_a_training_are_published_without_the_others(source: Path, tmp_path: Path):
    add_row(source, "fast, last", "last")
    publication = publish_study(source, tmp_path / "results")
    assert publication.trainings == 4
    assert publication.unfinished == ("fast/seed-0 (fast, last)", "fast/seed-1 (fast, last)")
    table = render(tmp_path / "results")
    assert table == render(source) and "MISSING: fast, last, seed 0; fast, last, seed 1." in table
    *_, last = read_results(tmp_path / "results").entries
    assert last.name == "fast, last" and "last is not evaluated; finish it where" in last.problems[0]


def test_measured_mixtures_are_published_without_weights(source: Path, tmp_path: Path):
    point = DialPoint({"a": 1.0}, 0.5, {"L2:1": 0.2}, 0.2, 0.2)
    (source / RUN / "dial" / "best").mkdir(parents=True)
    write_json(source / RUN / "dial" / "dial.json", {"format": 1, "points": [asdict(point)]})
    (source / RUN / "dial" / "best" / "global.safetensors").touch()
    publish_study(source, tmp_path / "results")
    names = list_files(tmp_path / "results")
    assert [name for name in names if "/dial/" in name] == [f"{RUN}/dial/dial.json"]
    (training, *_) = read_results(tmp_path / "results").entries[1].trainings.values()
    assert training.mixtures == (point,)
    flip(source / RUN / "dial" / "dial.json")
    with pytest.raises(RunError, match=r"dial\.json: cannot be read"):
        publish_study(source, tmp_path / "other")


def test_published_outcomes_are_not_replaced_by_others(source: Path, published: Path):
    before = {name: hash_file(published / name) for name in list_files(published)}
    change_outcome(source / OUTCOME, 4)
    with pytest.raises(
        RunError,
        match=rf"tiny: has outcomes that differ from those of .*out: {OUTCOME}; publish into another folder, "
        "or remove this one",
    ):
        publish_study(source, published)
    assert before == {name: hash_file(published / name) for name in list_files(published)}


def test_a_study_with_more_seeds_is_published_again(finished, source: Path, tmp_path: Path):
    study, complete = finished
    target, again = tmp_path / "results", tmp_path / "again"
    one = tmp_path / "one"
    shutil.copytree(source, one)
    remove_seed(one, 1)
    manifest = Manifest.load(one)
    (one / STUDY_FILE).unlink()
    replace(manifest, trials=tuple(trial for trial in manifest.trials if trial.seed == 0)).save(one)
    write_toml_text(one / STUDY_FILE, replace(study, seeds=(0,)).dumps())
    publish_study(one, target)
    assert render(target) == render(one) and "seeds" not in render(target).partition("\n\n")[0]
    publish_study(complete, target)
    publish_study(complete, again)
    assert list_files(target) == list_files(again)
    assert all((target / name).read_bytes() == (again / name).read_bytes() for name in list_files(again))
    with pytest.raises(RunError, match=r"has outcomes that .*one does not have: fast/seed-1/.*name another"):
        publish_study(one, target)
    assert render(target) == render(complete), "nothing was changed"


def test_files_that_are_no_longer_part_of_it_are_removed(finished, source: Path, tmp_path: Path):
    target = tmp_path / "results"
    (source / RUN / "stages" / "base").mkdir(parents=True)
    shutil.copy(source / RUN / "metrics.jsonl", source / RUN / "stages" / "base" / "metrics.jsonl")
    publish_study(source, target)
    assert f"{RUN}/stages/base/metrics.jsonl" in list_files(target)
    publish_study(finished[1], target)
    assert f"{RUN}/stages/base/metrics.jsonl" not in list_files(target)
    assert render(target) == render(finished[1])


@pytest.mark.parametrize("mentions", [".published.json.tmp", ".recipe.toml.tmp", ".study.json.tmp"])
def test_an_interrupted_call_is_repeated(mentions: str, finished, tmp_path: Path):
    target = tmp_path / "results"
    for after in (False, True):
        with (
            struck(Point("pathlib:Path.replace", mentions=mentions, after=after), give_up),
            pytest.raises(Killed),
        ):
            publish_study(finished[1], target)
        if (target / MANIFEST_FILE).exists():
            with pytest.raises(
                RunError, match=r"is not listed in published\.json, .*publish the study again"
            ):
                Manifest.load(target)
    publish_study(finished[1], target)
    assert render(target) == render(finished[1])


def change_line(file: Path) -> None:
    """Change a log so that its own digests fit."""
    first, *others = file.read_text(encoding="utf-8").splitlines()
    fields = {**json.loads(first), "accuracy": 1.0}
    del fields["digest"]
    file.write_text("\n".join([json.dumps(add_digest(fields)), *others, ""]), encoding="utf-8")


def edit(**fields: object) -> Callable[[Path], None]:
    """A change of fields of a JSON file, whose own digest then fits."""
    return lambda file: edit_json(file, lambda raw: raw.update(fields))


def add_file(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.touch()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (OUTCOME, flip, "has the SHA-256 .*, was published with .*: it was changed; restore it from a copy"),
        (OUTCOME, cut, "it was changed"),
        (OUTCOME, Path.unlink, r"was published, but cannot be read \(No such file.*publish the study again"),
        (f"{RUN}/eval/best.json", edit(x=1), "it was changed"),
        (f"{RUN}/metrics.jsonl", change_line, "it was changed"),
        (f"{RUN}/metrics.jsonl", Path.unlink, "cannot be read"),
        (f"{RUN}/recipe.toml", flip, "it was changed"),
        (f"{RUN}/env.json", Path.unlink, "cannot be read"),
        (f"{RUN}/stages/base/metrics.jsonl", add_file, r"is not listed in published\.json, .*; remove it"),
        (MANIFEST_FILE, edit(reference="fast"), "it was changed"),
        (STUDY_FILE, flip, "it was changed; restore it from a copy, or remove the folder and publish"),
        (
            PUBLISHED_FILE,
            flip,
            r"published\.json: cannot be read .*or remove the folder and publish the study",
        ),
        (PUBLISHED_FILE, edit(format=2), "got format version 2, expected format version 1"),
        (PUBLISHED_FILE, edit(files=[1]), "expected the digest of every file"),
        (PUBLISHED_FILE, edit(files={"study.toml": 1}), "expected the digest of every file"),
    ],
)
def test_a_changed_or_missing_file_is_refused(
    name: str, change: Callable[[Path], object], message: str, published: Path
):
    render(published)
    change(published / name)
    with pytest.raises(RunError, match=message) as caught:
        render(published)
    assert str(published / name) in str(caught.value)


def test_weights_of_another_training_are_refused_even_if_all_digests_fit(published: Path):
    (weights,) = (published / RUN).glob("weights/best-*/manifest.json")
    edit_json(weights, lambda raw: raw["files"].update({"global.safetensors": "0" * 64}))
    listed = PublishedFiles.load(published)
    name = weights.relative_to(published).as_posix()
    replace(listed, digests={**listed.digests, name: hash_file(weights)}).save()
    with pytest.raises(RunError, match=r"fast/seed-0: was evaluated with weights \w{16}, but now has 0{16}"):
        render(published)


def test_damage_is_a_problem_of_one_row_of_a_report(published: Path):
    change_line(published / RUN / "metrics.jsonl")
    slow, fast = read_results(published).entries
    assert slow.problems == () and list(slow.outcomes) == [0, 1]
    assert list(fast.outcomes) == list(fast.trainings) == [1]
    (problem,) = fast.problems
    assert "metrics.jsonl: has the SHA-256" in problem


def test_hidden_files_do_not_count(published: Path):
    (published / RUN / ".directory").touch()
    render(published)


def test_a_published_study_cannot_be_continued(finished, published: Path):
    before = {name: hash_file(published / name) for name in list_files(published)}
    with pytest.raises(RunError, match=r"holds a published study, .*nothing to resume; choose another --out"):
        open_study(finished[0], published)
    with pytest.raises(RunError, match="is a published study, which has no weights; name the folder that"):
        publish_study(published, published.with_name("copy"))
    with pytest.raises(RunError, match="has the digests of its weights, but not the weights"):
        load(published / RUN, "best")
    assert before == {name: hash_file(published / name) for name in list_files(published)}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: flip(next(run.glob("weights/best-*/global.safetensors"))), "was evaluated with weights"),
        (lambda run: flip(run / "metrics.jsonl"), r"metrics\.jsonl: cannot be read"),
        (lambda run: flip(run / "env.json"), r"env\.json: cannot be read"),
        (lambda run: cut(run / "eval" / "best" / "outcome.safetensors"), "cannot be read"),
        (lambda run: (run / "format.json").unlink(), "got no format version"),
    ],
)
def test_a_damaged_study_is_not_published(damage, message: str, source: Path, tmp_path: Path):
    damage(source / RUN)
    with pytest.raises(RunError, match=message):
        publish_study(source, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_study_without_a_finished_training_is_not_published(source: Path, tmp_path: Path):
    for seed in (0, 1):
        remove_seed(source, seed)
    with pytest.raises(
        RunError, match="no training of tiny is finished; run it first with: allrounder sweep"
    ):
        publish_study(source, tmp_path / "results")


def test_a_key_that_only_a_newer_version_writes_is_no_difference(finished, published: Path):
    text = finished[0].dumps()
    for line in ("ood = []\n", "held_out = false\n"):
        assert line in text
        text = text.replace(line, "")
    write_toml_text(published / STUDY_FILE, text)
    publish_study(finished[1], published)
    assert render(published) == render(finished[1])


def test_other_folders_and_studies_are_not_overwritten(finished, published: Path, tmp_path: Path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(RunError, match="full: is not empty and holds no published study; name another --to"):
        publish_study(finished[1], tmp_path / "full")
    write_toml_text(published / STUDY_FILE, replace(finished[0], images=8).dumps())
    with pytest.raises(RunError, match=r"tiny: holds another study than .*out, or one .*; name another --to"):
        publish_study(finished[1], published)
