"""The false-positive rate and the power of tests that compare two methods over seeds and images.

python scripts/simulate_seed_tests.py --studies 2000

A method classifies image i of seed s correctly if h_i + u_i + b_s + e_si > 0. The difficulty h_i is common to
both methods; the preference u_i, the training b_s and the rest e_si are drawn for each method. One method is
better by the given number of points on average over all seeds and images. The deviation of b_s is chosen so
that the accuracies of seeds vary by the given number of points; `spread` is what one sees in a table, which
also includes e_si. The table shows how often each test finds a difference at the level 0.05.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np

from allrounder.report.seed_statistics import SeedComparison, SeedsByImages, t_p_value
from allrounder.report.statistics import McNemar

LEVEL = 0.05
DIFFICULTY, PREFERENCE, REST, EASE = 1.5, 0.3, 0.4, 0.3
"""The deviations of h, u and e, and the mean of h; the accuracy of a method is about 58%."""
RESAMPLES = 400
Test: TypeAlias = Callable[[SeedsByImages, SeedsByImages], float]


def pooled_mcnemar(row: SeedsByImages, reference: SeedsByImages) -> float:
    """McNemar's test, with every seed of an image as one more image."""
    a, b = row > 0, reference > 0
    return McNemar(*(int(count.sum()) for count in (a & b, a & ~b, ~a & b, ~a & ~b))).p_value


def images_only(row: SeedsByImages, reference: SeedsByImages) -> float:
    """A t-test over images, each with its mean over seeds; a permutation test over images agrees with it."""
    return _t_test((row - reference).mean(0))


def seeds_only(row: SeedsByImages, reference: SeedsByImages) -> float:
    """A t-test over seeds."""
    return _t_test((row - reference).mean(1))


def _t_test(sample: np.ndarray) -> float:
    error = math.sqrt(max(float(sample.var(ddof=1)), 1e-12) / len(sample))
    return t_p_value(float(sample.mean()) / error, len(sample) - 1)


def bootstrap(row: SeedsByImages, reference: SeedsByImages) -> float:
    """The hierarchical bootstrap: seeds and images are drawn with replacement."""
    seeds, images = (_draw_weights(count) for count in row.shape)
    means = ((seeds @ (row - reference)) * images).sum(1)
    return min(1.0, 2 * (1 + min(int((means <= 0).sum()), int((means >= 0).sum()))) / (RESAMPLES + 1))


@cache
def _draw_weights(count: int) -> SeedsByImages:
    """How often each of `count` things is drawn, as a share, for every resample."""
    return np.random.default_rng(count).multinomial(count, [1 / count] * count, size=RESAMPLES) / count


def seeds_and_images(row: SeedsByImages, reference: SeedsByImages) -> float:
    """The test of the package."""
    return SeedComparison(row, reference).p_value


TESTS: dict[str, Test] = {
    "pooled McNemar": pooled_mcnemar,
    "images only": images_only,
    "seeds only": seeds_only,
    "bootstrap": bootstrap,
    "ours": seeds_and_images,
}


def draw_study(
    rng: np.random.Generator, seeds: int, images: int, training: float, effect: float
) -> tuple[SeedsByImages, SeedsByImages]:
    """The results of two methods, of which the first is better by `effect`."""
    latent = NormalDist(0, math.sqrt(DIFFICULTY**2 + PREFERENCE**2 + REST**2 + training**2))
    shift = latent.inv_cdf(latent.cdf(EASE) + effect) - EASE
    h = rng.normal(EASE, DIFFICULTY, images)

    def draw_method(better: float) -> SeedsByImages:
        u, b = rng.normal(0, PREFERENCE, images), rng.normal(0, training, (seeds, 1))
        return (h + u + b + rng.normal(0, REST, (seeds, images)) + better > 0).astype(np.float64)

    return draw_method(shift), draw_method(0.0)


def main() -> None:
    """Print one line for every number of seeds, variation between trainings, and true difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--images", type=int, default=1000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    density = NormalDist(0, math.sqrt(DIFFICULTY**2 + PREFERENCE**2 + REST**2)).pdf(EASE)
    print(f"| seeds | training | spread | difference | {' | '.join(TESTS)} |")
    print("|" + " --: |" * (4 + len(TESTS)))
    for seeds in (2, 3, 5):
        for points in (0.0, 0.7, 1.5, 3.0):
            for effect in (0.0, 0.02, 0.04):
                training = points / 100 / density
                studies = [
                    draw_study(rng, seeds, options.images, training, effect) for _ in range(options.studies)
                ]
                spread = 100 * np.mean([reference.mean(1).std(ddof=1) for _, reference in studies])
                rates = [np.mean([test(*study) < LEVEL for study in studies]) for test in TESTS.values()]
                numbers = " | ".join(f"{rate:.3f}" for rate in rates)
                print(f"| {seeds} | {points} | {spread:.1f} | {100 * effect:.0f} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
