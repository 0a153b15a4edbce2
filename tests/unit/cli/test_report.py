"""The command report, on the smallest of trainings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.damage import cut
from tests.support.pages import parse_page
from tests.support.paths import PROJECT
from tests.support.studies import run_here, tiny_study
from tests.unit.cli.test_main import Command, allrounder

__all__ = ["allrounder"]  # a fixture


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study of two trainings, below the folder that it runs from."""
    folder = tmp_path_factory.mktemp("study")
    run_here(replace(tiny_study(folder), seeds=(0,)), folder / "runs")
    return folder


def test_a_report_of_a_study_is_written_and_its_path_printed(
    allrounder: Command, folder: Path, tmp_path: Path
):
    out = tmp_path / "new" / "page.html"
    answer = allrounder("report", str(folder / "runs"), "-o", str(out))
    assert answer.code == 0 and answer.out.splitlines()[-1] == str(out), answer.err
    page = parse_page(out.read_text(encoding="utf-8"))
    assert page.find("title").text == "tiny"
    names = [row.find("th").text for row in page.find("table", id="results-table").find_all("tr")[2:]]
    assert names == ["slow", "fast"]
    again = tmp_path / "again.html"
    assert allrounder("report", str(folder / "runs"), "-o", str(again)).code == 0
    assert again.read_bytes() == out.read_bytes()


def report_without(library: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process that cannot import a library."""
    script = f"import sys; sys.modules[{library!r}] = None; sys.argv[1:] = {['report', *words]}"
    return subprocess.run(
        [sys.executable, "-c", f"{script}; from allrounder.cli import main; main.main()"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_runs_get_a_title_and_need_no_torch_without_a_gallery(folder: Path, tmp_path: Path):
    out = tmp_path / "page.html"
    runs = [f"runs/{name}/seed-0" for name in ("slow", "fast")]
    process = report_without("torch", folder, *runs, "-o", str(out), "--title", "<Two> runs", "--no-gallery")
    assert process.returncode == 0 and process.stdout.strip() == str(out), process.stderr
    page = parse_page(out.read_text(encoding="utf-8"))
    assert page.find("h1").text == "<Two> runs" and not page.find_all("section", id="gallery")


def test_damage_is_shown_and_does_not_stop_the_report(allrounder: Command, tmp_path: Path):
    run_here(replace(tiny_study(tmp_path), seeds=(0,)), tmp_path / "runs")
    cut(tmp_path / "runs" / "slow" / "seed-0" / "recipe.toml")
    out = tmp_path / "page.html"
    answer = allrounder("report", str(tmp_path / "runs"), "-o", str(out), "--no-gallery")
    assert answer.code == 0 and "warnings about damaged" in answer.out
    page = parse_page(out.read_text(encoding="utf-8"))
    (warning,) = page.find("section", id="warnings").find_all("li", data_row="slow")
    assert "recipe.toml" in warning.text and "damaged" in warning.text
    assert "recipe.toml" in page.find("details", class_="run", data_row="slow").text
    assert page.find("table", id="results-table").find("tr", data_row="fast").find_all("td")[0].text != "-"


def test_one_warning_is_counted_as_one(allrounder: Command, folder: Path, tmp_path: Path):
    run = shutil.copytree(folder / "runs" / "slow" / "seed-0", tmp_path / "run")
    (run / "env.json").write_text("{", encoding="utf-8")
    answer = allrounder("report", str(run), "-o", str(tmp_path / "page.html"), "--no-gallery")
    assert answer.code == 0 and "The page has 1 warning about damaged" in answer.out, answer.err


def test_a_folder_that_is_no_run_is_an_error(allrounder: Command, tmp_path: Path):
    answer = allrounder("report", str(tmp_path), "-o", str(tmp_path / "page.html"))
    assert answer.code == 1 and "not a run, a study or an evaluation" in answer.err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("library", ["jinja2", "plotly"])
def test_a_missing_library_names_the_extra(folder: Path, library: str):
    process = report_without(library, folder, "runs")
    assert process.returncode == 1 and 'pip install "allrounder[report]"' in process.stderr
    assert library in process.stderr and not (folder / "report.html").exists()
