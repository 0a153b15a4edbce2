"""What a report reads: runs, studies and evaluations; damage is a problem of a row and never an error."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from allrounder.errors import RESUME_HINT, RunError
from allrounder.evaluation.evaluate import evaluate
from allrounder.experiments.collect import read_results
from allrounder.experiments.manifest import Manifest, collect_results, evaluation_folder
from allrounder.report.entry import Entry
from allrounder.report.outcome import OUTCOME_FILE
from allrounder.report.study import render_study
from allrounder.training.run import Run, load
from tests.support.damage import cut, edit_json, flip
from tests.support.evaluations import group_options, run_evaluation
from tests.support.networks import blobs, tiny
from tests.support.paths import PROJECT
from tests.support.studies import run_here, tiny_study
from tests.support.trainings import PAIR, EndsAfter, go, recipe

NAME = "<b>pair</b> & $x^2$"
FOLDER = "<i>pair & $y^2$"
WEIGHTS = ("best", "last", "linf", "natural@best")


def evaluate_run(run: Path, which: str) -> None:
    """Evaluate weights of a run as `allrounder eval RUN --which` does."""
    about = {"weights": which, "recipe": Run(run).recipe.fingerprint(), "name": Run(run).recipe.name}
    options = group_options({"about": about, "check": "skip", "batch_size": 4})
    model = load(run, which, model=tiny)
    evaluate(
        model, blobs(48), probes=["pgd-2@Linf:0.1"], out=run / "eval" / which.replace("@", "-"), **options
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two learners with four evaluations, which no test may change."""
    folder = tmp_path_factory.mktemp("runs") / FOLDER
    run = go(recipe(f'name = "{NAME}"\n{PAIR}'), folder).folder
    for which in WEIGHTS:
        evaluate_run(run, which)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run, for one test."""
    return Path(shutil.copytree(finished, tmp_path / FOLDER))


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study of two rows and two seeds, which no test may change."""
    folder = tmp_path_factory.mktemp("study")
    run_here(replace(tiny_study(folder), images=9), folder / "out")
    return folder / "out"


@pytest.fixture
def study(finished_study: Path, tmp_path: Path) -> Path:
    """A copy of the study, for one test."""
    return Path(shutil.copytree(finished_study, tmp_path / "out"))


def read_rows(*paths: str | Path) -> dict[str, Entry]:
    entries = read_results(paths).entries
    assert len({entry.name for entry in entries}) == len(entries), "names are unique"
    return {entry.name: entry for entry in entries}


def test_a_run_gives_a_row_for_each_of_its_evaluated_weights(finished: Path):
    rows = read_rows(finished)
    assert list(rows) == [NAME, f"{NAME} (last)", f"{NAME} (linf)", f"{NAME} (natural@best)"]
    for row, which in zip(rows.values(), WEIGHTS, strict=True):
        assert list(row.outcomes) == [5], "the seed of the recipe"
        assert row.outcomes[5].facts["weights"] == which
        assert row.problems == () and row.study == "" and row.cost == ""
    assert [bool(row.trainings) for row in rows.values()] == [True, False, False, False]


def test_a_row_has_the_facts_of_its_training(finished: Path):
    row = read_rows(finished)[NAME]
    training = row.trainings[5]
    assert (training.folder, training.state, training.epochs) == (str(finished), "finished", 3)
    assert training.learners == ("linf", "natural") and training.exchanges == (1, 2)
    assert f'name = "{NAME}"' in training.recipe and not training.recipe.startswith("# digest")
    assert list(training.events) == Run(finished).metrics()
    assert [session["device"] for session in training.sessions] == ["cpu"]
    seconds = {event["epoch"]: event["seconds"] for event in training.events if event["event"] == "epoch"}
    assert row.minutes == pytest.approx((sum(seconds.values()) / 60,))
    assert row.classes == tuple(blobs(48).classes)


def test_without_best_weights_a_run_is_shown_with_its_last(run: Path):
    shutil.rmtree(run / "eval" / "best")
    rows = read_rows(run)
    assert list(rows) == [NAME, f"{NAME} (linf)", f"{NAME} (natural@best)"]
    assert rows[NAME].outcomes[5].facts["weights"] == "last"


def test_a_run_that_was_not_evaluated_names_the_command(run: Path):
    shutil.rmtree(run / "eval")
    row = read_rows(run)[NAME]
    assert row.outcomes == {} and row.trainings
    assert row.problems == (f"{run}: not evaluated; evaluate it with: allrounder eval {run}",)


