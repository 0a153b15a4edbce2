"""Figures for papers."""

from __future__ import annotations

import errno
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from allrounder.errors import InputError, StorageError
from allrounder.report.chart import AnyChart, Axis, Chart, Heatmap, Mark, Series
from allrounder.report.draw_matplotlib import COLUMN, PAGE, STYLE, _draw_panels, _make_panel, save_figure
from allrounder.report.palette import row_colors

PERCENT = Axis("accuracy", percent=True)
NAME = "_<b>A & B</b> $x^2$ \\frac"


def chart(*series: Series, x: Axis = Axis("x"), y: Axis = PERCENT, **more: Any) -> Chart:
    return Chart("name", "Title", "About.", x, y, series, **more)


def points(*names: str) -> Chart:
    """A chart of one point with intervals for each name, and a front."""
    series = [
        Series(n, (60.0 + 2 * k,), (50.0 - k,), "points", ((45.0, 55.0),), ((58.0, 80.0),), row=n)
        for k, n in enumerate(names)
    ]
    return chart(*series, Series("front", (60.0, 70.0), (50.0, 40.0), "dashes"), x=PERCENT)


def heatmap(rows: int, columns: int, unit: str = "%", low: float = 0.0) -> Heatmap:
    values = np.linspace(low, 100, rows * columns).reshape(rows, columns)
    values[0, 0] = math.nan
    names = tuple(f"column {k}" for k in range(columns)), tuple(f"row {k}" for k in range(rows))
    cells = tuple(tuple(map(float, row)) for row in values)
    return Heatmap("name", "Title", "About.", Axis("x"), Axis("y"), *names, cells, unit)


def draw(*charts: AnyChart) -> Figure:
    colors = row_colors(s.row for c in charts if isinstance(c, Chart) for s in c.series)
    with matplotlib.rc_context(STYLE):
        return _draw_panels([_make_panel(c, colors) for c in charts])


def texts(path: Path) -> list[str]:
    """The texts of an SVG, which must be valid XML."""
    return [element.text or "" for element in ElementTree.parse(path).iter() if element.tag.endswith("}text")]


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("PDF", b"%PDF"), ("png", b"\x89PNG")])
def test_the_ending_is_the_format_and_bytes_are_always_the_same(ending: str, start: bytes, tmp_path: Path):
    charts = [points("A", "B"), heatmap(2, 3)]
    for name in ("a", "b"):
        save_figure(charts, tmp_path / f"{name}.{ending}")
    first, second = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("a", "b"))
    assert first.startswith(start) and first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a.{ending}", f"b.{ending}"]


def test_texts_of_users_are_shown_as_they_are(tmp_path: Path):
    path = tmp_path / "x.svg"
    bars = Series(NAME, (NAME, "b\x00\n"), (1.0, 2.0), "bars", row=NAME)
    save_figure([chart(bars, x=Axis(NAME), marks=((0.0, NAME),)), points(NAME), heatmap(2, 2)], path)
    drawn = texts(path)
    assert len([text for text in drawn if "<b>A & B</b> $x^2$" in text]) >= 4, "in all places"
    assert "b" in drawn, "without control characters"
    assert all("\u2005" not in text for text in drawn), "nothing was set as mathematics"


def test_long_names_and_letters_without_a_font_are_drawn(tmp_path: Path):
    names = ["\u4f60\u597d", "x" * 300]
    save_figure([points(*names)], tmp_path / "x.svg")
    drawn = texts(tmp_path / "x.svg")
    assert names[0] in drawn and f"{'x' * 37}..." in drawn
    save_figure([points(*names)], tmp_path / "x.png")


@pytest.mark.parametrize("mark", ["points", "line", "dashes", "steps"])
def test_every_mark_keeps_the_numbers(mark: Mark):
    series = Series("A", (1.0, 2.0, 3.0), (4.0, math.nan, 6.5), mark, row="A")
    (axes,) = draw(chart(series, y=Axis("y")))._localaxes  # pyright: ignore[reportAttributeAccessIssue]
    line = next(line for line in axes.lines if len(line.get_xdata()) == 3)
    assert list(line.get_xdata()) == [1.0, 2.0, 3.0]
    assert np.array_equal(line.get_ydata(), [4.0, math.nan, 6.5], equal_nan=True)
    assert line.get_drawstyle() == ("steps-post" if mark == "steps" else "default")


def test_bars_stand_side_by_side_with_different_hatches():
    series = [
        Series(n, ("x", "y"), (10.0, 20.0 + k), "bars", ((9.0, 11.0), (18.0, 22.0)), row=n)
        for k, n in enumerate("AB")
    ]
    (axes,) = draw(chart(*series)).axes
    bars: list[Any] = list(axes.patches)
    first, second = bars[:2], bars[2:]
    assert [bar.get_height() for bar in bars] == [10.0, 20.0, 10.0, 21.0]
    assert all(a.get_x() + a.get_width() <= b.get_x() for a, b in zip(first, second, strict=True))
    assert first[0].get_hatch() != second[0].get_hatch()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["x", "y"]


def test_rows_differ_without_colours():
    series = [Series(n, (1.0, 2.0), (10.0 * k, 20.0), row=n) for k, n in enumerate("ABC")]
    (axes,) = draw(chart(*series)).axes
    assert len({str(line.get_marker()) for line in axes.lines}) == 3
    steps = [Series(n, (1.0, 2.0), (10.0 * k, 20.0), "steps", row=n) for k, n in enumerate("ABC")]
    (axes,) = draw(chart(*steps)).axes
    assert len({str(line.get_linestyle()) + str(line._unscaled_dash_pattern) for line in axes.lines}) == 3  # pyright: ignore


