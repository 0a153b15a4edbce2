"""What every figure has, and how figures write numbers and names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import final

from allrounder.report.chart import AnyChart, Axis
from allrounder.report.entry import Results
from allrounder.report.study import SeedCell

MAX_NAMES = 10
"""Names of rows that a sentence lists."""
NATURAL_AXIS = Axis("natural accuracy", percent=True)


@final
@dataclass(frozen=True)
class FigureKind:
    """A section of a report: charts of one idea."""

    title: str
    """The heading of the section."""
    about: str
    """One sentence: what the charts show."""
    build: Callable[[Results], list[AnyChart]]
    """Make the charts; an empty list if there is nothing to show."""
    missing: str
    """What is missing if there is nothing to show, and how to get it."""


def interval_in_percent(cell: SeedCell) -> tuple[tuple[float, float], ...]:
    """The 95% interval of one number, as a series expects it; empty if there is none."""
    if cell.interval is None:
        return ()
    low, high = cell.interval
    return ((100 * low, 100 * high),)


def join_names(names: Sequence[str]) -> str:
    """List names, which may contain commas: all of a few, or the first ones and the number of the others."""
    others = len(names) - MAX_NAMES
    return "; ".join(names) if others <= 0 else f"{'; '.join(names[:MAX_NAMES])}; and {others} more"


def chart_name(*parts: str) -> str:
    """Join texts to the name of a chart: lower case, with dashes."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def unique_slugs(names: Iterable[str]) -> dict[str, str]:
    """Return a slug for every name; a number follows those that would occur twice."""
    slugs: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        first = candidate = chart_name(name) or "row"
        number = 1
        while candidate in taken:
            number += 1
            candidate = f"{first}-{number}"
        taken.add(candidate)
        slugs[name] = candidate
    return slugs