@pytest.mark.parametrize(
    ("file", "damage", "problem"),
    [
        ("recipe.toml", flip, "recipe.toml: cannot be read (it was damaged or changed"),
        ("recipe.toml", Path.unlink, "not a run folder, it has no recipe.toml"),
        ("metrics.jsonl", flip, "metrics.jsonl: cannot be read"),
        ("metrics.jsonl", Path.unlink, "metrics.jsonl: cannot be read (got 0 bytes"),
        ("format.json", flip, "format.json: cannot be read"),
        ("env.json", flip, "env.json: cannot be read"),
        ("eval/best/outcome.safetensors", flip, "outcome.safetensors: cannot be read"),
        ("eval/best/outcome.safetensors", cut, "outcome.safetensors: cannot be read"),
        ("eval/best/outcome.safetensors", Path.unlink, "the evaluation is not finished, it has no outcome"),
    ],
)
def test_damage_is_a_problem_of_the_row_and_of_no_other(file, damage, problem, run: Path, finished: Path):
    damage(run / file)
    intact = read_rows(finished)
    rows = read_rows(run, finished)
    assert len(rows) == 2 * len(intact)
    damaged, *others = rows.values()
    assert len(damaged.problems) == 1 and problem in damaged.problems[0], damaged.problems
    assert str(run) in damaged.problems[0], "it names the place"
    assert all(row.problems == () and row.outcomes for row in others)
    assert bool(damaged.outcomes) == ("eval" not in file), "what is intact is shown"
    assert bool(damaged.trainings) == (file.startswith("e")), "an evaluation and env.json are no training"


def test_damage_of_other_weights_is_a_problem_of_their_row(run: Path):
    cut(run / "eval" / "natural-best" / OUTCOME_FILE)
    rows = read_rows(run)
    assert list(rows) == [NAME, f"{NAME} (last)", f"{NAME} (linf)", f"{NAME} (natural-best)"]
    assert [bool(row.problems) for row in rows.values()] == [False, False, False, True]


def test_missing_weights_are_a_problem(run: Path):
    shutil.rmtree(run / "weights")
    row = read_rows(run)[NAME]
    assert row.outcomes and row.classes == () and row.minutes == ()
    assert row.problems == (
        f"{run}: interrupted, epoch 3 of 3 done; {RESUME_HINT}",
        f"{run}: was evaluated, but has no best weights: it was changed by hand; remove it and call again",
    )


def test_an_outcome_of_another_recipe_is_not_shown(run: Path):
    for manifest in run.glob("weights/best-*/manifest.json"):
        edit_json(manifest, lambda fields: fields.update(fingerprint="another"))
    rows = read_rows(run)
    assert rows[NAME].outcomes == {} and rows[f"{NAME} (last)"].outcomes
    (problem,) = rows[NAME].problems
    assert "eval/best: is of recipe " in problem and "but the run is of another; remove it" in problem


def test_a_run_of_another_format_is_a_problem(run: Path):
    edit_json(run / "format.json", lambda fields: fields.update(format=1))
    for manifest in run.glob("weights/*/manifest.json"):
        edit_json(manifest, lambda fields: [fields.pop(key) for key in ("classes", "fingerprint")])
    damaged = next(iter(read_rows(run).values()))
    assert "got format version 1, expected format version 3" in damaged.problems[0]
    assert damaged.classes == () and damaged.trainings == {}


def test_an_unfinished_run_is_a_row_with_its_curves(tmp_path: Path):
    with pytest.raises(KeyError):
        go(recipe(PAIR), tmp_path / "stopped", progress=EndsAfter(7))
    row = read_rows(tmp_path / "stopped")["stopped"]
    (problem,) = row.problems
    assert problem == f"{tmp_path / 'stopped'}: interrupted, epoch 2 of 3 done; {RESUME_HINT}"
    assert row.trainings[5].events and row.minutes == () and row.outcomes == {}


def test_an_evaluation_by_itself_is_a_row(tmp_path: Path):
    run_evaluation(tmp_path / "plain")
    run_evaluation(tmp_path / "named", about={"name": "resnet18 <net>.pt"})
    rows = read_rows(tmp_path / "plain", tmp_path / "named")
    assert list(rows) == ["plain", "resnet18 <net>.pt"]
    assert all(list(row.outcomes) == [0] and not row.trainings and not row.problems for row in rows.values())
    cut(tmp_path / "named" / OUTCOME_FILE)
    (row,) = read_rows(tmp_path / "named").values()
    assert row.name == "named" and row.outcomes == {} and "cannot be read" in row.problems[0]


def test_a_study_gives_its_rows_with_all_seeds(finished_study: Path):
    results = read_results([finished_study])
    assert [entry.name for entry in results.entries] == ["slow", "fast"] and list(results.studies) == ["tiny"]
    for entry in results.entries:
        assert list(entry.outcomes) == list(entry.trainings) == [0, 1]
        assert len(entry.minutes) == 2 and entry.study == "tiny" and entry.problems == ()
        assert entry.cost and entry.classes == ("0", "1", "2")
    expected = collect_results(Manifest.load(finished_study), finished_study)
    assert render_study(results.studies["tiny"], "json") == render_study(expected, "json")