def test_few_points_have_their_names_beside_them_and_many_a_legend():
    few = draw(points("A", "B"))
    assert [note.get_text() for note in few.axes[0].texts] == ["A", "B"]
    assert [text.get_text() for text in few.legends[0].get_texts()] == ["front"]
    many = draw(points(*(f"row {k}" for k in range(50))))
    assert not many.axes[0].texts and len(many.legends[0].get_texts()) == 51


def test_panels_with_the_same_rows_share_a_legend():
    a, b = (chart(*(Series(n, (1.0,), (float(k),), row=n) for k, n in enumerate(ns))) for ns in ("AB", "A"))
    shared = draw(a, b)
    assert len(shared.legends) == 1 and [axes.get_title("left") for axes in shared.axes] == ["Title", "Title"]
    assert shared.get_figwidth() == 2 * COLUMN
    own = draw(a, chart(Series("C", (1.0,), (1.0,), row="C")))
    assert not own.legends and [len(part.legends) for part in own.subfigs] == [1, 1]
    one = draw(a)
    assert one.get_figwidth() == COLUMN and one.axes[0].get_title("left") == ""


def test_long_titles_have_several_lines():
    long = replace(points("A"), title="a title " * 10, x=Axis("an axis " * 10))
    figure = draw(long, long)
    for axes in figure.axes:
        title, label = axes.get_title("left"), axes.get_xlabel()
        assert "\n" in title and "\n" in label and max(map(len, title.splitlines())) < 45
        right = axes.get_window_extent().x1
        box = axes._left_title.get_window_extent()  # pyright: ignore[reportAttributeAccessIssue]
        assert box.x1 <= right + 20


def test_wide_charts_have_the_width_of_a_page():
    bars = chart(*(Series(n, tuple("abcdefghij"), (1.0,) * 10, "bars", row=n) for n in "ABC"))
    assert draw(bars).get_figwidth() == PAGE
    assert draw(heatmap(2, 3)).get_figwidth() == COLUMN and draw(heatmap(2, 15)).get_figwidth() == PAGE


def test_a_heatmap_shows_its_numbers_or_a_scale():
    (axes,) = draw(heatmap(2, 3)).axes
    assert [text.get_text() for text in axes.texts] == ["-", "20", "40", "60", "80", "100"]
    assert len({text.get_color() for text in axes.texts}) == 2, "light on dark and dark on light"
    assert len(draw(heatmap(2, 30)).axes) == 2
    draw(heatmap(2, 3, "", -5.0))


@pytest.mark.parametrize(
    "drawn",
    [
        chart(),
        chart(Series("A", (), ())),
        chart(Series("A", (math.nan,), (math.nan,), "points", row="A")),
        chart(Series("A", ("x",), (math.nan,), "bars", ((math.nan, math.nan),))),
        chart(Series("A", (10.0, 1000.0), (1.0, 2.0)), x=Axis("x", log=True), y=Axis("y", log=True)),
        chart(Series("A", (0.1, 1e5), (1.0, 2.0), "points"), x=Axis("x", log=True)),
        chart(Series("A", (10.0, 90.0), (20.0, 80.0)), x=PERCENT, diagonal=True),
        Heatmap("m", "", "", Axis("x"), Axis("y"), ("a",), ("b",), ((math.nan,),)),
        Heatmap("m", "", "", Axis("x"), Axis("y"), (), (), ()),
    ],
)
def test_unusual_charts_are_drawn_without_warnings(drawn: AnyChart, tmp_path: Path):
    save_figure([drawn], tmp_path / "x.png")
    save_figure([drawn, points("A")], tmp_path / "y.svg")


def test_a_png_is_sharp_enough_for_print(tmp_path: Path):
    save_figure([points("A")], tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as image:
        assert image.width == 300 * COLUMN


def test_a_wrong_ending_is_explained(tmp_path: Path):
    with pytest.raises(InputError, match=r'got the ending "\.jpg", expected one of \.svg, \.pdf, \.png'):
        save_figure([points("A")], tmp_path / "x.jpg")
    with pytest.raises(InputError, match="got no charts to draw"):
        save_figure([], tmp_path / "x.svg")
    assert not list(tmp_path.iterdir())


def test_folders_are_created_and_an_unwritable_place_is_explained(tmp_path: Path):
    save_figure([points("A")], tmp_path / "new" / "x.svg")
    (tmp_path / "folder.svg").mkdir()
    for path in (tmp_path / "folder.svg", tmp_path / "new" / "x.svg" / "y.svg"):
        with pytest.raises(StorageError, match="cannot be written"):
            save_figure([points("A")], path)


def test_a_full_disk_leaves_the_earlier_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.svg"
    save_figure([points("A")], path)
    before = path.read_bytes()

    def fail(figure: Figure, file: Path, **settings: Any) -> None:
        file.write_text("half")
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(StorageError, match="the disk is full"):
        save_figure([points("B")], path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_settings_of_matplotlib_stay_and_pyplot_is_not_imported(tmp_path: Path):
    before = dict(matplotlib.rcParams)
    save_figure([points("A")], tmp_path / "x.svg")
    assert dict(matplotlib.rcParams) == before
    code = (
        "import sys; import allrounder.report.draw_matplotlib; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
