"""Charts as values: what is drawn, without how. The page and the image files draw the same charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

from allrounder.errors import InputError

Mark: TypeAlias = Literal["points", "line", "dashes", "steps", "bars"]
"""How a series is drawn: points, a line through them, a dashed line, a step function, or bars."""


@final
@dataclass(frozen=True)
class Axis:
    """An axis of a chart; accuracies are in percent."""

    title: str
    percent: bool = False
    """Whether values are percents, shown with one decimal and a % sign."""
    log: bool = False


@final
@dataclass(frozen=True)
class Series:
    """Numbers that are drawn in one colour, with a name in the legend."""

    name: str
    x: tuple[float | str, ...]
    """Numbers, or names of categories."""
    y: tuple[float, ...]
    """NaN where there is no number."""
    mark: Mark = "line"
    y_interval: tuple[tuple[float, float], ...] = ()
    """The 95% interval of every y; empty if there are none."""
    x_interval: tuple[tuple[float, float], ...] = ()
    row: str = ""
    """The row of the report that the series belongs to, which decides its colour and whether the filter of
    the page shows it; empty for series that belong to no row, such as a front or what a paper reports."""

    def __post_init__(self) -> None:
        lengths = {len(self.x), len(self.y), len(self.y_interval or self.x), len(self.x_interval or self.x)}
        if len(lengths) > 1:
            raise InputError(f"series {self.name}: got different numbers of x, y and intervals, expected one")


@final
@dataclass(frozen=True)
class Chart:
    """Series over two axes."""

    name: str
    """Unique on a page, in lower case with dashes: "tradeoff-linf"."""
    title: str
    about: str
    """One or two plain sentences: what is shown, and how to read it."""
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    row: str = ""
    """The row of the report that the whole chart belongs to, if it is one only."""
    marks: tuple[tuple[float, str], ...] = ()
    """Vertical lines at values of x, with their names: exchanges, or the eps of training."""
    diagonal: bool = False
    """Whether to draw the line y = x, for calibration."""


@final
@dataclass(frozen=True)
class Heatmap:
    """A matrix of numbers, drawn as colours with the numbers on top."""

    name: str
    title: str
    about: str
    x: Axis
    """Of the columns."""
    y: Axis
    """Of the rows, from the top."""
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """One tuple for each row; NaN where there is no number."""
    unit: str = "%"
    row: str = ""
    """The row of the report that the matrix belongs to, if it is one only."""

    def __post_init__(self) -> None:
        if len(self.values) != len(self.rows) or any(len(v) != len(self.columns) for v in self.values):
            raise InputError(f"heatmap {self.name}: got values of another size than its rows and columns")


AnyChart: TypeAlias = Chart | Heatmap


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other point equals or beats in both numbers, by rising first number; equal
    points once."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]
