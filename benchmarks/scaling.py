"""Time and memory of a training step as functions of attack steps, learners, width and batch size.

Each point is measured in its own process with one thread: the CPU seconds of a step (the minimum of several),
the bytes that tensors hold between steps, and the peak of the additional bytes during a step. A line is
fitted to every curve; R^2 tells how straight the curve is, and "last / line" is the ratio of the largest
point to a line through the first two. Width enters squared, like the multiplications of a convolution.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from harness import (
    SHAPES,
    build_trainer,
    cpu_seconds,
    linf_recipe,
    model_spec,
    new_bytes,
    peak_bytes,
    synthetic,
    tensor_storages,
)

POINTS = {
    "steps": (1, 5, 10, 20, 40),
    "learners": (1, 2, 3, 4, 5, 6),
    "width": (8, 16, 24, 32, 48),
    "batch": (16, 32, 64, 128),
}
DEFAULTS = {"steps": 10, "learners": 2, "width": 16, "batch": 32}
MEASURES = ("ms", "MB held", "MB peak")


@dataclass(frozen=True)
class Curve:
    """One quantity as a function of one setting."""

    axis: str
    measure: str
    x: tuple[float, ...]
    y: tuple[float, ...]

    def fit_line(self) -> tuple[float, float]:
        """Slope and intercept of the least-squares line."""
        fitted = statistics.linear_regression(self.x, self.y)
        return fitted.slope, fitted.intercept

    def r_squared(self) -> float:
        """R^2, the share of the variance that the line explains; 1 for a constant curve."""
        slope, intercept = self.fit_line()
        mean = statistics.fmean(self.y)
        total = sum((y - mean) ** 2 for y in self.y)
        residual = sum((y - slope * x - intercept) ** 2 for x, y in zip(self.x, self.y, strict=True))
        return 1 - residual / total if total else 1.0

    def last_over_line(self) -> float:
        """The ratio of the last point to its value on a line through the first two."""
        (a, b, *_), (p, q, *_) = self.x, self.y
        expected = p + (q - p) * (self.x[-1] - a) / (b - a)
        return self.y[-1] / expected if expected > 0 else float("nan")


def measure_point(kind: str, settings: dict[str, int], rounds: int) -> tuple[float, float, float]:
    """The milliseconds of a step, the megabytes held between steps, and the additional peak during a step."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:  # so that what torch allocates once is not counted
        warm_up = linf_recipe(1, 1, model_spec(kind, 8), 8)
        build_trainer(warm_up, synthetic(SHAPES[kind], 8), Path(folder)).fit(until=1)
    batch = settings["batch"]
    model = model_spec(kind, settings["width"])
    recipe = linf_recipe(settings["learners"], settings["steps"], model, batch)
    data = synthetic(SHAPES[kind], batch)
    before = tensor_storages()
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(recipe, data, Path(folder))
        trainer.fit(until=1)
        held = new_bytes(before)
        seconds = min(cpu_seconds(lambda t=t: trainer.fit(until=t)) for t in range(2, rounds + 2))
        additional = peak_bytes(lambda: trainer.fit(until=rounds + 2))
    return 1000 * seconds, held / 1e6, additional / 1e6


def measure_curves(kind: str, axis: str, rounds: int) -> list[Curve]:
    """All quantities as functions of one setting, with every point in a new process."""
    x = tuple(float(value**2 if axis == "width" else value) for value in POINTS[axis])
    points: list[tuple[float, float, float]] = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for value in POINTS[axis]:
            points.append(pool.apply(measure_point, (kind, {**DEFAULTS, axis: value}, rounds)))
    return [
        Curve(axis, measure, x, tuple(point[number] for point in points))
        for number, measure in enumerate(MEASURES)
    ]


PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 220, 150, 34


def draw_panel(curve: Curve, left: float, top: float) -> str:
    """One chart as SVG elements: the points and the fitted line."""
    max_x = max(curve.x)
    max_y = 1.1 * max(*curve.y, 1e-9)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + MARGIN + x / max_x * (
            PANEL_WIDTH - 2 * MARGIN
        ), top + PANEL_HEIGHT - MARGIN - y / max_y * (PANEL_HEIGHT - 2 * MARGIN)

    slope, intercept = curve.fit_line()
    (x1, y1), (x2, y2) = place(0, intercept), place(max_x, intercept + slope * max_x)
    (x0, y0), (right, _), (_, up) = place(0, 0), place(max_x, 0), place(0, max_y)
    dots = "".join(
        '<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="#1f6feb"/>'.format(*place(x, y))
        for x, y in zip(curve.x, curve.y, strict=True)
    )
    name = f"{curve.axis}^2" if curve.axis == "width" else curve.axis
    return (
        f'<path d="M{x0:.1f} {up:.1f}V{y0:.1f}H{right:.1f}" fill="none" stroke="#888"/>'
        f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#d1495b"/>{dots}'
        f'<text x="{left + PANEL_WIDTH / 2:.0f}" y="{top + 18:.0f}" text-anchor="middle">'
        f"{curve.measure} over {name}, R2 {curve.r_squared():.3f}</text>"
        f'<text x="{right:.1f}" y="{y0 + 14:.1f}" text-anchor="end">{max_x:g}</text>'
        f'<text x="{x0 + 3:.1f}" y="{up + 4:.1f}">{max_y:.3g}</text>'
    )


def draw_chart(rows: list[list[Curve]]) -> str:
    """All curves as one SVG, with one row per setting."""
    panels = [
        draw_panel(curve, PANEL_WIDTH * column, PANEL_HEIGHT * row)
        for row, curves in enumerate(rows)
        for column, curve in enumerate(curves)
    ]
    size = f'width="{PANEL_WIDTH * len(MEASURES)}" height="{PANEL_HEIGHT * len(rows)}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(panels) + "\n</svg>\n"


def main() -> None:
    """Print one line per curve; with --svg, also draw them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=SHAPES, default="small-cnn")
    parser.add_argument("--axis", choices=POINTS, action="append", help="all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--svg", type=Path, help="file to draw the curves to")
    options = parser.parse_args()
    print(f"{options.network}, 1 thread, torch {torch.__version__}; the other settings are {DEFAULTS}")
    print("axis | measure | points | R^2 | last / line")
    rows: list[list[Curve]] = []
    for axis in options.axis or POINTS:
        rows.append(measure_curves(options.network, axis, options.rounds))
        for curve in rows[-1]:
            points = ", ".join(f"{value}: {y:.3g}" for value, y in zip(POINTS[axis], curve.y, strict=True))
            cells = (axis, curve.measure, points, f"{curve.r_squared():.4f}", f"{curve.last_over_line():.2f}")
            print(" | ".join(cells), flush=True)
    if options.svg is not None:
        options.svg.parent.mkdir(parents=True, exist_ok=True)
        options.svg.write_text(draw_chart(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
