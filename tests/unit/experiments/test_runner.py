"""Studies that really run: skipped, resumed, killed, spoiled by hand, and always the same table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allrounder.errors import RunError, WorldError
from allrounder.evaluation.evaluate import OUTCOME
from allrounder.experiments.launchers import run_on_ray, slurm_script, submit
from allrounder.experiments.runner import (
    EVALUATED,
    STUDY,
    begin,
    carry_out,
    gather,
    jobs_of,
    place_of,
    run_study,
)
from allrounder.experiments.study import Point, Study
from allrounder.report.results import render
from allrounder.system.processes import Note
from allrounder.training.run import Run
from tests.support.networks import same

RECIPE = """
epochs = 2
batch = 20
checkpoint = 1
data = {{ kind = "npz", path = "{path}" }}
model = {{ kind = "small-cnn", width = 2 }}
probes = ["pgd-2@Linf:0.1", "pgd-2@L2:0.5"]
validation = {{ images = 20, train_images = 0, every = 1, attack = {{ kind = "pgd", steps = 1 }} }}
[[task]]
name = "linf"
objective = {{ kind = "adversarial", threat = "Linf:0.1", attack = {{ kind = "pgd", steps = 1 }} }}
lr = 0.05
augment = {{ kind = "none" }}
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Two rates, two seeds: four trainings of six steps."""
    draws = np.random.default_rng(0)
    y = (np.arange(120) % 3).astype(np.int64)
    x = np.clip(draws.normal(0.5, 0.1, (120, 1, 12, 12)) + 0.1 * y[:, None, None, None], 0, 1).astype(
        np.float32
    )
    path = tmp_path / "data.npz"
    np.savez(path, x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:])
    (tmp_path / "tiny.toml").write_text(RECIPE.format(path=path), encoding="utf-8")
    base = str(tmp_path / "tiny.toml")
    rows = '[{ label = "slow", sets = ["task.linf.lr=0.01"] }, { label = "fast" }]'
    return Study.loads(f'name = "tiny"\nbase = "{base}"\nseeds = [0, 1]\nrow = {rows}')


def ran(study: Study, folder: Path) -> list[Note]:
    """Run a study in this process; what was told."""
    told: list[Note] = []
    begin(study, folder)
    for name, job in jobs_of(study.trials(), folder, study.images).items():
        job(name, told.append)
    return told


def test_a_study_runs_is_skipped_and_gives_its_table(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    first = ran(study, folder)
    assert {note.name for note in first} == {"slow/seed-0", "slow/seed-1", "fast/seed-0", "fast/seed-1"}
    table = render(gather(study, folder))
    assert "slow" in table and "MISSING" not in table
    again = ran(study, folder)
    assert [note.what for note in again] == ["was done before"] * 4
    assert render(gather(study, folder)) == table


def test_seeds_can_be_added_and_another_study_is_refused(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    ran(replace(study, seeds=(0,)), folder)
    told = ran(study, folder)
    assert [note.name for note in told if note.what == "was done before"] == ["slow/seed-0", "fast/seed-0"]
    assert Study.loads((folder / STUDY).read_text(encoding="utf-8")).seeds == (0, 1)
    with pytest.raises(RunError, match=r"holds another study .*tiny: slow, fast.*nothing was changed"):
        begin(replace(study, sets=("epochs=3",)), folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    with pytest.raises(RunError, match="is not empty and holds no study"):
        begin(study, tmp_path / "full")


def test_what_is_missing_is_said(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    ran(replace(study, seeds=(1,)), folder)
    results = gather(study, folder)
    assert results.missing == ["slow, seed 0", "fast, seed 0"] and "MISSING: slow, seed 0" in render(results)


def test_what_was_changed_by_hand_is_reported(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    ran(replace(study, seeds=(0,)), folder)
    run = folder / "fast" / "seed-0"
    best = next((run / "weights").glob("best-*"))
    other = next((folder / "slow" / "seed-0" / "weights").glob("best-*"))
    kept = (best / "global.safetensors").read_bytes()
    (best / "global.safetensors").write_bytes((other / "global.safetensors").read_bytes())
    for use in (
        lambda: gather(replace(study, seeds=(0,)), folder),
        lambda: ran(replace(study, seeds=(0,)), folder),
    ):
        with pytest.raises(RunError, match=r"global.safetensors: differs from its manifest; it was changed"):
            use()
    (best / "global.safetensors").write_bytes(kept)
    seal_file = run / EVALUATED / "best.json"
    seal = seal_file.read_text(encoding="utf-8")
    seal_file.write_text(json.dumps({**json.loads(seal), "weights": "0" * 16}), encoding="utf-8")
    with pytest.raises(
        RunError, match=r"fast/seed-0: was evaluated with weights 0+, .*changed by hand; remove it"
    ):
        gather(replace(study, seeds=(0,)), folder)
    seal_file.write_text(seal, encoding="utf-8")
    recipe = (run / "recipe.toml").read_text(encoding="utf-8")
    (run / "recipe.toml").write_text(recipe.replace("0.05", "0.06"), encoding="utf-8")
    with pytest.raises(RunError, match=r"was evaluated with recipe .*changed by hand"):
        gather(replace(study, seeds=(0,)), folder)
    with pytest.raises(RunError, match="holds a run of another recipe"):
        ran(replace(study, seeds=(0,)), folder)
    (run / "recipe.toml").write_text(recipe, encoding="utf-8")
    seal_file.write_text("[1]", encoding="utf-8")
    with pytest.raises(RunError, match=r"best.json: cannot be read"):
        gather(replace(study, seeds=(0,)), folder)


def test_a_recipe_changed_under_a_finished_study_is_reported(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    ran(replace(study, seeds=(0,)), folder)
    file = Path(study.base)
    file.write_text(file.read_text(encoding="utf-8").replace("batch = 20", "batch = 10"), encoding="utf-8")
    for use in (gather, ran):
        with pytest.raises(RunError, match="holds a run of another recipe"):
            use(replace(study, seeds=(0,)), folder)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("forking")
def test_a_failure_stops_none_of_the_others(study: Study, tmp_path: Path):
    folder = tmp_path / "out"
    bad = replace(study, seeds=(0,))
    begin(bad, folder)
    (folder / "slow" / "seed-0").mkdir(parents=True)
    (folder / "slow" / "seed-0" / "letter").touch()  # not empty, and no run
    with pytest.raises(RunError, match=r"(?s)1 of 2 runs failed, the others are done:.*slow/seed-0"):
        run_study(bad, folder, lambda note: None, workers=1)
    assert gather(bad, folder).missing == ["slow, seed 0"]
    assert list(gather(bad, folder).outcomes) == ["fast"]


def test_a_full_disk_loses_nothing(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, one = tmp_path / "out", replace(study, seeds=(0,))
    from allrounder.training import run as runs

    write = runs.write_folder

    def full(path: Path, *given: Any) -> None:
        if "step-" in path.name:
            raise OSError(28, "No space left on device", str(path))
        write(path, *given)

    monkeypatch.setattr(runs, "write_folder", full)
    with pytest.raises(OSError, match="No space left"):
        ran(one, folder)
    monkeypatch.setattr(runs, "write_folder", write)
    ran(one, folder)
    clean = tmp_path / "clean"
    ran(one, clean)
    assert tables(one, folder) == tables(one, clean)


def tables(study: Study, folder: Path) -> list[bytes]:
    """Every outcome, byte by byte."""
    return [(place_of(folder / trial.folder, "best") / OUTCOME).read_bytes() for trial in study.trials()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [3])
def test_a_sweep_of_many_that_is_killed_ends_with_the_same_table(study: Study, kills: int, tmp_path: Path):
    many = replace(study, seeds=tuple(range(25)))
    (tmp_path / "many.toml").write_text(many.dump(), encoding="utf-8")
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
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([*command, str(whole)], check=True, capture_output=True)
    for number in range(kills):
        process = subprocess.Popen(
            [*command, str(broken)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wanted = 8 * (number + 1)
        while process.poll() is None and len(list(broken.glob(f"*/*/{EVALUATED}/best/{OUTCOME}"))) < wanted:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(3)  # its trainings are in sessions of their own; they find their parent gone
    subprocess.run([*command, str(broken)], check=True, capture_output=True)
    assert tables(many, whole) == tables(many, broken)
    assert render(gather(many, whole)) == render(gather(many, broken))


def test_a_script_for_slurm_runs_every_training(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Seeds that were there before are tasks too, since these read the study that the folder holds.
    begin(study, tmp_path / "seeds")
    assert len(begin(replace(study, seeds=(5,)), tmp_path / "seeds").trials()) == 6
    text = slurm_script(tmp_path / "out", 4)
    assert "#SBATCH --array=0-3" in text and '--only "$SLURM_ARRAY_TASK_ID"' in text
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorldError, match="sbatch: no such command"):
        submit(tmp_path / "slurm.sh")
    fake = tmp_path / "sbatch"
    fake.write_text("#!/bin/sh\necho Submitted batch job 7\n", encoding="utf-8")
    fake.chmod(0o755)
    assert submit(tmp_path / "slurm.sh") == "Submitted batch job 7"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_study_runs_on_a_local_cluster_of_ray(study: Study, tmp_path: Path):
    pytest.importorskip("ray", reason="ray is an extra: pip install 'allrounder[ray]'")
    one = replace(study, seeds=(0,))
    ran(one, tmp_path / "here")
    told: list[Note] = []
    begin(one, tmp_path / "ray")
    run_on_ray(jobs_of(one.trials(), tmp_path / "ray", None), told.append)
    assert sorted((note.name, note.what) for note in told) == [
        ("fast/seed-0", "done"),
        ("slow/seed-0", "done"),
    ]
    assert tables(one, tmp_path / "ray") == tables(one, tmp_path / "here")
    (tmp_path / "ray" / "fast" / "seed-0" / EVALUATED / "best.json").write_text("[]", encoding="utf-8")
    with pytest.raises(
        RunError, match=r"(?s)1 of 2 runs failed, the others are done:.*fast/seed-0: .*changed by hand"
    ):
        run_on_ray(jobs_of(one.trials(), tmp_path / "ray", None), told.append)


def test_weights_without_selection_are_the_last_ones(study: Study, tmp_path: Path):
    plain = replace(study, seeds=(0,), sets=("validation.images=0",))
    ran(plain, tmp_path / "out")
    (label,) = gather(plain, tmp_path / "out").outcomes["fast"].values()
    assert label.facts["weights"] == "last" and "selected_on" not in label.facts


def test_cost_travels_with_the_outcome(study: Study, tmp_path: Path):
    trial = study.trials()[0]
    carry_out(
        "x",
        lambda note: None,
        recipe=trial.recipe.dump(),
        folder=tmp_path / "r",
        weights=("best",),
        cost=str(trial.cost),
        images=6,
    )
    from allrounder.report.outcome import Outcome

    outcome = Outcome.load(place_of(tmp_path / "r", "best") / OUTCOME)
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
    ran(both, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == ["averaged"]
    found = gather(both, tmp_path / "out")
    assert not found.missing and list(found.outcomes) == ["averaged", "live", "selected"]
    run = Run(tmp_path / "out" / "averaged" / "seed-0")
    live, average = (run.weights(which)[0] for which in ("live", "last"))
    assert not same(live, average) and same(average, run.weights("linf")[0])
    assert [found.outcomes[row][0].facts["weights"] for row in found.outcomes] == ["last", "live", "best"]
