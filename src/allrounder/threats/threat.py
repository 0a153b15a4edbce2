"""Threats: the set of perturbed images an attacker may use, given by a norm and a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from typing_extensions import override

from allrounder.config.fields import TextValue, parse_fraction
from allrounder.errors import InputError
from allrounder.threats.norms import Linf, Norm, parse_norm
from allrounder.types import Images, PerExample, PerExampleBool

FORMAT_HINT = 'write the norm and the budget, such as "Linf:8/255"'


@final
@dataclass(frozen=True)
class Threat(TextValue):
    """All images in the box [0, 1] whose distance from x is at most the budget, in one norm."""

    norm: Norm
    budget: str
    """The budget as text, so that 8/255 is printed as 8/255."""

    def __post_init__(self) -> None:
        _ = self.eps

    @cached_property
    def eps(self) -> float:
        """The budget as a number."""
        try:
            eps = float(parse_fraction(self.budget))
        except (ValueError, OverflowError) as error:
            raise InputError(f"threat {str(self)!r}: {error}; {FORMAT_HINT}") from None
        if eps < 0:
            problem = "the budget is negative, expected 0 or more"
            raise InputError(f"threat {str(self)!r}: {problem}; {FORMAT_HINT}")
        return eps

    @classmethod
    def parse(cls, raw: object) -> Threat:
        """Parse "Linf:8/255"; case and the spelling of the norm are lenient (see `parse_norm`)."""
        if isinstance(raw, cls):
            return raw
        if not isinstance(raw, str) or raw.count(":") != 1:
            raise InputError(f"threat {raw!r}: expected one text NORM:BUDGET; {FORMAT_HINT}")
        name, budget = raw.split(":")
        try:
            norm = parse_norm(name.strip())
        except ValueError as error:
            raise InputError(f"threat {raw!r}: {error}") from None
        return cls(norm, budget.strip())

    @override
    def to_toml(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.norm}:{self.budget}"

    @property
    def threats(self) -> tuple[Threat, ...]:
        """The threat as a union of one."""
        return (self,)

    def budget_warning(self) -> str | None:
        """A warning for a budget that is probably a mistake, or None.

        A Linf budget that differs from k/255 (k <= 64) by at most 2.5% and a quarter of 1/255 is probably
        rounded (0.031) or has a wrong denominator (8/256). Multiples of 0.01 are taken as intended.
        """
        if not isinstance(self.norm, Linf):
            return None
        if self.eps >= 1:
            is_integer = self.eps < 255 and self.eps.is_integer()
            fix = f"write Linf:{self.eps:g}/255 if you meant that" if is_integer else "use a budget below 1"
            return f"{self} allows every image, because images lie in [0, 1]; {fix}"
        steps = 255 * self.eps
        k = round(steps)
        is_close = 1 <= k <= 64 and 1e-9 * k < abs(steps - k) <= min(0.025 * k, 0.25)
        if not is_close or (parse_fraction(self.budget) * 100).denominator == 1:
            return None
        fix = f"write Linf:{k}/255 if you meant that"
        return f"{self} is close to {k}/255 = {k / 255:.4g}, but not equal; {fix}"

    def project(self, x0: Images, x: Images) -> Images:
        """Project x into the ball around x0 and into the box."""
        return self.norm.project(x0, x, self.eps)

    def projector(self, x0: Images) -> Callable[[Images], Images]:
        """Return `project` for fixed images x0."""
        return self.norm.projector(x0, self.eps)

    def excess(self, x0: Images, x: Images) -> PerExample:
        """By how much x is outside the ball around x0, in units of max(1, eps); negative inside."""
        return (self.norm.length(x - x0) - self.eps) / max(1.0, self.eps)

    def contains(self, x0: Images, x: Images, *, slack: float = 1e-5) -> PerExampleBool:
        """Whether x lies in ball and box, up to rounding; `slack` scales with budgets above one."""
        return (self.excess(x0, x) <= slack) & in_box(x, slack)


@final
@dataclass(frozen=True)
class AnyOf:
    """The union of several threats: an image is allowed if at least one threat allows it."""

    threats: tuple[Threat, ...]

    def __post_init__(self) -> None:
        if not self.threats:
            raise InputError("a union of threats got no threat, expected at least one")

    def __str__(self) -> str:
        return " or ".join(str(threat) for threat in self.threats)

    def excess(self, x0: Images, x: Images) -> PerExample:
        """The smallest `excess` of x over all threats."""
        return torch.stack([threat.excess(x0, x) for threat in self.threats]).amin(dim=0)

    def contains(self, x0: Images, x: Images, *, slack: float = 1e-5) -> PerExampleBool:
        """Whether x lies in the box and in at least one ball, up to rounding."""
        return (self.excess(x0, x) <= slack) & in_box(x, slack)


def in_box(x: Images, slack: float) -> PerExampleBool:
    """Whether all pixels of an image lie in [0, 1] up to `slack`; False for NaN."""
    return ((x >= -slack) & (x <= 1 + slack)).flatten(1).all(dim=1)
