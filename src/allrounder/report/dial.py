"""The mixtures of networks that were measured after training: their front, the choice of one, the table and
the chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Literal, TypeAlias, final

from allrounder.config.fields import did_you_mean
from allrounder.errors import InputError
from allrounder.report.chart import Axis, Chart, Series, pareto_front
from allrounder.report.outcome import NATURAL
from allrounder.report.statistics import format_percent
from allrounder.report.tables import Cell, ResultTable
from allrounder.system.checked_files import read_json
from allrounder.system.field_checks import NUMBER, Checks, fields_of, list_of, table_of

GLOBAL = "global"
"""The name of a run's global weights."""
Criterion: TypeAlias = Literal["worst", "mean"]
"""Robust accuracy under all threats at once, or the mean over the threats."""
FRONT_MARK = "*"
DIAL_FOLDER, DIAL_FILE = "dial", "dial.json"
"""Where the points of a run are: in this folder of the run, in this file."""
FORMAT_VERSION = 1
"""Of DIAL_FILE."""
POINT_FIELDS: Checks = {
    "shares": table_of(NUMBER),
    "natural": NUMBER,
    "robust": table_of(NUMBER),
    "worst": NUMBER,
    "mean": NUMBER,
}
DIAL_FIELDS: Checks = {"points": list_of(fields_of(POINT_FIELDS))}
"""Of DIAL_FILE, and of other files with points."""


@final
@dataclass(frozen=True)
class DialPoint:
    """A mixture, and its accuracies on held-out images, in [0, 1]."""

    shares: Mapping[str, float]
    """Of every network with a share; they sum to one."""
    natural: float
    robust: Mapping[str, float] = field(default_factory=dict[str, float])
    """By threat."""
    worst: float = 0.0
    """The share of images that are correct under every threat."""
    mean: float = 0.0
    """The mean over the threats."""

    @property
    def score(self) -> float:
        """Natural accuracy plus the mean over the threats, as the best weights of a run are selected by."""
        return self.natural + self.mean

    @property
    def name(self) -> str:
        """The shares in words: "linf 0.50, natural 0.50", or the name of the only network."""
        return describe_shares(self.shares)

    @property
    def is_alone(self) -> bool:
        """Whether it is one network, not a mixture of several."""
        return len(self.shares) == 1

    def accuracy(self, key: str) -> float:
        """Return natural, worst, mean, or the accuracy under a threat, by its text or its norm."""
        numbers = {NATURAL: self.natural, "worst": self.worst, "mean": self.mean, **self.robust}
        if key in numbers:
            return numbers[key]
        matching = [threat for threat in self.robust if threat.partition(":")[0].lower() == key.lower()]
        if len(matching) == 1:
            return self.robust[matching[0]]
        norms = [threat.partition(":")[0].lower() for threat in self.robust]
        known = list(dict.fromkeys([*numbers, *(norm for norm in norms if norms.count(norm) == 1)]))
        raise InputError(
            f"no accuracy is called {key!r}, expected {', '.join(known)}{did_you_mean(key, known)}"
        )


def read_points(run: Path) -> tuple[DialPoint, ...]:
    """Read the mixtures of a run that were measured; none if there are none, RunError if they are damaged."""
    file = run / DIAL_FOLDER / DIAL_FILE
    if not file.is_file():
        return ()
    again = "remove it and call allrounder dial again, which keeps the points"
    fields = [field.name for field in dataclass_fields(DialPoint)]
    points = read_json(file, again, FORMAT_VERSION, DIAL_FIELDS)["points"]
    return tuple(DialPoint(**{name: point[name] for name in fields}) for point in points)


def describe_shares(shares: Mapping[str, float]) -> str:
    """Describe shares in words: "linf 0.50, natural 0.50", or the name of the only network."""
    if len(shares) == 1:
        return next(iter(shares))
    return ", ".join(f"{name} {share:.4g}" for name, share in shares.items())