def test_a_damaged_training_leaves_the_rest_of_its_study_intact(study: Path):
    run = study / "fast" / "seed-1"
    cut(evaluation_folder(run, "best") / OUTCOME_FILE)
    shutil.rmtree(study / "slow" / "seed-0")
    shutil.rmtree(study / "slow" / "seed-1" / "eval")
    results = read_results([study])
    slow, fast = results.entries
    assert list(fast.outcomes) == [0] and list(fast.trainings) == [0, 1]
    (problem,) = fast.problems
    assert f"{run}/eval/best/{OUTCOME_FILE}: cannot be read" in problem
    advice = f"continue it with: allrounder sweep {study / 'study.toml'} --out {study}"
    assert slow.outcomes == {} and slow.problems == (
        f"{study / 'slow' / 'seed-0'}: not trained yet; {advice}",
        f"{study / 'slow' / 'seed-1'}: best is not evaluated; {advice}",
    )
    table = results.studies["tiny"]
    assert list(table.outcomes) == ["fast"]
    assert table.missing == ["slow, seed 0", "slow, seed 1", "fast, seed 1"]
    assert "MISSING: slow, seed 0" in render_study(table)


def test_a_changed_recipe_in_a_study_is_a_problem(study: Path):
    flip(study / "slow" / "seed-0" / "recipe.toml")
    slow, fast = read_results([study]).entries
    assert list(slow.outcomes) == list(slow.trainings) == [1] and fast.problems == ()
    assert any("recipe.toml: cannot be read" in problem for problem in slow.problems)
    assert any("was evaluated with recipe file" in problem for problem in slow.problems)


def test_a_damaged_manifest_of_a_study_is_a_problem(study: Path, finished: Path):
    cut(study / "study.json")
    flip(study / "study.json")
    rows = read_rows(study, finished)
    assert "study.json: cannot be read" in rows["out"].problems[0] and rows[NAME].outcomes


def test_rows_of_equal_names_get_longer_names(study: Path, run: Path, tmp_path: Path):
    other = shutil.copytree(study, tmp_path / "other")
    edit_json(other / "study.json", lambda fields: fields.update(name="second"))
    copy = shutil.copytree(run, tmp_path / "copy")
    same = shutil.copytree(run, tmp_path / "more" / "copy")
    results = read_results([study, other, run, run, copy, same])
    names = [entry.name for entry in results.entries]
    assert names[:4] == ["tiny: slow", "tiny: fast", "second: slow", "second: fast"]
    assert names[4::4] == [f"{NAME} ({FOLDER})", f"{NAME} (copy)", f"{NAME} (copy) 2"]
    assert len(set(names)) == len(names) == 4 + 3 * len(WEIGHTS), "a path that is given twice counts once"
    assert list(results.studies["second"].outcomes) == ["second: slow", "second: fast"]
    assert results.studies["second"].reference_row() == "second: slow"


def test_studies_of_equal_names_are_kept_apart(study: Path, tmp_path: Path):
    other = shutil.copytree(study, tmp_path / "other")
    results = read_results([study, other])
    assert list(results.studies) == ["tiny", "tiny 2"]
    assert [entry.study for entry in results.entries] == ["tiny", "tiny", "tiny 2", "tiny 2"]
    assert [list(table.outcomes) for table in results.studies.values()] == [
        ["tiny: slow", "tiny: fast"],
        ["tiny 2: slow", "tiny 2: fast"],
    ]


def test_a_shipped_study_is_found_by_its_name(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="embedded/demo did not run there"):
        read_results("embedded/demo")
    folder = tmp_path / "runs" / "studies" / "embedded-demo"
    shutil.copytree(study, folder)
    edit_json(folder / "study.json", lambda fields: fields.update(name="embedded/demo"))
    with pytest.raises(RunError, match="differs from the study that ran"):
        read_results(["embedded/demo"])


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir, Path.touch])
def test_a_path_that_is_nothing_of_this_is_an_error(make, tmp_path: Path):
    make(tmp_path / "x")
    with pytest.raises(RunError, match="expected the folder of a run, of a study or of an evaluation"):
        read_results([tmp_path / "x"])


def test_reading_needs_no_torch(finished: Path, finished_study: Path):
    code = "import sys\nfrom allrounder import read_results\nread_results(sys.argv[1:])\n"
    code += "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    words = [sys.executable, "-c", code, str(finished), str(finished_study), str(finished / "eval" / "linf")]
    subprocess.run(words, check=True, cwd=PROJECT)
