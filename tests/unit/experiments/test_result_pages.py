"""Pages that are made from published studies: only blocks change, and mistakes are named with their line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from allrounder.errors import InputError
from allrounder.experiments.manifest import Manifest, collect_results
from allrounder.experiments.publish import publish_study
from allrounder.experiments.published import PUBLISHED_FILE
from allrounder.experiments.result_pages import Block, PageWriter
from allrounder.report.excerpt import Excerpt
from tests.support.paths import PROJECT
from tests.support.studies import run_here, tiny_study

PAGE = Path("docs/results/page.md")
SCRIPT = PROJECT / "scripts" / "make_results.py"
TABLE = '<!-- table results/tiny columns="natural, pgd-2 worst" rows="fast" -->'
FIGURE = '<!-- figure tradeoff results/tiny docs/images/x.svg rows="slow; fast" alt="A trade-off" -->'
END = "<!-- end -->"
UNKNOWN = (
    r"line 1: results/tyni: not a published study, expected one of results/tiny; "
    r'did you mean "results/tiny"\?; publish one with: allrounder publish'
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one published study, which no test may change."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_here(replace(tiny_study(Path()), images=9), Path("out"))
    publish_study(folder / "out", folder / "project" / "results" / "tiny")
    return folder / "project"


@pytest.fixture
def project(published: Path, tmp_path: Path) -> Path:
    """A copy of the project, with a folder for its pages."""
    copy = Path(shutil.copytree(published, tmp_path / "project"))
    (copy / PAGE).parent.mkdir(parents=True)
    return copy


def update(project: Path, *lines: str, page: Path = PAGE) -> list[str]:
    """The lines of a page after its blocks are written; figures are not drawn."""
    (project / page).write_text("\n".join(lines), encoding="utf-8")
    text = PageWriter(project, lambda name, study, file, charts, rows: None).update(page)
    return text.split("\n")


def test_a_table_is_written_and_nothing_else_is_touched(project: Path):
    before, after = ["# Title ", "", "<!-- a comment -->", "| a |"], ["", "end", "  "]
    lines = update(project, *before, TABLE, "old", "", "text", END, *after)
    assert lines[:5] == [*before, TABLE] and lines[-4:] == [END, *after]
    results = collect_results(Manifest.load(project / "results/tiny"), project / "results/tiny")
    table = Excerpt(("natural", "pgd-2 worst"), ("fast",), "short").to_table(results)
    assert lines[5:8] == ["", "| row | natural | pgd-2 worst |", "| :-- | --: | --: |"]
    assert lines[8].startswith("| fast | ") and lines[9] == ""
    assert lines[10:-5] == [f"- {note}" for note in table.notes] and lines[-5] == ""
    assert update(project, *lines) == lines, "writing again changes nothing"


@pytest.mark.parametrize(
    "comment", ["<!-- table-of-contents -->", "<!-- figure: note -->", "<!-- tables -->"]
)
def test_other_comments_are_no_blocks(comment: str, project: Path):
    assert update(project, comment, "text") == [comment, "text"]


@pytest.mark.parametrize(
    ("first", "last"), [("```", "```"), ("~~~~ html", " ~~~~~"), ("````", "````"), ("   ```md", "```")]
)
def test_blocks_in_code_are_text(first: str, last: str, project: Path):
    code = [first, TABLE, "text", "```x", "~~~", END, END, last]
    lines = update(project, *code, TABLE, END, *code)
    assert lines[:9] == [*code, TABLE] and lines[-9:] == [END, *code] and len(lines) > 20
    assert update(project, "```a``` b", TABLE, END)[3].startswith("| row | natural |")


def test_code_without_an_end_is_an_error(project: Path):
    with pytest.raises(InputError, match=r"page\.md, line 3: a code block has no end; write ``` below it"):
        update(project, "```", TABLE, END)


def test_the_ends_of_lines_are_kept(project: Path):
    page = project / PAGE
    unix = "\n".join(update(project, "# Title", TABLE, "old", END, ""))
    page.write_bytes(f"# Title\r\n{TABLE}\r\nold\r\n{END}\r\n".encode())
    text = PageWriter(project, lambda name, study, file, charts, rows: None).update(PAGE)
    assert text == unix.replace("\n", "\r\n")
    page.write_bytes(text.encode())
    assert make_results(project, "--check") == (0, "all pages are up to date\n")


def test_a_table_of_hard_classes_is_written(project: Path):
    lines = update(project, '<!-- hard results/tiny classes=1 columns="natural" -->', END)
    assert lines[2] == "| row | natural, hard | others |" and lines[4].startswith("| slow | ")
    assert lines[7].startswith("- Percent of images classified correctly")


def test_all_notes_or_none_are_written_if_asked(project: Path):
    everything = update(project, "<!-- table results/tiny notes=all -->", END)
    none = update(project, "<!-- table results/tiny notes=no -->", END)
    assert len(none) == 8 and none[-3].startswith("| fast |")
    assert any(line.startswith("- Cost: ") for line in everything)


def test_a_figure_is_drawn_and_linked_from_the_page(project: Path):
    drawn: list[tuple[object, ...]] = []
    (project / PAGE).write_text(f"{FIGURE}\n{END}\n", encoding="utf-8")
    text = PageWriter(project, lambda *figure: drawn.append(figure)).update(PAGE)
    assert text == f"{FIGURE}\n\n![A trade-off](../images/x.svg)\n\n{END}\n"
    folder, file = project / "results/tiny", project / "docs/images/x.svg"
    assert drawn == [("tradeoff", folder, file, [], ["slow", "fast"])]
    plain = "<!-- figure tradeoff results/tiny docs/images/x.svg -->"
    lines = update(project, plain, END, page=Path("README.md"))
    assert lines[2] == "![tradeoff of results/tiny](docs/images/x.svg)"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["<!-- table results/tyni -->", END], UNKNOWN),
        (
            ["", "<!-- table results/tiny columns=aa -->", END],
            'line 2: .*no column "aa", expected .* natural;',
        ),
        (["<!-- table results/tiny rows=fats -->", END], 'no row "fats", expected some of slow; fast'),
        (["<!-- table results/tiny notes=few -->", END], "notes: got 'few', expected one of all, short, no"),
        (["<!-- table results/tiny colums=a -->", END], "got colums=, expected columns, rows, notes"),
        (["<!-- table -->", END], "table: got nothing, expected the folder of a published study"),
        (["<!-- table results/tiny x -->", END], "table: got results/tiny x, expected"),
        (
            ["<!-- table results/tiny notes=no notes=all -->", END],
            "table: got notes= twice, expected it once",
        ),
        (["<!-- figure tradeoff results/tiny -->", END], "expected a figure, a study, the file"),
        (["<!-- figure tradeoff results/x x.svg -->", END], "results/x: not a published study"),
        (['<!-- table results/tiny rows="a -->', END], r"cannot be read \(No closing quotation\)"),
        (["<!-- hard results/tiny classes=few -->", END], "classes: got 'few', expected a number"),
        (["<!-- hard results/tiny classes=3 -->", END], "classes: got 3, expected 1 to 2"),
        ([TABLE, "x"], r'page\.md, line 1: the block has no end; write "<!-- end -->" below it'),
        ([TABLE, FIGURE, END], 'line 2: got <!-- figure .*, expected "<!-- end -->" first'),
        (["x", END], "line 2: got <!-- end -->, there is no block that it ends"),
    ],
)
def test_mistakes_are_named_with_their_line(lines: list[str], message: str, project: Path):
    with pytest.raises(InputError, match=message) as caught:
        update(project, *lines)
    assert str(caught.value).startswith(f"{PAGE}, line ")


def test_changed_results_are_an_error(project: Path):
    (project / "results/tiny/fast/seed-0/env.json").unlink()
    with pytest.raises(InputError, match=r"page\.md, line 1: .*env\.json: was published, but cannot be read"):
        update(project, TABLE, END)


def test_options_may_have_quotes_and_equal_signs():
    block = Block.parse("figure", """ a b c rows="x=1; the papers' y" alt='say "z"' """)
    assert block.words == ("a", "b", "c") and block.split_option("rows") == ["x=1", "the papers' y"]
    assert block.options["alt"] == 'say "z"' and block.split_option("charts") == []


def make_results(root: Path, *words: str) -> tuple[int, str]:
    process = subprocess.run(
        [sys.executable, str(SCRIPT), "--root", str(root), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    return process.returncode, process.stdout + process.stderr


@pytest.mark.slow
def test_the_script_writes_pages_and_names_stale_ones(project: Path):
    readme = project / "README.md"
    (project / PAGE).write_text(f"{TABLE}\n{END}\n{FIGURE}\n{END}\n", encoding="utf-8")
    readme.write_text("no block", encoding="utf-8")
    code, text = make_results(project, "--check")
    assert code == 1 and "docs/images/x.svg: the figure tradeoff of results/tiny is missing" in text
    code, text = make_results(project)
    assert code == 0 and "written: docs/results/page.md" in text and (project / "docs/images/x.svg").is_file()
    assert make_results(project, "--check") == (0, "all pages are up to date\n")
    content = (project / PAGE).read_text(encoding="utf-8")
    assert "| fast | " in content and "![A trade-off](../images/x.svg)" in content
    (project / PAGE).write_text(content.replace("| fast | ", "| fast | 9"), encoding="utf-8")
    code, text = make_results(project, "--check")
    assert code == 1 and text == "stale: docs/results/page.md; write them with: make results\n"
    assert make_results(project)[0] == 0 and (project / PAGE).read_text(encoding="utf-8") == content
    code, text = make_results(project)
    assert code == 0 and text.endswith("drawn: docs/images/x.svg\nall pages are up to date\n")
    readme.write_text("<!-- figure tradeoff results/tiny x.svg charts=nonsense -->\n<!-- end -->\n")
    code, text = make_results(project)
    assert code == 1 and "nonsense: expected one of" in text


def test_the_pages_of_this_project_are_those_of_its_results():
    code, text = make_results(PROJECT, "--check")
    assert code == 0, text


def test_the_published_results_of_this_project_are_intact():
    for file in (PROJECT / "results").glob(f"**/{PUBLISHED_FILE}"):
        assert collect_results(Manifest.load(file.parent), file.parent).outcomes
