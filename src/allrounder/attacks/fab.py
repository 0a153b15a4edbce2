"""FAB, the fast adaptive boundary attack: searches for the closest misclassified image.

A step needs the shortest displacement from an image to a plane inside the box, exact and per example.
The plane is c + w.d = 0. Coordinate i moves towards the plane by m_i, with 0 <= m_i <= r_i, where r_i is the
distance to the bound of the box, and sum_i |w_i| m_i = |c|. The shortest d has
    Linf  m_i = min(level, r_i)
    L2    m_i = min(level * |w_i|, r_i)
    L1    m_i = r_i for the largest |w_i|, a part of r_i for the next one, and 0 for all others.
If the plane does not intersect the box, m_i = r_i for all i.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from allrounder.attacks.base import select_rows
from allrounder.attacks.search.base import QueryResult, RoundInit, Search, State
from allrounder.config.fields import FiniteFloat, NonNegativeInt, PositiveInt, Share, frozen_config
from allrounder.rng import Rng
from allrounder.threats.norms import L1, L2, Linf, Norm, expand
from allrounder.threats.threat import Threat
from allrounder.types import Images, Logits, PerExample, PerExampleBool

Rows = Float[Tensor, "n d"]
Column = Float[Tensor, "n 1"]

MIN_LENGTH = 1e-8
"""A lower bound for the lengths of displacements, which are divided by."""
INITIAL_TOPK = 32
"""The coordinates that an L1 displacement tries first; sorting all takes 15 times as long."""


@final
@frozen_config
class Fab(Search):
    """FAB and its targeted form FAB-T: steps towards the decision boundary, linearised at the current point.

    With df = z_t - z_y and its gradient w at the point p, the boundary is the plane df + w.(u - p) = 0. Let
    d1 and d2 be the shortest displacements from p and from x to the plane inside the box. Then
        a  = min(|d1| / (|d1| + |d2|), alpha_max)
        p' = clip((1 - a) (p + eta d1) + a (x + eta d2)),
    and where p' is misclassified, the next step starts at x + beta (p' - x). The threat matters only for
    random starts. Croce and Hein, 2020, Minimally distorted adversarial examples with a fast adaptive
    boundary attack. A step takes a query with a gradient for the plane (one gradient per wrong class if
    untargeted), and a forward pass to classify the new point.
    """

    needs_grad_cycle: ClassVar[tuple[bool, ...]] = (True, False)

    steps: PositiveInt = 100
    """Steps per round."""
    targets: NonNegativeInt = 9
    """The number of target classes, by descending natural logit; 0 aims at the closest class in each step."""
    restarts: PositiveInt = 1
    """Starts per target: the image itself, then random points at a distance of half the budget."""
    alpha_max: Share = 0.1
    """The largest weight of the image itself, which keeps the search close to it."""
    eta: Annotated[FiniteFloat, Field(ge=1)] = 1.05
    """The overshoot: displacements are multiplied by it."""
    beta: Share = 0.9
    """The factor of the perturbation after a misclassified point (backward step)."""

    @override
    def address(self) -> str:
        return (
            f"Fab(steps={self.steps}, targets={self.targets}, restarts={self.restarts}, "
            f"alpha_max={self.alpha_max}, eta={self.eta}, beta={self.beta})"
        )

    @override
    def num_rounds(self, classes: int) -> int:
        return self.restarts * min(self.targets or 1, classes - 1)

    @override
    def num_grads(self, classes: int) -> int:
        return 1 if self.targets else classes - 1

    @override
    def label(self) -> str:
        return "fab-t" if self.targets else "fab"

    @override
    def describe_budget(self, classes: int) -> str:
        targets = f", {self.num_rounds(classes) // self.restarts} targets" if self.targets else ""
        restarts = f", {self.restarts} restarts" if self.restarts > 1 else ""
        return f"{self.label()}: {self.steps} steps{targets}{restarts}"

    def begin(self, round_init: RoundInit) -> State:
        """Start at the image, or at a random point near it."""
        x, y = round_init.x, round_init.y
        target, restart = divmod(round_init.round, self.restarts)
        others = round_init.natural.scatter(1, y[:, None], float("-inf"))
        ranked = others.argsort(dim=1, descending=True, stable=True)[:, :-1]
        return {
            "x": x,
            "y": y,
            "targets": ranked[:, target : target + 1] if self.targets else ranked,
            "point": _random_start(x, round_init.threat, round_init.rng) if restart else x.clone(),
            "steps_taken": torch.zeros_like(y),
            "steps_checked": torch.zeros_like(y),
            "best_length": torch.full_like(x[:, 0, 0, 0], float("inf")),
        }

    @override
    def ask(self, state: State, threat: Threat) -> Images:
        return state["point"]

    def loss(self, state: State, logits: Logits) -> Float[Tensor, "m n"]:
        """z_t - z_y for every target class t."""
        return (logits.gather(1, state["targets"]) - logits.gather(1, state["y"][:, None])).T

    def tell(self, state: State, result: QueryResult, threat: Threat) -> State:
        """Take a step (after a query with a gradient), or a backward step from a misclassified point."""
        x, point = state["x"], state["point"]
        if result.gradient is None:
            length = threat.norm.length(point - x)
            is_new = state["steps_checked"] < state["steps_taken"]
            fooled = (result.logits.argmax(1) != state["y"]) & is_new
            return state | {
                "point": select_rows(fooled, x + self.beta * (point - x), point),
                "steps_checked": state["steps_taken"].clone(),
                "best_length": torch.minimum(state["best_length"], length.where(fooled, float("inf"))),
            }
        df, w = _closest_plane(result, threat.norm)
        moving = state["steps_taken"] < self.steps
        new_point = self._move(x, point, df, w, threat.norm)
        # Examples whose search is over stay where they are.
        new_point = new_point if moving.all() else select_rows(moving, new_point, point)
        return state | {"point": new_point, "steps_taken": state["steps_taken"] + moving}

    @override
    def is_finished(self, state: State) -> PerExampleBool:
        return state["steps_checked"] == self.steps

    @override
    def num_queries(self) -> int:
        return 2 * self.steps

    def _move(self, x: Images, point: Images, df: PerExample, w: Images, norm: Norm) -> Images:
        d1 = displace(point, w, df, norm)
        d2 = displace(x, w, df + (w * (x - point)).sum(dim=(1, 2, 3)), norm)
        length1, length2 = (norm.length(d).clamp(min=MIN_LENGTH) for d in (d1, d2))
        a = expand((length1 / (length1 + length2)).clamp(max=self.alpha_max))
        return ((1 - a) * (point + self.eta * d1) + a * (x + self.eta * d2)).clamp(0, 1)


def _closest_plane(result: QueryResult, norm: Norm) -> tuple[PerExample, Images]:
    """df and w of the closest plane among those of the target classes."""
    df, w = result.loss, result.gradient
    assert df is not None and w is not None, "FAB needs gradients"
    if len(df) == 1:
        return df[0], w[0].contiguous()
    distances = torch.stack([plane_distance(w_t, df_t, norm) for w_t, df_t in zip(w, df, strict=True)])
    # A NaN is chosen, not skipped, so that it is detected.
    closest = distances.masked_fill(distances.isnan(), -1).argmin(dim=0)
    rows = torch.arange(len(closest), device=closest.device)
    return df[closest, rows], w[closest, rows]


def _random_start(x: Images, threat: Threat, rng: Rng) -> Images:
    """A point in a random direction from x, at a distance of half the budget, clipped to the box."""
    rng = rng.fold_in("start")
    d = 2 * rng.uniform(x) - 1 if isinstance(threat.norm, Linf) else rng.normal(x)
    length = threat.norm.length(d).clamp(min=torch.finfo(d.dtype).tiny)
    return (x + threat.eps / 2 * d / expand(length)).clamp(0, 1)


def displace(x: Images, w: Images, c: PerExample, norm: Norm) -> Images:
    """The displacement d of minimal norm with c + w.d = 0 and x + d in the box; m_i = r_i if there is none.

    Only the ratio of w and c matters. The result is zero where w or c is zero, and NaN where w is NaN.
    """
    scale = w.abs().amax(dim=(1, 2, 3)).clamp(min=_tiny(w))
    size = (w.abs() / expand(scale)).flatten(1)
    need = (c.abs() / scale)[:, None]
    towards = -c.sign()[:, None] * w.flatten(1).sign()
    # The bound is 1 or 0, and the room is zero where w is zero. torch.where would take ten times as long.
    room = ((towards.clamp(min=0) - x.flatten(1)) * towards).clamp(min=0)
    match norm:
        case Linf():
            amount = torch.minimum(_solve_level(size, room, need), room)
        case L2():
            kink = room / size.clamp(min=_tiny(w))
            amount = torch.minimum(size * torch.minimum(_solve_level(size * size, kink, need), kink), room)
        case L1():
            amount = _fill_largest(size, room, need, INITIAL_TOPK)
        case _:
            raise AssertionError(f"displacements are implemented for Linf, L2 and L1, not for {norm}")
    return (amount * towards).view_as(x)


def plane_distance(w: Images, c: PerExample, norm: Norm) -> PerExample:
    """The distance to the plane c + w.d = 0, ignoring the box: |c| / ||w||, in the dual norm."""
    dual = {"Linf": L1(), "L1": Linf()}.get(norm.name, norm)
    return c.abs() / dual.length(w).clamp(min=_tiny(w))


def _solve_level(weight: Rows, kink: Rows, need: Column) -> Column:
    """The level with sum_i weight_i * min(level, kink_i) = need; infinite if no level is enough.

    The sum is concave and piecewise linear, so Newton's method converges from below. A row that has converged
    does not change while others continue.
    """
    gain, work = torch.empty_like(weight), torch.empty_like(weight)
    level = need / weight.sum(dim=1, keepdim=True).clamp(min=_tiny(weight))
    tolerance = 8 * torch.finfo(weight.dtype).eps * need
    while True:
        torch.minimum(kink, level, out=gain)
        torch.gt(kink, level, out=work)  # as floats, which multiply six times as fast as booleans
        missing = need - gain.mul_(weight).sum(dim=1, keepdim=True)
        slope = work.mul_(weight).sum(dim=1, keepdim=True)
        higher = torch.where(missing > tolerance, level + missing / slope, level)
        if not bool((higher > level).any()):
            return level
        level = higher


def _fill_largest(size: Rows, room: Rows, need: Column, k: int) -> Rows:
    """Use the room in order of descending size until the need is met; sorts only k coordinates at first."""
    largest, index = size.topk(min(k, size.shape[1]), dim=1)
    top_room = room.gather(1, index)
    gain = largest * top_room
    before = gain.cumsum(dim=1) - gain
    amount = torch.minimum((need - before).clamp(min=0) / largest.clamp(min=_tiny(size)), top_room)
    filled = torch.zeros_like(size).scatter_(1, index, amount)
    unmet = (gain.sum(dim=1, keepdim=True) < need).squeeze(1).nonzero().squeeze(1)
    if len(unmet) and k < size.shape[1]:
        filled[unmet] = _fill_largest(size[unmet], room[unmet], need[unmet], 8 * k)
    return filled


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
