"""The command publish, and what the other commands do with a published study."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.studies import run_here, tiny_study
from tests.unit.cli.test_main import Command, allrounder, flat

__all__ = ["allrounder"]  # a fixture


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of two trainings and its file."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        study = replace(tiny_study(Path()), seeds=(0,))
        run_here(study, Path("out"))
    (folder / "mine.toml").write_text(study.dumps(), encoding="utf-8")
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, which is the working folder of one test."""
    shutil.copytree(finished, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.usefixtures("folder")
def test_a_study_is_published_and_shown(allrounder: Command):
    table = allrounder("table", "out").out
    answer = allrounder("publish", "out", "--to", "results/tiny")
    assert answer.code == 0 and answer.out.startswith("results/tiny: 2 trainings, 18 files, "), answer.err
    assert allrounder("table", "results/tiny").out == table
    assert allrounder("table", "mine.toml", "--out", "results/tiny").out == table
    figure = allrounder("figure", "tradeoff", "results/tiny", "-o", "tradeoff.svg")
    assert figure.code == 0 and Path("tradeoff.svg").is_file(), figure.err
    report = allrounder("report", "results/tiny", "-o", "report.html")
    assert report.code == 0 and "no gallery" in report.out and "warning" not in report.out, report.err
    assert "slow" in Path("report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("folder")
def test_a_table_shows_some_columns_and_rows(allrounder: Command):
    words = ["table", "out", "--columns", "natural, cost", "--rows", "fast"]
    shown = allrounder(*words, "--notes", "no").out.splitlines()
    assert shown[0] == "| row | natural | cost |" and len(shown) == 3 and shown[2].startswith("| fast |")
    short, everything = (allrounder(*words, "--notes", level).out for level in ("short", "all"))
    assert "Cost:" not in short and "40 images.\n" in short and "Cost:" in everything
    assert "Worst:" not in everything and "Worst:" in allrounder("table", "out", "--rows", "fast").out
    for wrong, message in (
        (["--columns", "natura"], 'no column "natura", expected some of natural; '),
        (["--rows", "fats"], 'no row "fats", expected some of slow; fast'),
        (["--rows", "fast; fast"], 'rows: got "fast" twice, expected every row once'),
        (["--notes", "few"], "few: expected one of all, short, no"),
        (["--rows", "fast", "--style", "csv"], "got style 'csv', expected markdown or latex"),
    ):
        answer = allrounder("table", "out", *wrong)
        assert answer.code == 2 and message in flat(answer.err), answer


@pytest.mark.usefixtures("folder")
def test_unfinished_trainings_are_named(allrounder: Command):
    shutil.rmtree("out/slow/seed-0/eval")
    answer = allrounder("publish", "out", "--to", "results/tiny")
    first, second = answer.out.splitlines()
    assert first == "Left out, because they are not finished: slow/seed-0."
    assert second.startswith("results/tiny: 1 training, ")
    quiet = allrounder("publish", "out", "--to", "results/tiny", "--quiet")
    assert quiet.out.splitlines() == [second]


@pytest.mark.usefixtures("folder")
def test_mistakes_are_explained(allrounder: Command):
    allrounder("publish", "out", "--to", "results/tiny")
    for words, code, message in (
        (["publish", "out"], 2, "Missing option '--to'"),
        (["publish", "nothing", "--to", "x"], 2, "no such file or folder, and no shipped study"),
        (["publish", "results/tiny", "--to", "x"], 1, "is a published study, which has no weights"),
        (["publish", "out", "--to", "out"], 1, "out: is not empty and holds no published study"),
        (["sweep", "mine.toml", "--out", "results/tiny"], 1, "tiny: holds a published study, which has no"),
        (["eval", "results/tiny/fast/seed-0"], 1, "has the digests of its weights, but not the weights"),
    ):
        answer = allrounder(*words)
        assert (answer.code, message in flat(answer.err)) == (code, True), (words, answer)
