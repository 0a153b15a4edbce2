"""Statistics of accuracies: percents, confidence intervals, and the comparison of two networks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

Z95 = 1.959963984540054


def format_percent(share: float) -> str:
    """A share in percent with two decimals, halves rounded up: the mean of two often ends in a half."""
    return f"{100 * share + 1e-9:.2f}"


def wilson_interval(share: float, count: int | float, z: float = Z95) -> tuple[float, float]:
    """Wilson's confidence interval of a share of `count` trials: a 95% interval by default."""
    if count == 0:
        return 0.0, 1.0
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    # At 0 and 1 the interval ends at the share itself; rounding must not move it.
    return max(min(centre - half, share), 0.0), min(max(centre + half, share), 1.0)


@final
@dataclass(frozen=True)
class McNemar:
    """McNemar's test of two networks: the images that both, only one, or neither classifies correctly."""

    both: int
    only_self: int
    only_other: int
    neither: int

    def __len__(self) -> int:
        return self.both + self.only_self + self.only_other + self.neither

    @property
    def p_value(self) -> float:
        """The two-sided p-value of McNemar's exact test: the probability of a split at least as uneven.

        Under the null hypothesis, each image that only one network classifies correctly is a fair coin toss.
        Reference: McNemar, 1947, Note on the sampling error of the difference between correlated proportions.
        """
        tosses = self.only_self + self.only_other
        ways = term = 1
        for heads in range(min(self.only_self, self.only_other)):
            term = term * (tosses - heads) // (heads + 1)
            ways += term
        return min(1.0, 2 * ways / 2**tosses)

    @property
    def difference(self) -> float:
        """The accuracy of the first network minus that of the other."""
        return (self.only_self - self.only_other) / len(self)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the difference: the normal one, with one image added for each network alone.

        Reference: Bonett and Price, 2012, Adjusted Wald confidence interval for a difference of binomial
        proportions based on paired data.
        """
        n, apart = len(self) + 2, self.only_self - self.only_other
        half = Z95 * math.sqrt(self.only_self + self.only_other + 2 - apart**2 / n) / n
        return max(apart / n - half, -1.0), min(apart / n + half, 1.0)

    def __str__(self) -> str:
        low, high = (100 * end for end in self.interval)
        return f"{100 * self.difference:+.2f} [{low:+.2f}, {high:+.2f}]  p={self.p_value:.4g}  n={len(self)}"
