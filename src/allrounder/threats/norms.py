"""The norms as values: how long a perturbation is, which way is up, where to start, what is still allowed.

Everything is per example: a batch is only a faster way to ask the same question n times.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from allrounder.config.fields import Share, fraction, nearest, value
from allrounder.rng import Draws
from allrounder.types import Images, PerExample


class Norm(ABC):
    """A way to measure perturbations d = x' - x of images."""

    name: ClassVar[str]

    @abstractmethod
    def length(self, d: Images) -> PerExample:
        """||d|| of every example."""

    @abstractmethod
    def ascend(self, g: Images) -> Images:
        """A direction of unit length along which a loss with gradient g rises; zero where g is zero. A new
        tensor, which the caller may overwrite."""

    @abstractmethod
    def sample(self, like: Images, eps: float, draws: Draws) -> Images:
        """A random perturbation inside the ball of radius eps."""

    @abstractmethod
    def boundary(self, like: Images, eps: float, draws: Draws) -> Images:
        """A random perturbation of length eps."""

    @abstractmethod
    def project(self, x0: Images, x: Images, eps: float) -> Images:
        """Bring x into the ball of radius eps around x0 and into the box [0, 1]."""

    def around(self, x0: Images, eps: float) -> Callable[[Images], Images]:
        """`project` for many points around the same images; what they share may be prepared."""
        return lambda x: self.project(x0, x, eps)

    def __str__(self) -> str:
        return self.name


@final
@value
class Linf(Norm):
    """The largest change of any coordinate."""

    name: ClassVar[str] = "Linf"

    def length(self, d: Images) -> PerExample:
        """max_i |d_i|."""
        return d.abs().amax(dim=(1, 2, 3))

    def ascend(self, g: Images) -> Images:
        """sign(g): the steepest direction, every coordinate at full length."""
        return _sign(g)

    def sample(self, like: Images, eps: float, draws: Draws) -> Images:
        """Uniform in the ball."""
        return eps * (2 * draws.uniform(like) - 1)

    def boundary(self, like: Images, eps: float, draws: Draws) -> Images:
        """Uniform noise stretched until its largest coordinate is eps."""
        return eps * _unit(self, 2 * draws.uniform(like) - 1)

    def project(self, x0: Images, x: Images, eps: float) -> Images:
        """The closest point of ball and box, coordinate by coordinate."""
        return torch.clamp(x, x0 - eps, x0 + eps).clamp(0, 1)

    def around(self, x0: Images, eps: float) -> Callable[[Images], Images]:
        """The walls of ball and box, found once; the same numbers as one after the other."""
        low, high = (x0 - eps).clamp(0, 1), (x0 + eps).clamp(0, 1)
        return lambda x: torch.clamp(x, low, high)


@final
@value
class L2(Norm):
    """The Euclidean length of the change."""

    name: ClassVar[str] = "L2"

    def length(self, d: Images) -> PerExample:
        """sqrt(sum_i d_i^2), scaled by the largest coordinate so that no square underflows or overflows."""
        largest = d.abs().amax(dim=(1, 2, 3), keepdim=True).clamp(min=torch.finfo(d.dtype).tiny)
        return largest.flatten() * (d / largest).square().sum(dim=(1, 2, 3)).sqrt()

    def ascend(self, g: Images) -> Images:
        """g / ||g||: the steepest direction."""
        return _unit(self, g)

    def sample(self, like: Images, eps: float, draws: Draws) -> Images:
        """A uniform direction times a uniform radius (so small radii are as likely as large ones)."""
        return self.boundary(like, eps, draws) * draws.at("radius").uniform(like[:, :1, :1, :1])

    def boundary(self, like: Images, eps: float, draws: Draws) -> Images:
        """Uniform on the sphere."""
        return eps * _unit(self, draws.normal(like))

    def project(self, x0: Images, x: Images, eps: float) -> Images:
        """Scale into the ball, then clip to the box, as the whole field does.

        Clipping only shortens d, so the result is feasible; it is not the closest point where the box binds.
        """
        d = x - x0
        scale = (eps / self.length(d).clamp(min=torch.finfo(d.dtype).tiny)).clamp(max=1)
        return (x0 + _wide(scale) * d).clamp(0, 1)


