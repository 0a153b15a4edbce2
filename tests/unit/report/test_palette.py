"""Colours and symbols of rows."""

from __future__ import annotations

from itertools import combinations

from allrounder.report.chart import Axis, Chart, Series
from allrounder.report.palette import (
    BASE_COLORS,
    NEUTRAL,
    SYMBOLS,
    SeriesStyle,
    row_colors,
    row_symbols,
    style_series,
)

WHITE, BLACK = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)
Color = tuple[float, float, float]
DEUTERANOPE = ((0.625, 0.375, 0.0), (0.70, 0.30, 0.0), (0.0, 0.30, 0.70))
"""What a person without green cones sees, roughly: a matrix over red, green and blue."""


def parse(color: str) -> Color:
    red, green, blue = (int(color[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return red, green, blue


def contrast(a: Color, b: Color) -> float:
    """The ratio of luminances that web pages use."""
    dark, light = sorted(
        sum(w * c**2.2 for w, c in zip((0.2126, 0.7152, 0.0722), x, strict=True)) for x in (a, b)
    )
    return (light + 0.05) / (dark + 0.05)


def distance(a: Color, b: Color) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5


def chart(*series: Series, row: str = "") -> Chart:
    return Chart("x", "", "", Axis("x"), Axis("y"), series, row)


def test_the_first_colours_show_on_white_and_on_black():
    assert all(
        contrast(parse(color), WHITE) > 2 and contrast(parse(color), BLACK) > 3 for color in BASE_COLORS
    )


def test_the_first_colours_differ_for_the_colour_blind():
    seen = [
        tuple(sum(w * c for w, c in zip(row, parse(color), strict=True)) for row in DEUTERANOPE)
        for color in BASE_COLORS
    ]
    assert min(distance(a, b) for a, b in combinations(seen, 2)) > 0.1  # pyright: ignore[reportArgumentType]


def test_fifty_rows_differ_in_colour_or_symbol():
    names = [f"row {number}" for number in range(50)]
    colors, symbols = row_colors(names), row_symbols(names)
    assert list(colors) == list(symbols) == names
    assert len({(colors[name], symbols[name]) for name in names}) == 50
    assert len({colors[name] for name in names[:21]}) == 21
    assert all(len(color) == 7 and parse(color) for color in colors.values())
    assert set(symbols.values()) == set(SYMBOLS)


def test_a_name_has_one_colour():
    assert row_colors(["a", "b", "a"]) == row_colors(["a", "b"])


def test_series_have_the_colour_of_their_row_and_others_are_grey():
    colors, symbols = row_colors("abc"), row_symbols("abc")
    drawn = chart(
        Series("x", (1.0,), (1.0,), row="c"),
        Series("y", (1.0,), (1.0,), row="b"),
        Series("front", (1.0,), (1.0,)),
        Series("z", (1.0,), (1.0,), row="unknown"),
    )
    assert style_series(drawn, colors) == [
        SeriesStyle(colors["c"], symbols["c"]),
        SeriesStyle(colors["b"], symbols["b"]),
        SeriesStyle(NEUTRAL, "circle"),
        SeriesStyle(NEUTRAL, "circle"),
    ]


def test_series_of_one_row_or_of_none_differ_by_their_names():
    colors = row_colors("abc")
    by_name = row_colors(["loss", "accuracy"])
    for row, chart_row in (("", ""), ("", "c"), ("c", "c"), ("c", "")):
        series = [Series(name, (1.0,), (1.0,), row=row) for name in ("loss", "accuracy")]
        styles = style_series(chart(*series, row=chart_row), colors)
        assert [style.color for style in styles] == list(by_name.values())
        assert [style.symbol for style in styles] == ["circle", "square"]


def test_a_single_series_of_a_row_keeps_its_colour():
    colors = row_colors("abc")
    styles = style_series(
        chart(Series("c", (1.0,), (1.0,), row="c"), Series("front", (1.0,), (1.0,))), colors
    )
    assert [style.color for style in styles] == [colors["c"], NEUTRAL]
