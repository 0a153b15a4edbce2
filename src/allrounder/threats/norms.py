"""The norms Linf, L2 and L1: lengths, ascent directions, random perturbations and projections.

All operations are per example; the result for an image does not depend on the rest of the batch.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from allrounder.config.fields import Share, did_you_mean, frozen_config, parse_fraction
from allrounder.config.text import quote
from allrounder.errors import RecipeError
from allrounder.rng import Rng
from allrounder.types import Images, PerExample


class Norm(ABC):
    """A norm for perturbations d = x' - x of images."""

    name: ClassVar[str]

    @abstractmethod
    def length(self, d: Images) -> PerExample:
        """||d|| of every example."""

    @abstractmethod
    def ascend(self, g: Images) -> Images:
        """A new tensor: a direction of length one in which a loss with gradient g rises; zero where g is."""

    def move(self, x: Images, g: Images, length: float) -> Images:
        """A new tensor: x after a step of this length in the direction of `ascend`."""
        return self.ascend(g).mul_(length).add_(x)

    def sample(self, like: Images, eps: float, rng: Rng) -> Images:
        """Draw in the ball: a uniform direction and a uniform radius (not uniform in volume)."""
        return self.sample_boundary(like, eps, rng) * rng.fold_in("radius").uniform(like[:, :1, :1, :1])

    @abstractmethod
    def sample_boundary(self, like: Images, eps: float, rng: Rng) -> Images:
        """Draw a perturbation of length eps."""

    @abstractmethod
    def project(self, x0: Images, x: Images, eps: float) -> Images:
        """Project x into the ball of radius eps around x0 and into the box [0, 1]."""

    def projector(self, x0: Images, eps: float) -> Callable[[Images], Images]:
        """Return `project` for fixed images x0, so that work common to all calls is done once."""
        return lambda x: self.project(x0, x, eps)

    def largest_budget(self, shape: Sequence[int] | None) -> float:
        """The largest budget to train with; above it, attacks can destroy most images of a shape (c, h, w).

        Infinite if it is not known, as without a shape.
        """
        return math.inf

    def __str__(self) -> str:
        return self.name


@final
@frozen_config
class Linf(Norm):
    """The largest absolute change of any coordinate."""

    name: ClassVar[str] = "Linf"

    def length(self, d: Images) -> PerExample:
        """max_i |d_i|."""
        return d.abs().amax(dim=(1, 2, 3))

    def ascend(self, g: Images) -> Images:
        """sign(g), the steepest ascent direction."""
        return _add_nan(g.sign(), g)

    def move(self, x: Images, g: Images, length: float) -> Images:
        """In one operation less; equal bit for bit, because length * sign(g) is exact."""
        return _add_nan(torch.add(x, g.sign(), alpha=length), g)

    def sample(self, like: Images, eps: float, rng: Rng) -> Images:
        """Draw uniformly in the ball."""
        return eps * (2 * rng.uniform(like) - 1)

    def sample_boundary(self, like: Images, eps: float, rng: Rng) -> Images:
        """Draw uniform noise and scale its largest coordinate to eps."""
        return eps * _normalize(self, 2 * rng.uniform(like) - 1)

    def project(self, x0: Images, x: Images, eps: float) -> Images:
        """Clip every coordinate; this is the closest point in ball and box."""
        return torch.clamp(x, x0 - eps, x0 + eps).clamp(0, 1)

    def projector(self, x0: Images, eps: float) -> Callable[[Images], Images]:
        """Precompute the bounds of ball and box; equal to `project` bit for bit."""
        low, high = (x0 - eps).clamp(0, 1), (x0 + eps).clamp(0, 1)
        return lambda x: torch.clamp(x, low, high)

    def largest_budget(self, shape: Sequence[int] | None) -> float:
        """Half of the range of a pixel, which turns every image into uniform grey."""
        return 0.5


@final
@frozen_config
class L2(Norm):
    """The Euclidean norm."""

    name: ClassVar[str] = "L2"

    def length(self, d: Images) -> PerExample:
        """sqrt(sum_i d_i^2), scaled by the largest coordinate so that no square underflows or overflows."""
        largest = d.abs().amax(dim=(1, 2, 3), keepdim=True).clamp(min=torch.finfo(d.dtype).tiny)
        return largest.flatten() * (d / largest).square().sum(dim=(1, 2, 3)).sqrt()

    def ascend(self, g: Images) -> Images:
        """g / ||g||, the steepest ascent direction."""
        return _normalize(self, g)

    def sample_boundary(self, like: Images, eps: float, rng: Rng) -> Images:
        """Draw uniformly on the sphere."""
        return eps * _normalize(self, rng.normal(like))

    def project(self, x0: Images, x: Images, eps: float) -> Images:
        """Scale into the ball, then clip to the box; where the box binds, this is not the closest point."""
        d = x - x0
        scale = (eps / self.length(d).clamp(min=torch.finfo(d.dtype).tiny)).clamp(max=1)
        return (x0 + expand(scale) * d).clamp(0, 1)

    def largest_budget(self, shape: Sequence[int] | None) -> float:
        """A quarter of the largest distance between two images."""
        return math.inf if shape is None else math.sqrt(math.prod(shape)) / 4


