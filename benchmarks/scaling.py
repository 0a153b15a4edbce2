"""How time and memory of a training step grow with attack steps, learners, width and batch.

Each point is a process of its own with one thread: the processor's seconds of a step (the least of several,
because other programs only ever add to it), the memory that tensors hold between steps, and the most that
they hold on top of it during a step, both to the byte. A line is fitted through every curve; R^2 says how
straight it is, and "last / line" how the largest point compares with a line through the first two.
Width enters as its square, as the multiplications of convolutions do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from machines import (
    SHAPES,
    cpu_seconds,
    network,
    newly_held,
    peak_bytes,
    recipe_for,
    storages,
    synthetic,
    training_of,
)

POINTS = {
    "steps": (1, 5, 10, 20, 40),
    "learners": (1, 2, 3, 4, 5, 6),
    "width": (8, 16, 24, 32, 48),
    "batch": (16, 32, 64, 128),
}
USUAL = {"steps": 10, "learners": 2, "width": 16, "batch": 32}
MEASURES = ("ms", "MB held", "MB on top")


@dataclass(frozen=True)
class Curve:
    """One measure along one axis."""

    axis: str
    measure: str
    at: tuple[float, ...]
    found: tuple[float, ...]

    def line(self) -> tuple[float, float]:
        """Slope and height of the line of least squares."""
        fitted = statistics.linear_regression(self.at, self.found)
        return fitted.slope, fitted.intercept

    def straightness(self) -> float:
        """R^2: the share of the variance that the line explains; 1 for a curve that does not move."""
        slope, height = self.line()
        mean = statistics.fmean(self.found)
        whole = sum((y - mean) ** 2 for y in self.found)
        rest = sum((y - slope * x - height) ** 2 for x, y in zip(self.at, self.found, strict=True))
        return 1 - rest / whole if whole else 1.0

    def excess(self) -> float:
        """The last point over where a line through the first two would have it."""
        (a, b, *_), (p, q, *_) = self.at, self.found
        foreseen = p + (q - p) * (self.at[-1] - a) / (b - a)
        return self.found[-1] / foreseen if foreseen > 0 else float("nan")


def point(kind: str, settings: dict[str, int], rounds: int) -> tuple[float, float, float]:
    """The milliseconds of a step, and the megabytes between steps and on top of them."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:  # what torch loads with a first step is nobody's
        training_of(recipe_for(1, 1, network(kind, 8), 8), synthetic(SHAPES[kind], 8), Path(folder)).step(1)
    model, batch = network(kind, settings["width"]), settings["batch"]
    recipe = recipe_for(settings["learners"], settings["steps"], model, batch)
    data = synthetic(SHAPES[kind], batch)
    before = storages()
    with tempfile.TemporaryDirectory() as folder:
        training = training_of(recipe, data, Path(folder))
        training.step(1)
        held = newly_held(before)
        seconds = min(cpu_seconds(lambda t=t: training.step(t)) for t in range(2, rounds + 2))
        on_top = peak_bytes(lambda: training.step(rounds + 2))
    return 1000 * seconds, held / 1e6, on_top / 1e6


def curves(kind: str, axis: str, rounds: int) -> list[Curve]:
    """All measures along one axis, with every point in a fresh process."""
    at = tuple(float(value**2 if axis == "width" else value) for value in POINTS[axis])
    found: list[tuple[float, float, float]] = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for value in POINTS[axis]:
            found.append(pool.apply(point, (kind, {**USUAL, axis: value}, rounds)))
    return [
        Curve(axis, measure, at, tuple(row[number] for row in found))
        for number, measure in enumerate(MEASURES)
    ]


WIDE, HIGH, EDGE = 220, 150, 34


def panel(curve: Curve, left: float, top: float) -> str:
    """One small chart: the points, and the line through them."""
    most_x, most_y = max(curve.at), 1.1 * max(*curve.found, 1e-9)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + EDGE + x / most_x * (WIDE - 2 * EDGE), top + HIGH - EDGE - y / most_y * (
            HIGH - 2 * EDGE
        )

    slope, height = curve.line()
    (x1, y1), (x2, y2) = place(0, height), place(most_x, height + slope * most_x)
    (x0, y0), (right, _), (_, up) = place(0, 0), place(most_x, 0), place(0, most_y)
    dots = "".join(
        '<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="#1f6feb"/>'.format(*place(x, y))
        for x, y in zip(curve.at, curve.found, strict=True)
    )
    name = f"{curve.axis}^2" if curve.axis == "width" else curve.axis
    return (
        f'<path d="M{x0:.1f} {up:.1f}V{y0:.1f}H{right:.1f}" fill="none" stroke="#888"/>'
        f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#d1495b"/>{dots}'
        f'<text x="{left + WIDE / 2:.0f}" y="{top + 18:.0f}" text-anchor="middle">'
        f"{curve.measure} over {name}, R2 {curve.straightness():.3f}</text>"
        f'<text x="{right:.1f}" y="{y0 + 14:.1f}" text-anchor="end">{most_x:g}</text>'
        f'<text x="{x0 + 3:.1f}" y="{up + 4:.1f}">{most_y:.3g}</text>'
    )


def chart(rows: list[list[Curve]]) -> str:
    """All curves as one drawing (SVG), an axis a row."""
    panels = [
        panel(curve, WIDE * column, HIGH * row)
        for row, line in enumerate(rows)
        for column, curve in enumerate(line)
    ]
    size = f'width="{WIDE * len(MEASURES)}" height="{HIGH * len(rows)}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(panels) + "\n</svg>\n"


def main() -> None:
    """Print one line for every curve, and draw them if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=SHAPES, default="small-cnn")
    parser.add_argument("--axis", choices=POINTS, action="append", help="by default all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--svg", type=Path, help="where to draw the curves")
    chosen = parser.parse_args()
    print(f"{chosen.network}, 1 thread, torch {torch.__version__}; the others stay at {USUAL}")
    print("axis | measure | points | R^2 | last / line")
    rows: list[list[Curve]] = []
    for axis in chosen.axis or POINTS:
        rows.append(curves(chosen.network, axis, chosen.rounds))
        for curve in rows[-1]:
            told = ", ".join(
                f"{value}: {found:.3g}" for value, found in zip(POINTS[axis], curve.found, strict=True)
            )
            cells = (axis, curve.measure, told, f"{curve.straightness():.4f}", f"{curve.excess():.2f}")
            print(" | ".join(cells), flush=True)
    if chosen.svg is not None:
        chosen.svg.parent.mkdir(parents=True, exist_ok=True)
        chosen.svg.write_text(chart(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
