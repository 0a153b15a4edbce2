"""The charts of the page: which are shared, which belong to a row, and how their JSON is embedded."""

from __future__ import annotations

import json

import pytest

from allrounder.report.chart import AnyChart, Axis, Chart, Heatmap, Series
from allrounder.report.entry import Entry, Results
from allrounder.report.figures import FigureKind
from allrounder.report.page.figure_sections import (
    MAX_OPEN_ROWS,
    build_sections,
    embed_json,
    list_missing,
)


def chart(name: str, row: str = "", *rows: str) -> Chart:
    names = rows or (row or "all",)
    series = tuple(Series(other, (1.0,), (2.0,), row="" if other == "front" else other) for other in names)
    return Chart(name, name, f"about {name}", Axis("x"), Axis("y"), series, row)


def build(charts: list[AnyChart], rows: list[str]):
    kind = FigureKind("Title", "about", lambda results: charts, "nothing to show")
    empty = FigureKind("Empty", "about", lambda results: [], "nothing to show")
    results = Results(tuple(Entry(row) for row in rows))
    return build_sections(results, {"one": kind, "none": empty}, dict.fromkeys(rows, "#000000"))


def test_charts_of_a_row_follow_those_of_all_rows():
    (section,) = build([chart("b-curve", "b"), chart("shared"), chart("a-curve", "a")], ["a", "b"])
    assert (section.name, section.title) == ("one", "Title")
    assert [block.title for block in section.charts] == ["shared"]
    assert [(group.row, group.charts[0].title) for group in section.by_row] == [
        ("a", "a-curve"),
        ("b", "b-curve"),
    ]
    ids = [block.id for block in (*section.charts, *(c for group in section.by_row for c in group.charts))]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("count", [MAX_OPEN_ROWS, MAX_OPEN_ROWS + 1])
def test_charts_of_many_rows_are_folded(count: int):
    rows = [f"row {number}" for number in range(count)]
    (section,) = build([chart(row, row) for row in rows], rows)
    assert {group.is_open for group in section.by_row} == {count <= MAX_OPEN_ROWS}


def test_numbers_belong_to_the_rows_that_they_name():
    (section,) = build([chart("shared", "", "a", "front")], ["a"])
    (block,) = section.charts
    names = {line.cells[0]: line.row for line in block.lines} | {c.title: c.row for c in block.columns}
    assert (names["a"], names["front"]) == ("a", "")
    matrix = Heatmap("h", "h", "about", Axis("x"), Axis("y"), ("a", "fog"), ("b",), ((1.0, 2.0),))
    (section,) = build([matrix], ["a", "b"])
    (block,) = section.charts
    assert [column.row for column in block.columns[1:]] == ["a", ""] and block.lines[0].row == "b"


def test_a_matrix_with_many_rows_is_taller():
    rows = tuple(map(str, range(50)))
    heatmap = Heatmap("h", "h", "about", Axis("x"), Axis("y"), ("c",), rows, ((1.0,),) * 50)
    (section,) = build([heatmap, chart("line")], ["a"])
    assert section.charts[0].height > section.charts[1].height


def test_embedded_json_cannot_end_its_element():
    value = {"</script>": "<!-- & ]]>\u2028"}
    text = embed_json(value)
    assert not set("<>&") & set(text) and text.isascii() and json.loads(text) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        embed_json(float("nan"))


def test_figures_without_numbers_say_what_they_need():
    shown = FigureKind("Shown", "about", lambda results: [chart("a")], "not needed")
    empty = FigureKind("Empty", "about", lambda results: [], "evaluate with --ood c")
    figures = {"shown": shown, "empty": empty}
    sections = build_sections(Results(()), figures, {})
    assert list_missing(sections, figures) == [("Empty", "evaluate with --ood c")]