@final
@frozen_config
class L1(Norm):
    """The sum of absolute changes."""

    name: ClassVar[str] = "L1"

    density: Annotated[Share, Field(gt=0)] = 0.05
    """The share of coordinates that an ascent step moves."""

    def length(self, d: Images) -> PerExample:
        """sum_i |d_i|."""
        return d.abs().sum(dim=(1, 2, 3))

    def ascend(self, g: Images) -> Images:
        """sign(g) / k on the k = density * c * h * w coordinates of largest |g|, zero elsewhere.

        The steepest direction would move a single coordinate, so an attack would need one step for each.
        """
        flat = g.flatten(1)
        k = max(1, round(self.density * flat.shape[1]))
        top = flat.abs().topk(k, dim=1).indices
        steepest = flat.gather(1, top)
        signs = _add_nan(steepest.sign(), steepest)
        return _normalize(self, torch.zeros_like(flat).scatter(1, top, signs).view_as(g))

    def sample_boundary(self, like: Images, eps: float, rng: Rng) -> Images:
        """Draw Laplace noise and scale it to length eps: uniform on the faces of the L1 sphere."""
        u = 2 * rng.uniform(like) - 1
        laplace = -u.sign() * (1 - u.abs()).clamp(min=torch.finfo(u.dtype).tiny).log()
        return eps * _normalize(self, laplace)

    def project(self, x0: Images, x: Images, eps: float) -> Images:
        """The closest point in the intersection of ball and box (Croce and Hein, 2021, Mind the box).

        With r_i the distance from x0_i to the bound of the box that d_i points to, the closest point keeps
        the sign of d_i and has |d'_i| = min(max(|d_i| - level, 0), r_i), with the smallest level >= 0 for
        which these sum to at most eps.
        """
        d = x - x0
        size = d.abs().flatten(1)
        room = torch.where(d > 0, 1 - x0, x0).clamp(min=0).flatten(1)
        kept = _soft_threshold(size, room, _solve_threshold(size, room, eps)).view_as(d)
        inside = expand(self.length(d) <= eps)
        return torch.where(inside, x, x0 + d.sign() * kept).clamp(0, 1)

    def largest_budget(self, shape: Sequence[int] | None) -> float:
        """A quarter of the largest distance between two images."""
        return math.inf if shape is None else math.prod(shape) / 4

    def __str__(self) -> str:
        return self.name if self == L1() else f"{self.name}({self.density})"


FlatImages = Float[Tensor, "n d"]


def _soft_threshold(size: FlatImages, room: FlatImages, level: Float[Tensor, "n 1"]) -> FlatImages:
    return torch.minimum((size - level).clamp(min=0), room)


def _solve_threshold(size: FlatImages, room: FlatImages, eps: float) -> Float[Tensor, "n 1"]:
    """The smallest level >= 0 with sum_i min(max(size_i - level, 0), room_i) <= eps, for every row.

    Bisection finds it to machine precision; the upper end is returned, which is always feasible.
    """
    low, high = torch.zeros_like(size[:, :1]), size.amax(dim=1, keepdim=True)
    high = torch.where(_soft_threshold(size, room, low).sum(dim=1, keepdim=True) <= eps, low, high)
    for _ in range(8 - round(math.log2(torch.finfo(size.dtype).eps))):
        level = (low + high) / 2
        over = _soft_threshold(size, room, level).sum(dim=1, keepdim=True) > eps
        low, high = torch.where(over, level, low), torch.where(over, high, level)
    return high


def expand(per_example: Tensor) -> Tensor:
    """One number per example in a shape that multiplies images: (n, 1, 1, 1)."""
    return per_example[:, None, None, None]


def _add_nan(result: Tensor, g: Tensor) -> Tensor:
    """Add NaN in place where g is not finite: torch.sign maps NaN to 0, which would hide it."""
    # On MPS alpha=0 would skip NaN.
    return result.add_(g, alpha=0) if g.device.type in ("cpu", "cuda") else result.add_(0 * g)


def _normalize(norm: Norm, d: Images) -> Images:
    """Scale d to length one; zero stays zero."""
    return d / expand(norm.length(d).clamp(min=torch.finfo(d.dtype).tiny))


NORMS: dict[str, type[Norm]] = {"Linf": Linf, "L2": L2, "L1": L1}
ALL_NORMS = frozenset(NORMS.values())

_ALIASES = {"linf": "Linf", "inf": "Linf", "np.inf": "Linf", "l2": "L2", "2": "L2", "l1": "L1", "1": "L1"}


def parse_norm(text: object) -> Norm:
    """Parse "Linf", "l_inf", "inf", float("inf"), "L2", 2, "L1", 1, or "L1(0.1)", a density of 0.1."""
    normalized = (f"{text:g}" if isinstance(text, float) else str(text)).strip().lower().replace("_", "")
    match = re.fullmatch(r"([^()]*)(?:\(([^()]*)\))?", normalized)
    word, density = match.groups() if match else (normalized, None)
    name = _ALIASES.get(word)
    if name is None:
        known = f"(known: {', '.join(NORMS)})"
        raise RecipeError(f"unknown norm {quote(text)} {known}{did_you_mean(word.capitalize(), NORMS)}")
    if density is None:
        return NORMS[name]()
    if name != "L1":
        raise RecipeError(f"norm {quote(text)}: only L1 has a density; write {name}")
    share = parse_fraction(density)
    if not 0 < share <= 1:
        raise RecipeError(f"norm {quote(text)}: expected a density above 0 and up to 1, such as L1(0.05)")
    return L1(density=float(share))
