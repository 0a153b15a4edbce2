"""A threat: the perturbations an attacker is allowed, written as a norm and a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch

from allrounder.config.fields import Written, fraction
from allrounder.threats.norms import Linf, Norm, norm_named
from allrounder.types import Images, PerExample, PerExampleBool

EXAMPLE = 'write the norm and the budget, such as "Linf:8/255"'


@final
@dataclass(frozen=True)
class Threat(Written):
    """All images of the box [0, 1] whose distance from x is at most the budget, in one norm."""

    norm: Norm
    budget: str
    """As written, so that 8/255 is printed as 8/255."""

    def __post_init__(self) -> None:
        _ = self.eps

    @cached_property
    def eps(self) -> float:
        """The budget as a number, converted once."""
        try:
            eps = float(fraction(self.budget))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"threat {str(self)!r}: {error}; {EXAMPLE}") from None
        if eps < 0:
            raise ValueError(f"threat {str(self)!r}: the budget is negative, expected 0 or more; {EXAMPLE}")
        return eps

    @classmethod
    def read(cls, raw: object) -> Threat:
        """Parse "Linf:8/255", in any case and with the usual names of the norms."""
        if isinstance(raw, cls):
            return raw
        if not isinstance(raw, str) or raw.count(":") != 1:
            raise ValueError(f"threat {raw!r}: expected one text NORM:BUDGET; {EXAMPLE}")
        name, budget = raw.split(":")
        try:
            norm = norm_named(name.strip())
        except ValueError as error:
            raise ValueError(f"threat {raw!r}: {error}") from None
        return cls(norm, budget.strip())

    @classmethod
    def parse(cls, text: str) -> Threat:
        """The same as `read`."""
        return cls.read(text)

    def write(self) -> str:
        """The text that `read` takes back."""
        return str(self)

    def __str__(self) -> str:
        return f"{self.norm}:{self.budget}"

    def question(self) -> str | None:
        """What to ask before a long run where the budget may not be the one that was meant, or None.

        A Linf budget within 2.5% of k/255 (and a quarter of 1/255), k <= 64, but not equal to it, is probably
        a rounded one (0.031) or has another denominator (8/256). Whole hundredths (0.05, 0.1, 0.3) are meant
        as they are.
        """
        if not isinstance(self.norm, Linf):
            return None
        if self.eps >= 1:
            whole = self.eps < 255 and self.eps == int(self.eps)
            fix = f"write Linf:{int(self.eps)}/255 if that is meant" if whole else "write a budget below 1"
            return f"{self} allows every image, because images lie in [0, 1]; {fix}"
        steps = 255 * self.eps
        k = round(steps)
        near = 1 <= k <= 64 and 1e-9 * k < abs(steps - k) <= min(0.025 * k, 0.25)
        if not near or (fraction(self.budget) * 100).denominator == 1:
            return None
        return (
            f"{self} is close to {k}/255 = {k / 255:.4g}, but not equal; write Linf:{k}/255 if that is meant"
        )

    def project(self, x0: Images, x: Images) -> Images:
        """Bring x into the ball around x0 and into the box."""
        return self.norm.project(x0, x, self.eps)

    def around(self, x0: Images) -> Callable[[Images], Images]:
        """`project` for many points around the same images."""
        return self.norm.around(x0, self.eps)

    def excess(self, x0: Images, x: Images) -> PerExample:
        """How far x lies beyond the ball around x0, in units of max(1, eps); negative inside."""
        return (self.norm.length(x - x0) - self.eps) / max(1.0, self.eps)

    def contains(self, x0: Images, x: Images, *, slack: float = 1e-5) -> PerExampleBool:
        """Whether x lies in ball and box; slack is for rounding, and grows with budgets above one."""
        return (self.excess(x0, x) <= slack) & in_box(x, slack)


@final
@dataclass(frozen=True)
class AnyOf:
    """The union of several threats: whatever at least one of them allows."""

    threats: tuple[Threat, ...]

    def __post_init__(self) -> None:
        if not self.threats:
            raise ValueError("a union of threats needs at least one, got none")

    def __str__(self) -> str:
        return " or ".join(str(threat) for threat in self.threats)

    def excess(self, x0: Images, x: Images) -> PerExample:
        """How far x lies beyond the nearest of the balls, in the units of that ball."""
        return torch.stack([threat.excess(x0, x) for threat in self.threats]).amin(dim=0)

    def contains(self, x0: Images, x: Images, *, slack: float = 1e-5) -> PerExampleBool:
        """Whether x lies in the box and in at least one ball."""
        return (self.excess(x0, x) <= slack) & in_box(x, slack)


def in_box(x: Images, slack: float) -> PerExampleBool:
    """Whether all of an image lies in [0, 1]; NaN does not."""
    return ((x >= -slack) & (x <= 1 + slack)).flatten(1).all(dim=1)
