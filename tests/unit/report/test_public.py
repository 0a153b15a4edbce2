"""The public names of `allrounder.report`, which are loaded when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from allrounder import report
from allrounder.errors import InputError
from allrounder.report import FIGURES, Results, build_charts, row_colors, save_figure, to_plotly
from allrounder.report.chart_table import chart_table
from tests.support.results import make_results

RICH = make_results()


def test_every_public_name_is_that_of_its_module():
    for name, module in report._MODULE_OF.items():
        assert getattr(report, name) is getattr(import_module(module), name)
    assert dir(report) == sorted(report.__all__)
    tree = ast.parse(Path(report.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {node.names[0].name: node.module for node in imports} == report._MODULE_OF


def test_no_public_name_is_hidden_by_a_module():
    modules = {path.stem for path in Path(report.__file__).parent.iterdir()}
    assert modules.isdisjoint(report.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'allrounder.report' has no attribute 'nonsense'"):
        _ = report.nonsense  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]


def test_importing_the_package_imports_no_library():
    code = (
        "import sys; import allrounder.report; assert not {'numpy', 'matplotlib', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_figure_is_explained():
    with pytest.raises(InputError, match=r'curve: no such figure, expected one of tradeoff, .*"curves"'):
        build_charts("curve", Results(()))


def test_every_figure_says_what_is_missing():
    assert all(len(kind.missing) > 20 and "; " in kind.missing for kind in FIGURES.values())


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_and_has_a_table(name: str, tmp_path: Path):
    charts = build_charts(name, RICH)
    colors = row_colors(entry.name for entry in RICH.entries)
    for chart in charts:
        assert to_plotly(chart, colors)["data"]
        header, rows = chart_table(chart)
        assert rows and all(len(row) == len(header) for row in rows)
    save_figure(charts[:2], tmp_path / "x.svg", colors)


def test_the_whole_name_of_a_row_selects_no_row_whose_name_begins_with_it():
    ten = make_results(rows=11, seeds=1)
    assert [entry.name for entry in ten.select_rows(["row 1"]).entries] == ["Row 1"]
    assert [entry.name for entry in ten.select_rows(["row 1", "row 10"]).entries] == ["Row 1", "Row 10"]


def test_rows_are_selected_by_a_part_of_their_names():
    names = [entry.name for entry in RICH.entries]
    selected = RICH.select_rows(["ROW 0", "external"])
    kept = [entry.name for entry in selected.entries]
    assert kept == [name for name in names if name.startswith(("Row 0", "External"))] and kept != names
    for name, study in selected.studies.items():
        assert set(study.outcomes) == set(RICH.studies[name].outcomes) & set(kept)
    assert RICH.select_rows(["nothing"]).entries == ()
    assert RICH.select_rows(["nothing"]).studies == {}