def find_front(points: Sequence[DialPoint], by: Criterion = "worst") -> list[DialPoint]:
    """Return the points that no other point beats in natural and in robust accuracy, by natural accuracy."""
    front = set(pareto_front([(point.natural, point.accuracy(by)) for point in points]))
    chosen = [point for point in points if (point.natural, point.accuracy(by)) in front]
    return sorted(chosen, key=lambda point: point.natural)


def pick_point(points: Sequence[DialPoint], goals: Mapping[str, float], by: Criterion = "worst") -> DialPoint:
    """Return the best point among those that have at least the accuracies in `goals`.

    The best one has the highest robust accuracy, `by` worst or mean; if the goals only ask for robustness, it
    has the highest natural accuracy. Of equal points, the first counts.
    """
    if not points or not goals:
        raise InputError(f"pick: got {len(points)} points and {len(goals)} goals, expected some of both")
    check_goals(goals)
    reached = [p for p in points if all(p.accuracy(key) >= goal for key, goal in goals.items())]
    if not reached:
        asked = " and ".join(f"{key} {format_percent(goal)}%" for key, goal in goals.items())
        best = [(key, max(points, key=lambda point: point.accuracy(key))) for key in goals]
        most = "; ".join(f"the highest {k} is {format_percent(p.accuracy(k))}% ({p.name})" for k, p in best)
        raise InputError(f"pick: no point has at least {asked}; {most}; ask for less, or measure more points")
    first, second = (by, NATURAL) if NATURAL in goals else (NATURAL, by)
    return max(reached, key=lambda point: (point.accuracy(first), point.accuracy(second)))


def check_goals(goals: Mapping[str, float]) -> None:
    """Raise InputError unless all goals lie in [0, 1]."""
    for key, goal in goals.items():
        if not 0 <= goal <= 1:
            hint = f"; did you mean {goal / 100:g}?" if 1 < goal <= 100 else ""
            raise InputError(f"pick: {key} is {goal:g}, expected an accuracy from 0 to 1{hint}")


def dial_table(
    points: Sequence[DialPoint], by: Criterion = "worst", notes: Sequence[str] = ()
) -> ResultTable:
    """Return a table of all points, by falling natural accuracy, with the front marked."""
    threats = list(points[0].robust) if points else []
    front = {id(point) for point in find_front(points, by)}
    rows: list[tuple[str, list[Cell]]] = []
    for point in sorted(points, key=lambda point: -point.natural):
        shares = [point.natural, *point.robust.values(), point.worst, point.mean]
        cells = [Cell(percent, percent) for percent in map(format_percent, shares)]
        mark = Cell(FRONT_MARK if id(point) in front else "")
        rows.append((point.name, [*cells, Cell(f"{point.score:.4f}"), mark]))
    header = ["mixture", NATURAL, *threats, "worst", "mean", "score", "front"]
    explained = f"{FRONT_MARK}: no other mixture has a higher natural and {by} accuracy."
    return ResultTable(header, rows, [*notes, explained])


def dial_chart(points: Sequence[DialPoint], by: Criterion = "worst") -> Chart:
    """Return the chart of natural against robust accuracy, with the front."""

    def series(name: str, chosen: Sequence[DialPoint], mark: Literal["points", "line"] = "points") -> Series:
        x, y = ([100 * point.accuracy(key) for point in chosen] for key in (NATURAL, by))
        return Series(name, tuple(x), tuple(y), mark)

    alone = [point for point in points if point.is_alone]
    groups = [
        series("front", find_front(points, by), "line"),
        series("mixtures", [point for point in points if not point.is_alone]),
        *(series(point.name, [point]) for point in alone),
    ]
    title = "worst-case" if by == "worst" else "mean"
    about = (
        "Every point is a mixture of the weights after training, measured on held-out images. No point lies "
        "above and to the right of the front."
    )
    axes = Axis("natural accuracy", percent=True), Axis(f"{title} robust accuracy", percent=True)
    return Chart("dial", "Mixtures after training", about, *axes, tuple(group for group in groups if group.x))
