"""Statistics of rows with several seeds: both the trainings (the seeds) and the images vary.

The mean of a table of accuracies, one for every seed and image, varies with the choice of seeds and with the
choice of images. Its variance is estimated as the sum of both: the variance of the means over images, divided
by the number of seeds, and the variance of the means over seeds, divided by the number of images. ADR 0034
measures the errors of this and of other tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from allrounder.report.statistics import Z95, wilson_interval

SeedsByImages: TypeAlias = NDArray[np.float64]
"""Accuracies in [0, 1]: a row for each seed, a column for each image."""
MAX_TERMS = 1000
"""The most terms of the continued fraction; a few dozen are enough."""


@final
@dataclass(frozen=True)
class VarianceTerm:
    """A variance, estimated with some degrees of freedom."""

    variance: float
    degrees: float


def add_variances(terms: Sequence[VarianceTerm]) -> VarianceTerm:
    """The sum of independent estimates, with the degrees of freedom of Welch and Satterthwaite.

    Reference: Satterthwaite, 1946, An approximate distribution of estimates of variance components.
    """
    total = sum(term.variance for term in terms)
    if total == 0:
        return VarianceTerm(0.0, math.inf)
    return VarianceTerm(total, total**2 / sum(term.variance**2 / term.degrees for term in terms))


@final
@dataclass(frozen=True, eq=False)
class SeedComparison:
    """Two rows with the same two or more seeds on the same images.

    The trainings of the two rows vary independently of each other; the images are paired.
    """

    row: SeedsByImages
    reference: SeedsByImages

    @property
    def difference(self) -> float:
        """The accuracy of the row minus that of the reference row."""
        return float(self.row.mean() - self.reference.mean())

    @property
    def p_value(self) -> float:
        """The two-sided p-value of a t-test of the difference.

        As in the interval of `McNemar`, one image is added for each row, which only this row classifies
        correctly. Without them, a few images that all differ in the same direction would be too convincing.
        """
        difference = self.row.mean(0) - self.reference.mean(0)
        images = np.concatenate([difference, [1.0, -1.0]])
        error = add_variances(
            [
                _variance_of_mean(images),
                *(_variance_of_mean(row.mean(1)) for row in (self.row, self.reference)),
            ]
        )
        return t_p_value(float(images.mean()) / math.sqrt(error.variance), error.degrees)


MIN_VARIANCE = 1e-20
"""A smaller variance of a mean is nothing but rounding."""


def seed_interval(accuracies: SeedsByImages) -> tuple[float, float]:
    """The 95% interval of a mean over two or more seeds, on the same images.

    It is Wilson's interval, with the number of trials that has the estimated variance and with the quantile
    of the t distribution. If the variance is 0, or cannot be estimated from one image, each image is one
    trial.
    """
    share, images = float(accuracies.mean()), accuracies.shape[1]
    if images < 2:
        return wilson_interval(share, images)
    error = add_variances([_variance_of_mean(accuracies.mean(axis)) for axis in (0, 1)])
    if error.variance < MIN_VARIANCE:
        return wilson_interval(share, images)
    return wilson_interval(share, share * (1 - share) / error.variance, t_quantile(error.degrees))


def _variance_of_mean(sample: NDArray[np.float64]) -> VarianceTerm:
    return VarianceTerm(float(sample.var(ddof=1)) / len(sample), float(len(sample) - 1))


def t_p_value(t: float, degrees: float) -> float:
    """The probability that a t variable with these degrees of freedom is at least as far from 0."""
    return _beta_share(degrees / 2, 0.5, degrees / (degrees + t * t))


def t_quantile(degrees: float) -> float:
    """The t whose two-sided p-value is 5%, by bisection."""
    low, high = Z95, 1e9
    while high - low > 1e-9 * high:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if t_p_value(middle, degrees) > 0.05 else (low, middle)
    return low


def _beta_share(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # there the fraction of the complement converges faster
        return 1 - _beta_share(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = fraction
        for numerator in (even, odd):
            d = 1 / (1 + numerator * d)
            c = 1 + numerator / c
            fraction *= c * d
        if abs(fraction - before) < 1e-15 * abs(fraction):
            break
    return math.exp(log_front) * fraction / a
