"""Threats: the set of perturbed images an attacker may use, given by a norm and a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from typing_extensions import override

from allrounder.config.fields import TextValue, parse_fraction
from allrounder.config.text import quote
from allrounder.errors import InputError, RecipeError
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
        if isinstance(self.norm, Linf) and self.eps > 1:
            problem = "images lie in [0, 1], so a Linf budget is at most 1"
            raise RecipeError(f"threat {str(self)!r}: {problem}{self._suggest_255ths()}")
        _ = self.eps

    @cached_property
    def eps(self) -> float:
        """The budget as a number."""
        try:
            eps = float(parse_fraction(self.budget))
        except ValueError as error:
            raise RecipeError(f"threat {quote(str(self))}: {error}; {FORMAT_HINT}") from None
        if eps < 0:
            problem = "the budget is negative, expected 0 or more"
            raise RecipeError(f"threat {quote(str(self))}: {problem}; {FORMAT_HINT}")
        return eps

    @classmethod
    def parse(cls, raw: object) -> Threat:
        """Parse "Linf:8/255"; case and the spelling of the norm are lenient (see `parse_norm`)."""
        if isinstance(raw, cls):
            return raw
        if not isinstance(raw, str) or raw.count(":") != 1:
            raise RecipeError(f"threat {quote(raw)}: expected one text NORM:BUDGET; {FORMAT_HINT}")
        name, budget = raw.split(":")
        try:
            norm = parse_norm(name.strip())
        except ValueError as error:
            raise RecipeError(f"threat {quote(raw)}: {error}") from None
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

    def size_problem(self, shape: Sequence[int] | None = None) -> str | None:
        """A message about a budget that is too large to train with, or None; see `Norm.largest_budget`."""
        limit = self.norm.largest_budget(shape)
        if self.eps <= limit:
            return None
        images = "images" if shape is None else f"images of shape {tuple(shape)}"
        reason = f"{images} in [0, 1] can lose their content within this budget"
        return f"{self}: expected a budget of at most {limit:.4g}, because {reason}{self._suggest_255ths()}"

    def budget_warning(self, shape: Sequence[int] | None = None) -> str | None:
        """A warning for a budget that is probably a mistake, or None.

        It is too large to train with, or it is a Linf budget that differs from k/255 (k <= 64) by at most
        2.5% and a quarter of 1/255: then it is probably rounded (0.031) or has a wrong denominator (8/256).
        Multiples of 0.01 are taken as intended.
        """
        if (problem := self.size_problem(shape)) is not None or not isinstance(self.norm, Linf):
            return problem
        steps = 255 * self.eps
        k = round(steps)
        is_close = 1 <= k <= 64 and 1e-9 * k < abs(steps - k) <= min(0.025 * k, 0.25)
        if not is_close or (parse_fraction(self.budget) * 100).denominator == 1:
            return None
        fix = f"write Linf:{k}/255 if you meant that"
        return f"{self} is close to {k}/255 = {k / 255:.4g}, but not equal; {fix}"

    def _suggest_255ths(self) -> str:
        """A suggestion to divide a whole number by 255, unless the result is still too large."""
        fits = self.eps.is_integer() and 0 < self.eps / 255 <= self.norm.largest_budget(None)
        return f"; did you mean {self.norm}:{self.eps:g}/255?" if fits else ""

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