@final
@value
class L1(Norm):
    """The sum of all changes."""

    name: ClassVar[str] = "L1"

    density: Annotated[Share, Field(gt=0)] = 0.05
    """The share of coordinates that a step moves."""

    def length(self, d: Images) -> PerExample:
        """sum_i |d_i|."""
        return d.abs().sum(dim=(1, 2, 3))

    def ascend(self, g: Images) -> Images:
        """sign(g) / k on the k coordinates of largest |g|, zero elsewhere.

        The steepest direction moves one coordinate alone and needs a step for each; k = density * c * h * w
        trades some slope for progress on many.
        """
        flat = g.flatten(1)
        k = max(1, round(self.density * flat.shape[1]))
        top = flat.abs().topk(k, dim=1).indices
        return _unit(self, torch.zeros_like(flat).scatter(1, top, _sign(flat.gather(1, top))).view_as(g))

    def sample(self, like: Images, eps: float, draws: Draws) -> Images:
        """A uniform direction times a uniform radius, as for L2."""
        return self.boundary(like, eps, draws) * draws.at("radius").uniform(like[:, :1, :1, :1])

    def boundary(self, like: Images, eps: float, draws: Draws) -> Images:
        """Laplace noise scaled to length eps: uniform on the faces of the sphere."""
        u = 2 * draws.uniform(like) - 1
        laplace = -u.sign() * (1 - u.abs()).clamp(min=torch.finfo(u.dtype).tiny).log()
        return eps * _unit(self, laplace)

    def project(self, x0: Images, x: Images, eps: float) -> Images:
        """The closest point of ball and box together (Croce and Hein, 2021, Mind the box).

        With room r_i up to the wall that d_i points to, the closest point keeps d_i's sign and has
        |d'_i| = min(max(|d_i| - level, 0), r_i), with the smallest level >= 0 whose sum is at most eps.
        """
        d = x - x0
        size, room = d.abs().flatten(1), torch.where(d > 0, 1 - x0, x0).clamp(min=0).flatten(1)
        kept = _soften(size, room, _level(size, room, eps)).view_as(d)
        inside = _wide(self.length(d) <= eps)
        return torch.where(inside, x, x0 + d.sign() * kept).clamp(0, 1)

    def __str__(self) -> str:
        return self.name if self == L1() else f"{self.name}({self.density})"


Rows = Float[Tensor, "n d"]


def _soften(size: Rows, room: Rows, level: Float[Tensor, "n 1"]) -> Rows:
    return torch.minimum((size - level).clamp(min=0), room)


def _level(size: Rows, room: Rows, eps: float) -> Float[Tensor, "n 1"]:
    """The smallest level >= 0 with sum_i min(max(size_i - level, 0), room_i) <= eps, in every row.

    The sum falls with the level, so halving finds it, down to the last bit and always from the allowed side.
    """
    low, high = torch.zeros_like(size[:, :1]), size.amax(dim=1, keepdim=True)
    high = torch.where(_soften(size, room, low).sum(dim=1, keepdim=True) <= eps, low, high)
    for _ in range(8 - round(math.log2(torch.finfo(size.dtype).eps))):
        level = (low + high) / 2
        over = _soften(size, room, level).sum(dim=1, keepdim=True) > eps
        low, high = torch.where(over, level, low), torch.where(over, high, level)
    return high


def _wide(per_example: Tensor) -> Tensor:
    return per_example[:, None, None, None]


def _sign(g: Tensor) -> Tensor:
    """sign(g), but NaN where g is not finite: torch says 0 for NaN, so a broken gradient would look flat."""
    return g.sign().add_(0 * g)


def _unit(norm: Norm, d: Images) -> Images:
    """d scaled to length one; zero stays zero."""
    return d / _wide(norm.length(d).clamp(min=torch.finfo(d.dtype).tiny))


NORMS: dict[str, type[Norm]] = {"Linf": Linf, "L2": L2, "L1": L1}
EVERY_NORM = frozenset(NORMS.values())

_ALIASES = {"linf": "Linf", "inf": "Linf", "np.inf": "Linf", "l2": "L2", "2": "L2", "l1": "L1", "1": "L1"}


def norm_named(text: object) -> Norm:
    """The norm people mean by "Linf", "linf", "l_inf", "inf", float("inf"), "L2", 2, "L1", 1.

    "L1(0.1)" is L1 with a density of 0.1.
    """
    written = (f"{text:g}" if isinstance(text, float) else str(text)).strip().lower().replace("_", "")
    parts = re.fullmatch(r"([^()]*)(?:\(([^()]*)\))?", written)
    word, density = parts.groups() if parts else (written, None)
    name = _ALIASES.get(word)
    if name is None:
        hint = nearest(word.capitalize(), NORMS)
        raise ValueError(f"unknown norm {text!r} (known: {', '.join(NORMS)}){hint}")
    if density is None:
        return NORMS[name]()
    if name != "L1":
        raise ValueError(f"norm {text!r}: only L1 has a density; write {name}")
    share = fraction(density)
    if not 0 < share <= 1:
        raise ValueError(f"norm {text!r}: expected a density above 0 and up to 1, such as L1(0.05)")
    return L1(density=float(share))
