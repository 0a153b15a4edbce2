"""The commands sweep, compare and table, on the smallest of trainings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allrounder.experiments.runner import open_study
from allrounder.experiments.study import Study
from tests.unit.cli.test_main import Command, allrounder, flat
from tests.unit.experiments.test_runner import study

__all__ = ["allrounder", "study"]  # fixtures


@pytest.fixture
def file(study: Study, tmp_path: Path) -> str:
    """A study of one seed."""
    path = tmp_path / "mine.toml"
    path.write_text(study.dumps().replace("0,\n    1,\n", "0,\n"), encoding="utf-8")
    assert Study.load(path).seeds == (0,)
    return str(path)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("forking")
def test_a_study_is_run_and_tabled_and_nothing_is_done_twice(allrounder: Command, file: str, tmp_path: Path):
    out = str(tmp_path / "out")
    first = allrounder("sweep", file, "--out", out, "--workers", "1")
    assert first.code == 0, first.err
    assert "2 trainings" in first.out and "slow" in first.out and "fast" in first.out
    again = allrounder("sweep", file, "--out", out, "--workers", "1")
    assert again.code == 0 and again.out.count("already done") == 2
    table = allrounder("table", out)
    assert table.out == (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert {row["row"] for row in json.loads(allrounder("table", out, "--style", "json").out)["rows"]} == {
        "slow",
        "fast",
    }
    alone = allrounder("table", file, "--out", out, "--style", "csv")
    assert alone.out.startswith("row,seed,natural")


def test_a_dry_run_prints_the_trainings_and_runs_none(allrounder: Command, file: str, tmp_path: Path):
    out = tmp_path / "out"
    answer = allrounder("sweep", file, "--out", str(out), "--dry-run", "--launcher", "slurm")
    assert answer.code == 0 and "#SBATCH --array=0-1" in answer.out and not out.exists()


def test_a_dry_run_shows_numbers_beside_long_labels(allrounder: Command):
    lines = allrounder("sweep", "evidence/mnist", "--dry-run").out.splitlines()
    numbered = [words for line in lines if (words := line.split()) and words[0].isdigit()]
    assert len(numbered) > 50 and [int(words[0]) for words in numbered] == list(range(len(numbered)))
    assert all(words[-1].count("/") == 1 for words in numbered), "the cost is cut off"


def test_one_training_alone(allrounder: Command, file: str, tmp_path: Path):
    out = tmp_path / "out"
    answer = allrounder("sweep", file, "--out", str(out), "--only", "1", "--workers", "1")
    assert answer.code == 0 and [path.name for path in out.iterdir() if path.is_dir()] == ["fast"]
    assert "MISSING: slow, seed 0" in allrounder("table", str(out)).out


def test_recipes_are_compared(allrounder: Command, study: Study, tmp_path: Path):
    answer = allrounder("compare", study.base, "--seeds", "2", "--set", "epochs=1", "--dry-run")
    assert answer.code == 0 and "comparison: 2 trainings" in answer.out
    shipped = allrounder("compare", "embedded/demo", "--seeds", "3", "--set", "epochs=1", "--dry-run")
    assert "embedded/demo: 21 trainings" in shipped.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["sweep", "nothing.toml"], 2, "no such file, and no shipped study"),
        (["sweep", "FILE", "--launcher", "moon"], 2, "moon: expected one of local, slurm, ray"),
        (["sweep", "FILE", "--only", "9", "--dry-run"], 2, "the study has 2 trainings"),
        (["table", "FILE", "--style", "html"], 2, "html: expected one of markdown"),
        (
            ["table", "FILE", "--out", "OUT"],
            1,
            "out: tiny did not run there, it has no study.json; run it with",
        ),
        (["table", "."], 1, "no study ran there, it has no study.json"),
        (["table", "nothing.toml"], 2, "no such file or folder, and no shipped study"),
        (["table", "embedded/dmo"], 2, 'did you mean "embedded/demo"'),
    ],
)
def test_mistakes_are_explained(
    words: list[str], code: int, message: str, allrounder: Command, file: str, tmp_path: Path
):
    places = {"FILE": file, "OUT": str(tmp_path / "out")}
    answer = allrounder(*(places.get(word, word) for word in words))
    assert answer.code == code and message in flat(answer.err)


def test_a_table_without_a_finished_training_prints_how_to_continue(
    allrounder: Command, study: Study, tmp_path: Path
):
    out = tmp_path / "out"
    open_study(study, out)
    answer = allrounder("table", str(out))
    assert answer.code == 1 and answer.out == ""
    command = f"allrounder sweep {out / 'study.toml'} --out {out}"
    assert f"out: no training of tiny is finished there; continue it with: {command}" in flat(answer.err)


def test_a_table_of_another_study_is_not_printed(
    allrounder: Command, study: Study, file: str, tmp_path: Path
):
    out = tmp_path / "out"
    open_study(Study.load(file), out)
    Path(file).write_text(Path(file).read_text(encoding="utf-8").replace("0.01", "0.02"), encoding="utf-8")
    answer = allrounder("table", file, "--out", str(out))
    assert answer.code == 1 and "mine.toml: differs from the study that ran in" in flat(answer.err)
    answer = allrounder("table", str(out), "--out", str(tmp_path))
    assert answer.code == 2 and "is a folder, and --out" in flat(answer.err)
    answer = allrounder("table", "embedded/demo", "--out", str(out))
    assert answer.code == 1 and "holds another study (tiny), asked for embedded/demo" in flat(answer.err)
