"""Studies that really run: skipped, resumed, killed, spoiled by hand, and always the same table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allrounder.errors import RecipeError, RunError, WorldError
from allrounder.experiments.launchers import run_on_ray, slurm_script, submit_to_slurm
from allrounder.experiments.manifest import EVALUATION_FOLDER, STUDY_FILE, collect_results, evaluation_folder
from allrounder.experiments.runner import make_jobs, make_manifest, open_study, run_trial
from allrounder.experiments.study import Point, Study
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.report.study import StudyResults, render_study
from allrounder.system.processes import run_jobs
from allrounder.system.progress import ProgressEvent
from allrounder.training.data import load_data, train_val_split
from allrounder.training.run import Run
from tests.support.damage import edit_json
from tests.support.networks import same
from tests.support.studies import run_here, tiny_study


def collect_study(study: Study, folder: Path) -> StudyResults:
    return collect_results(make_manifest(study), folder)


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Two rates, two seeds: four trainings of six steps."""
    return tiny_study(tmp_path)


def test_a_finished_study_is_skipped_and_gives_the_same_table(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    first = run_here(study, folder)
    assert {event.name for event in first} == {"slow/seed-0", "slow/seed-1", "fast/seed-0", "fast/seed-1"}
    table = render_study(collect_study(study, folder))
    assert "slow" in table and "MISSING" not in table
    again = run_here(study, folder)
    assert [event.stage for event in again] == ["already done"] * 4
    assert render_study(collect_study(study, folder)) == table


def test_seeds_can_be_added_and_another_study_is_refused(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    run_here(replace(study, seeds=(0,)), folder)
    events = run_here(study, folder)
    assert [event.name for event in events if event.stage == "already done"] == ["slow/seed-0", "fast/seed-0"]
    assert Study.loads((folder / STUDY_FILE).read_text(encoding="utf-8")).seeds == (0, 1)
    with pytest.raises(RunError, match=r"holds another study .*tiny: slow, fast.*nothing was changed"):
        open_study(replace(study, sets=("epochs=3",)), folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    with pytest.raises(RunError, match="is not empty and holds no study"):
        open_study(study, tmp_path / "full")


def test_rows_can_be_added_but_not_changed(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    one_seed = replace(study, seeds=(0,))
    run_here(one_seed, folder)
    third = Point(label="third", recipe=study.base, sets=("epochs=1",))
    extended = replace(one_seed, row=(*study.row, third))
    events = run_here(extended, folder)
    assert [event.name for event in events if event.stage == "already done"] == ["slow/seed-0", "fast/seed-0"]
    assert list(collect_study(extended, folder).outcomes) == ["slow", "fast", "third"]
    assert Study.loads((folder / STUDY_FILE).read_text(encoding="utf-8")).row == extended.row
    changed, first = replace(third, sets=("epochs=3",)), replace(third, label="first")
    for rows in (study.row, (*study.row, changed), (first, *extended.row), (third, *study.row)):
        with pytest.raises(RunError, match="holds another study"):
            open_study(replace(one_seed, row=rows), folder)


def test_results_list_what_is_missing(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    run_here(replace(study, seeds=(1,)), folder)
    results = collect_study(study, folder)
    assert results.missing == ["slow, seed 0", "fast, seed 0"] and "MISSING: slow, seed 0" in render_study(
        results
    )


def test_changes_by_hand_are_reported(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    run_here(replace(study, seeds=(0,)), folder)
    run = folder / "fast" / "seed-0"
    best = next((run / "weights").glob("best-*"))
    other = next((folder / "slow" / "seed-0" / "weights").glob("best-*"))
    kept = (best / "global.safetensors").read_bytes()
    (best / "global.safetensors").write_bytes((other / "global.safetensors").read_bytes())
    for use in (
        lambda: collect_study(replace(study, seeds=(0,)), folder),
        lambda: run_here(replace(study, seeds=(0,)), folder),
    ):
        with pytest.raises(RunError, match=r"was evaluated with weights .*changed by hand"):
            use()
    (best / "global.safetensors").write_bytes(kept)
    seal_file = run / EVALUATION_FOLDER / "best.json"
    seal = seal_file.read_text(encoding="utf-8")
    edit_json(seal_file, lambda entries: entries.update(weights="0" * 16))
    with pytest.raises(
        RunError, match=r"fast/seed-0: was evaluated with weights 0+, .*changed by hand; remove it"
    ):
        collect_study(replace(study, seeds=(0,)), folder)
    seal_file.write_text(seal, encoding="utf-8")
    recipe = (run / "recipe.toml").read_text(encoding="utf-8")
    (run / "recipe.toml").write_text(recipe.replace("0.05", "0.06"), encoding="utf-8")
    with pytest.raises(RunError, match=r"was evaluated with recipe .*changed by hand"):
        collect_study(replace(study, seeds=(0,)), folder)
    with pytest.raises(RunError, match=r"recipe\.toml: cannot be read \(it was damaged or changed"):
        run_here(replace(study, seeds=(0,)), folder)
    (run / "recipe.toml").write_text(recipe, encoding="utf-8")
    seal_file.write_text("[1]", encoding="utf-8")
    with pytest.raises(RunError, match=r"best.json: cannot be read"):
        collect_study(replace(study, seeds=(0,)), folder)


def test_a_recipe_changed_under_a_finished_study_is_reported(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    run_here(replace(study, seeds=(0,)), folder)
    file = Path(study.base)
    file.write_text(
        file.read_text(encoding="utf-8").replace("batch_size = 20", "batch_size = 10"), encoding="utf-8"
    )
    for use in (collect_study, run_here):
        with pytest.raises(RunError, match="holds a run of another recipe"):
            use(replace(study, seeds=(0,)), folder)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("forking")
def test_a_failure_stops_none_of_the_others(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    bad = replace(study, seeds=(0,))
    open_study(bad, folder)
    (folder / "slow" / "seed-0").mkdir(parents=True)
    (folder / "slow" / "seed-0" / "letter").touch()  # not empty, and no run
    with pytest.raises(RunError, match=r"(?s)1 of 2 runs failed, the others are done:.*slow/seed-0"):
        run_jobs(make_jobs(bad.trials(), folder, bad.images), 1, lambda event: None)
    assert collect_study(bad, folder).missing == ["slow, seed 0"]
    assert list(collect_study(bad, folder).outcomes) == ["fast"]


def test_a_study_continues_after_a_full_disk(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, one = tmp_path / "out", replace(study, seeds=(0,))
    from allrounder.training import run as runs

    write = runs.write_folder

    def full(path: Path, *given: Any) -> None:
        if "step-" in path.name:
            raise OSError(28, "No space left on device", str(path))
        write(path, *given)

    monkeypatch.setattr(runs, "write_folder", full)
    with pytest.raises(OSError, match="No space left"):
        run_here(one, folder)
    monkeypatch.setattr(runs, "write_folder", write)
    run_here(one, folder)
    clean = tmp_path / "clean"
    run_here(one, clean)
    assert tables(one, folder) == tables(one, clean)


def tables(study: Study, folder: Path) -> list[bytes]:
    """Every outcome, byte by byte."""
    return [
        (evaluation_folder(folder / trial.folder, "best") / OUTCOME_FILE).read_bytes()
        for trial in study.trials()
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [3])
def test_a_killed_sweep_gives_the_same_table(study: Study, kills: int, tmp_path: Path):
    many = replace(study, seeds=tuple(range(8)))
    (tmp_path / "many.toml").write_text(many.dumps(), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "allrounder",
        "sweep",
        str(tmp_path / "many.toml"),
        "--workers",
        "2",
        "--out",
    ]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*command, str(whole)], check=True, capture_output=True)
    for number in range(kills):
        process = subprocess.Popen(
            [*command, str(killed)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wanted = 3 * (number + 1)
        while (
            process.poll() is None
            and len(list(killed.glob(f"*/*/{EVALUATION_FOLDER}/best/{OUTCOME_FILE}"))) < wanted
        ):
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(3)  # its trainings are in sessions of their own; they find their parent gone
    subprocess.run([*command, str(killed)], check=True, capture_output=True)
    assert tables(many, whole) == tables(many, killed)
    assert render_study(collect_study(many, whole)) == render_study(collect_study(many, killed))


def test_a_script_for_slurm_runs_every_training(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Seeds that were there before are tasks too, since these read the study that the folder holds.
    open_study(study, tmp_path / "seeds")
    assert len(open_study(replace(study, seeds=(5,)), tmp_path / "seeds").trials()) == 6
    text = slurm_script(tmp_path / "out", 4)
    assert "#SBATCH --array=0-3" in text and '--only "$SLURM_ARRAY_TASK_ID"' in text
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorldError, match="sbatch: no such command"):
        submit_to_slurm(tmp_path / "slurm.sh")
    fake = tmp_path / "sbatch"
    fake.write_text("#!/bin/sh\necho Submitted batch job 7\n", encoding="utf-8")
    fake.chmod(0o755)
    assert submit_to_slurm(tmp_path / "slurm.sh") == "Submitted batch job 7"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_study_runs_on_a_local_cluster_of_ray(study: Study, tmp_path: Path):
    pytest.importorskip("ray", reason="ray is an extra: pip install 'allrounder[ray]'")
    one = replace(study, seeds=(0,))
    run_here(one, tmp_path / "here")
    events: list[ProgressEvent] = []
    open_study(one, tmp_path / "ray")
    run_on_ray(make_jobs(one.trials(), tmp_path / "ray", None), events.append)
    assert sorted((event.name, event.stage) for event in events) == [
        ("fast/seed-0", "done"),
        ("slow/seed-0", "done"),
    ]
    assert tables(one, tmp_path / "ray") == tables(one, tmp_path / "here")
    (tmp_path / "ray" / "fast" / "seed-0" / EVALUATION_FOLDER / "best.json").write_text(
        "[]", encoding="utf-8"
    )
    with pytest.raises(
        RunError, match=r"(?s)1 of 2 runs failed, the others are done:.*fast/seed-0: .*json: cannot be read"
    ):
        run_on_ray(make_jobs(one.trials(), tmp_path / "ray", None), events.append)


def test_weights_without_selection_are_the_last_ones(study: Study, tmp_path: Path):
    plain = replace(study, seeds=(0,), sets=("validation.images=0",))
    run_here(plain, tmp_path / "out")
    (label,) = collect_study(plain, tmp_path / "out").outcomes["fast"].values()
    assert label.facts["weights"] == "last" and "selected_on" not in label.facts


def test_a_study_can_be_evaluated_on_held_out_images(study: Study, tmp_path: Path):
    tuning = replace(study, seeds=(0,), held_out=True)
    run_here(tuning, tmp_path / "out")
    results = collect_study(tuning, tmp_path / "out")
    (outcome,) = results.outcomes["fast"].values()
    recipe = tuning.trials()[1].recipe
    _, held_out = train_val_split(recipe, load_data(recipe))
    assert held_out is not None and len(outcome) == len(held_out) == 20
    assert outcome.label.tolist() == held_out.labels.tolist()
    assert "20 held-out training images; seed 0; batch size 64; budget full." in results.notes()
    assert "Weights 'best' selected on THE SAME images, so too optimistic." in results.notes()
    assert Study.loads(tuning.dumps()) == tuning


def test_held_out_images_must_exist(study: Study, tmp_path: Path):
    tuning = replace(study, seeds=(0,), held_out=True, sets=("validation.images=0",))
    with pytest.raises(RecipeError, match=r'row "slow": held_out: the recipe holds out no images; set val'):
        run_here(tuning, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_outcome_holds_the_cost(study: Study, tmp_path: Path):
    trial = study.trials()[0]
    run_trial("x", lambda event: None, trial=trial, folder=tmp_path / "r", images=6)
    outcome = Outcome.load(evaluation_folder(tmp_path / "r", "best") / OUTCOME_FILE)
    assert outcome.facts["cost"] == "4/4" and len(outcome) == 6


def test_rows_that_differ_in_their_weights_share_a_training(study: Study, tmp_path: Path):
    averaged = "task.linf.average=0.9"
    points = (
        Point(label="averaged", sets=(averaged,), weights="last"),
        Point(label="live", sets=(averaged,), weights="live"),
        Point(label="selected", sets=(averaged,)),
    )
    both = replace(study, axis=(), row=points, seeds=(0, 1))
    assert [trial.label for trial in both.trials()] == ["averaged / live / selected"] * 2
    run_here(both, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == ["averaged"]
    result = collect_study(both, tmp_path / "out")
    assert not result.missing and list(result.outcomes) == ["averaged", "live", "selected"]
    run = Run(tmp_path / "out" / "averaged" / "seed-0")
    live, average = (run.weights(which)[0] for which in ("live", "last"))
    assert not same(live, average) and same(average, run.weights("linf")[0])
    assert [result.outcomes[row][0].facts["weights"] for row in result.outcomes] == ["last", "live", "best"]


def test_shifted_images_are_columns_beside_the_attacks(study: Study, tmp_path: Path):
    columns = ("brightness@c:5", "brightness@p")
    shifted = replace(study, seeds=(0,), row=study.row[1:], ood=columns, images=12)
    run_here(shifted, tmp_path / "out")
    (outcome,) = collect_study(shifted, tmp_path / "out").outcomes["fast"].values()
    titles = [" ".join(filter(None, column)) for column in outcome.columns()]
    assert "corruptions severity 5 (generated, 1 of 15)" in titles
    assert "perturbations all frames (generated, 1 of 10)" in titles
    assert "pgd-2@Linf:0.1" in titles


def test_minutes_are_those_of_the_epochs_and_only_shown_beside_the_papers(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    timed = replace(study, row=(replace(study.row[0], minutes=414), study.row[1]))
    run_here(timed, folder)
    results = collect_study(timed, folder)
    assert results.paper_minutes == {"slow": 414}
    events = [event for event in Run(folder / "slow/seed-0").metrics() if event["event"] == "epoch"]
    assert len(results.minutes["slow"]) == 2
    assert results.minutes["slow"][0] == pytest.approx(sum(event["seconds"] for event in events) / 60)
    table = render_study(results)
    assert "| minutes | paper |" in table and "414.0" in table and "Minutes: of training" in table
    assert "minutes" not in render_study(collect_study(study, folder))
