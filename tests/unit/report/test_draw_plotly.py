"""Charts as plotly figures, which plotly itself validates."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from allrounder.report.chart import AnyChart, Axis, Chart, Heatmap, Mark, Series
from allrounder.report.draw_plotly import MAX_MARKERS, MAX_NUMBERS, to_plotly
from allrounder.report.palette import row_colors

MARKUP = "<b>A & B</b>"
ESCAPED = "&lt;b&gt;A &amp; B&lt;/b&gt;"
PERCENT = Axis("accuracy", percent=True)


def draw(chart: AnyChart, *rows: str) -> dict[str, Any]:
    """Draw a chart, and check that it is valid JSON and a valid figure."""
    figure = to_plotly(chart, row_colors(rows))
    json.dumps(figure, allow_nan=False)
    go.Figure(figure)
    assert set(figure) == {"data", "layout"}
    return figure


def chart(*series: Series, x: Axis = Axis("x"), y: Axis = Axis("y"), **more: Any) -> Chart:
    return Chart("name", "Title", "About.", x, y, series, **more)


def heatmap(values: Any, unit: str = "%", row: str = "") -> Heatmap:
    rows = tuple(tuple(map(float, row)) for row in values)
    names = tuple(f"c{i}" for i in range(len(rows[0]))), tuple(f"r{i}" for i in range(len(rows)))
    return Heatmap("name", "Title", "About.", Axis("column"), Axis("row"), *names, rows, unit, row)


@pytest.mark.parametrize("mark", ["points", "line", "dashes", "steps", "bars"])
def test_every_mark_keeps_the_numbers_and_the_row(mark: Mark):
    series = Series("A", (1.0, 2.0, 3.0), (4.0, math.nan, 6.5), mark, row="A")
    (trace,) = draw(chart(series), "B", "A")["data"]
    assert trace["x"] == [1.0, 2.0, 3.0] and trace["y"] == [4.0, None, 6.5]
    assert trace["meta"] == {"row": "A"} and trace["marker"]["color"] == row_colors("BA")["A"]
    expected = {
        "points": ("scatter", "markers", None, None),
        "line": ("scatter", "lines+markers", None, None),
        "dashes": ("scatter", "lines", "dash", None),
        "steps": ("scatter", "lines", "dash", "hv"),
        "bars": ("bar", None, None, None),
    }[mark]
    line = trace.get("line", {})
    assert (trace["type"], trace.get("mode"), line.get("dash"), line.get("shape")) == expected


def test_rows_differ_in_colour_and_symbol():
    traces = draw(chart(*(Series(n, (1.0,), (1.0,), "points", row=n) for n in "AB")), "A", "B")["data"]
    assert len({trace["marker"]["color"] for trace in traces}) == 2
    assert [trace["marker"]["symbol"] for trace in traces] == ["circle", "square"]


def test_intervals_are_error_bars():
    series = Series(
        "A", (80.0, 81.0), (50.0, 51.0), "points", ((48.0, 53.0), (50.0, math.nan)), ((79.0, 82.0),) * 2
    )
    (trace,) = draw(chart(series))["data"]
    assert trace["error_y"]["array"] == [3.0, None] and trace["error_y"]["arrayminus"] == [2.0, 1.0]
    assert trace["error_x"]["array"] == [2.0, 1.0] and trace["error_x"]["arrayminus"] == [1.0, 2.0]
    assert trace["error_x"]["symmetric"] is False


def test_a_long_line_has_a_few_symbols():
    xs = tuple(map(float, range(100)))
    (trace,) = draw(chart(Series("A", xs, xs)))["data"]
    assert trace["mode"] == "lines+markers" and trace["marker"]["maxdisplayed"] == MAX_MARKERS


def test_step_functions_differ_in_their_dashes():
    traces = draw(chart(*(Series(n, (1.0,), (1.0,), "steps", row=n) for n in "AB")), "A", "B")["data"]
    assert [trace["line"]["dash"] for trace in traces] == ["solid", "dash"]


def test_texts_of_users_are_shown_as_they_are():
    series = Series(MARKUP, (MARKUP, "2020-01-01"), (1.0, 2.0), "bars", row=MARKUP)
    figure = draw(chart(series, x=Axis(MARKUP), y=Axis(MARKUP), marks=((1.0, MARKUP),)), MARKUP)
    (trace,), layout = figure["data"], figure["layout"]
    assert trace["name"] == ESCAPED and trace["x"] == [ESCAPED, "2020-01-01"]
    assert trace["meta"] == {"row": MARKUP}, "not shown, and compared with the name of the row"
    assert layout["xaxis"]["title"]["text"] == layout["yaxis"]["title"]["text"] == ESCAPED
    assert layout["annotations"][0]["text"] == ESCAPED
    assert trace["hovertext"][0] == f"<b>{ESCAPED}</b><br>{ESCAPED}: {ESCAPED}<br>{ESCAPED}: 1"
    assert layout["xaxis"]["type"] == "category" and layout["xaxis"]["categoryarray"] == trace["x"]
    matrix = Heatmap("m", "", "", Axis(MARKUP), Axis(""), (MARKUP,), (MARKUP,), ((1.0,),), unit="<%>")
    (trace,) = draw(matrix)["data"]
    assert trace["x"] == trace["y"] == [ESCAPED] and trace["colorbar"]["ticksuffix"] == "&lt;%&gt;"
    assert "<b>A" not in trace["hovertext"][0][0] and ESCAPED in trace["hovertext"][0][0]


def test_hover_texts_have_the_numbers_and_intervals():
    series = Series("A", (8.0,), (50.0,), "points", ((48.0, 53.0),))
    (trace,) = draw(chart(series, x=Axis("eps"), y=PERCENT))["data"]
    assert trace["hovertext"] == ["<b>A</b><br>eps: 8<br>accuracy: 50.00 (48.00-53.00)"]


def test_the_page_decides_about_fonts_and_grids():
    for drawn in (chart(Series("A", (1.0,), (1.0,))), heatmap([[1]])):
        layout = draw(drawn)["layout"]
        assert layout["paper_bgcolor"] == layout["plot_bgcolor"] == "rgba(0,0,0,0)"
        assert "font" not in layout and "title" not in layout and "template" not in layout
        for axis in (layout["xaxis"], layout["yaxis"]):
            assert axis["automargin"] and not {"gridcolor", "color", "tickfont"} & set(axis)


def test_axes_are_logarithmic_or_in_percent():
    layout = draw(
        chart(Series("A", (10.0,), (1.0,)), x=Axis("x", log=True), y=PERCENT, marks=((100.0, "eps"),))
    )
    layout = layout["layout"]
    assert layout["xaxis"]["type"] == "log" and layout["yaxis"]["ticksuffix"] == "%"
    assert layout["shapes"][0]["x0"] == 100.0, "shapes have values"
    assert layout["annotations"][0]["x"] == 2.0, "annotations have exponents"


def test_a_long_title_of_an_axis_has_several_lines():
    layout = draw(chart(Series("A", (1.0,), (1.0,)), y=Axis(f"{'<long> ' * 10}title")))["layout"]
    lines = layout["yaxis"]["title"]["text"].split("<br>")
    assert len(lines) == 2 and " ".join(lines) == f"{'&lt;long&gt; ' * 10}title"


def test_marks_are_vertical_lines_and_named_once():
    marks = ((1.0, "exchange"), (2.0, "exchange"), (3.0, "decay"))
    layout = draw(chart(Series("A", (1.0,), (1.0,)), marks=marks))["layout"]
    assert [shape["x0"] for shape in layout["shapes"]] == [1.0, 2.0, 3.0]
    assert [note["text"] for note in layout["annotations"]] == ["exchange", "decay"]


@pytest.mark.parametrize(("x", "ends"), [(PERCENT, (0.0, 100.0)), (Axis("x"), (0.2, 0.9))])
def test_a_diagonal_is_a_line(x: Axis, ends: tuple[float, float]):
    (shape,) = draw(chart(Series("A", (0.2, 0.9), (0.3, 0.8)), x=x, diagonal=True))["layout"]["shapes"]
    assert (shape["x0"], shape["x1"]) == (shape["y0"], shape["y1"]) == ends


def test_a_chart_without_numbers_is_valid():
    draw(chart(), "A")
    draw(chart(Series("A", (), ()), diagonal=True))


def test_a_legend_of_many_rows_is_beside_the_chart():
    few, many = (
        draw(chart(*(Series(str(n), (1.0,), (1.0,), row=str(n)) for n in range(count)))) for count in (2, 30)
    )
    assert few["layout"]["legend"]["orientation"] == "h" and few["layout"]["showlegend"]
    assert many["layout"]["legend"]["orientation"] == "v"
    assert not draw(chart(Series("A", (1.0,), (1.0,))))["layout"]["showlegend"]


def test_a_heatmap_has_its_numbers_as_texts():
    figure = draw(heatmap([[99.994, math.nan], [0, 50.06]], row="A"))
    (trace,), layout = figure["data"], figure["layout"]
    assert trace["z"] == [[99.994, None], [0.0, 50.06]] and trace["text"] == [["100", "-"], ["0", "50.1"]]
    assert (trace["zmin"], trace["zmax"], trace["colorscale"]) == (0.0, 100.0, "Cividis")
    assert trace["meta"] == {"row": "A"} and layout["yaxis"]["autorange"] == "reversed"
    assert trace["hovertext"][0][0] == "row: r0<br>column: c0<br><b>99.99%</b>"


def test_colours_of_a_heatmap_fit_its_numbers():
    (trace,) = draw(heatmap([[-3, 2]]))["data"]
    assert (trace["zmin"], trace["zmax"], trace["colorscale"]) == (-3.0, 3.0, "RdBu")
    (trace,) = draw(heatmap([[3, 2]], unit=""))["data"]
    assert (trace["zmin"], trace["zmax"]) == (0.0, 3.0)
    draw(heatmap([[math.nan]], unit=""))


def test_a_large_heatmap_has_no_numbers():
    (trace,) = draw(heatmap(np.ones((3, MAX_NUMBERS + 1))))["data"]
    assert "text" not in trace


def test_drawing_needs_no_plotly():
    code = (
        "import sys; from allrounder.report.draw_plotly import to_plotly; assert 'plotly' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
