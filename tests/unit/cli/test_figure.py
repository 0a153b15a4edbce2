"""`allrounder figure`: one figure of runs and studies, in a file."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allrounder.report.figures import FIGURES
from tests.support.damage import cut
from tests.support.paths import PROJECT
from tests.support.studies import run_here, tiny_study
from tests.unit.cli.test_main import Command, allrounder, flat

__all__ = ["allrounder"]  # a fixture


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study of two rows and two seeds, which no test may change."""
    folder = tmp_path_factory.mktemp("study")
    run_here(tiny_study(folder), folder / "out")
    return folder / "out"


@pytest.mark.parametrize("ending", ["svg", "pdf", "png"])
def test_a_figure_is_written_and_its_path_printed(
    ending: str, allrounder: Command, finished: Path, tmp_path: Path
):
    out = tmp_path / "new" / f"x.{ending}"
    answer = allrounder("figure", "tradeoff", str(finished), "-o", str(out), "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, f"{out}\n", "")
    assert out.stat().st_size > 1000


def test_captions_are_printed_and_the_default_file_has_the_name(
    allrounder: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    answer = allrounder("figure", "tradeoff", str(finished))
    *captions, last = answer.out.splitlines()
    assert last == "tradeoff.svg" and Path(last).is_file()
    assert [line.partition(":")[0] for line in captions] == ["tradeoff", "tradeoff-linf-l2"]
    assert "Each point is a row, with 95% intervals" in captions[0]


def test_rows_and_charts_can_be_selected(allrounder: Command, finished: Path, tmp_path: Path):
    file = tmp_path / "x.svg"
    words = ("figure", "tradeoff", str(finished), "-o", str(file))
    assert allrounder(*words).code == 0
    both = file.read_text()
    assert allrounder(*words, "--rows", "FAS", "--chart", "tradeoff").code == 0
    one = file.read_text()
    assert "slow" in both and "fast" in both and "under Linf and L2" in both
    assert "slow" not in one and "fast" in one and "under Linf and L2" not in one
    color = re.compile(r"fill: (#[0-9a-f]{6})")
    assert set(color.findall(one)) - {"#ffffff"} <= set(color.findall(both)), "a row keeps its colour"
    assert allrounder(*words, "--rows", "fas", "--rows", "slo").code == 0
    assert file.read_text() == both


def test_a_damaged_row_is_named_and_the_others_are_drawn(allrounder: Command, finished: Path, tmp_path: Path):
    study = tmp_path / "out"
    shutil.copytree(finished, study)
    for seed in (0, 1):
        cut(study / "slow" / f"seed-{seed}" / "eval" / "best" / "outcome.safetensors")
    answer = allrounder("figure", "classes", str(study), "-o", str(tmp_path / "x.svg"))
    assert answer.code == 0 and "slow: " in answer.out and "outcome.safetensors: cannot be read" in answer.out
    assert "fast" in (tmp_path / "x.svg").read_text()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ("tradeof", "FOLDER"),
            2,
            'tradeof: expected one of tradeoff, ablation, .*; did you mean "tradeoff"',
        ),
        (("tradeoff", "nowhere"), 1, "nowhere: no such folder; expected the folder of a run"),
        (("tradeoff", "FOLDER", "--rows", "x"), 2, 'no row contains "x"; there are: slow, fast'),
        (
            ("tradeoff", "FOLDER", "--chart", "trade"),
            2,
            "--chart.* trade: expected one of tradeoff, tradeoff-",
        ),
        (("tradeoff", "FOLDER", "-o", "x.jpg"), 2, r'--out.* x\.jpg: got the ending "\.jpg", expected'),
        (
            ("corruptions", "FOLDER"),
            1,
            "error: corruptions: no run has corrupted images; evaluate with --ood c",
        ),
        (("tradeoff", "FOLDER", "-o", "FOLDER/study.json/x.svg"), 1, "study.json: cannot be written"),
    ],
)
def test_mistakes_are_explained_and_nothing_is_written(
    words: tuple[str, ...],
    code: int,
    message: str,
    allrounder: Command,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    answer = allrounder("figure", *(word.replace("FOLDER", str(finished)) for word in words))
    assert answer.code == code
    assert re.search(message, flat(answer.err)), answer.err
    assert not list(tmp_path.iterdir())


def test_the_help_and_the_list_name_all_figures(allrounder: Command):
    shown = flat(allrounder("figure", "--help").out)
    listed = allrounder("list", "figures").out
    for name, kind in FIGURES.items():
        assert name in shown and re.search(rf"^\s*{name}\s+{kind.about[:20]}", listed, re.MULTILINE)


def test_a_missing_library_is_named(finished: Path, tmp_path: Path):
    words = ["allrounder", "figure", "tradeoff", str(finished), "-o", str(tmp_path / "x.svg")]
    code = f"import sys; sys.modules['matplotlib'] = None; sys.argv = {words!r}\n"
    code += "from allrounder.cli.main import main; main()"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    advice = 'install it with: pip install "allrounder[report]"'
    assert answer.returncode == 1 and "needs the library matplotlib" in answer.stderr
    assert advice in answer.stderr


def test_a_figure_needs_no_torch_and_prints_no_messages_of_libraries(finished: Path, tmp_path: Path):
    words = ["allrounder", "figure", "tradeoff", str(finished), "-o", str(tmp_path / "x.pdf"), "-q"]
    code = f"import sys; sys.modules['torch'] = None; sys.argv = {words!r}\n"
    code += "from allrounder.cli.main import main; main()"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"{tmp_path / 'x.pdf'}\n", "")


def test_the_report_of_the_guide_is_written(
    allrounder: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "runs" / "demo")
    page = (PROJECT / "docs" / "guide" / "report.md").read_text(encoding="utf-8")
    first = page.partition("## Figures for papers")[0]
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", first, re.MULTILINE | re.DOTALL)
    program, *words = commands.partition("  #")[0].split()
    assert program == "allrounder" and allrounder(*words).code == 0
    (code,) = re.findall(r"^```python\n(.*?)^```$", first, re.MULTILINE | re.DOTALL)
    exec(code, {})
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"report.html", "page.html"}


def test_the_commands_of_the_guide_run(
    allrounder: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "runs" / "demo")
    page = (PROJECT / "docs" / "guide" / "report.md").read_text(encoding="utf-8")
    section = page.partition("## Figures for papers")[2].partition("\n## ")[0]
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    for line in commands.splitlines():
        program, *words = line.partition("  #")[0].split()
        words = ["fast" if word == "at" else word for word in words]  # a row of this study
        answer = allrounder(*words)
        assert program == "allrounder" and answer.code == 0, answer.err
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert isinstance(names["figure"], dict) and names["figure"].keys() == {"data", "layout"}
    written = {"tradeoff.pdf", "one.svg", "study.pdf", "curves.svg"}
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == written
