"""Square: random search with square windows, the stage of AutoAttack that needs no gradient.

Linf: a move sets each channel of a window to x + eps or x - eps. L2 and L1: a move adds a pattern in one
window, with budget taken from another one. The pattern of side s is positive in the upper half of the window
and negative in the lower half (left and right if transposed). Each half is a pyramid: sum_{j >= r} 1 / (j +
1)^k at Chebyshev distance r from its centre, where j ends at its edge and k is 2 in L2 and 4 in L1.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, ClassVar, TypeAlias, final

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from allrounder.attacks.base import select_rows
from allrounder.attacks.losses import margin
from allrounder.attacks.search.base import QueryResult, RoundInit, Search, State
from allrounder.config.fields import PositiveInt, Ratio, frozen_config
from allrounder.rng import Rng
from allrounder.threats.norms import L2, Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Images, Labels, PerExampleBool

Moves: TypeAlias = Int[Tensor, "n columns"]
"""A move of each example: the side of a window, its top and left, and the sign of each channel. In L2 and
L1, before the signs: top and left of the window to clear, and twice the index of the side, plus 1 if
transposed."""
HALVE_P_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The moves, counted from 0, after which p is halved; each one ends a phase."""
L1_MARGIN = 1e-6
"""The share of the radius that is not used in L1, so that rounding cannot move an image out of the ball."""
MIN_LENGTH = 1e-12
"""A lower bound for lengths that are divided by."""


@final
@frozen_config
class Square(Search):
    """Random search: change one window of an image per query, and keep the change if it raises the margin.

    A window of side s = round(sqrt(p * h * w)) at a random place gets new content. p is halved after the
    moves in HALVE_P_AFTER, whatever the number of queries, as in AutoAttack. Only logits are used, so masked
    gradients do not protect a network. Andriushchenko et al., 2020, Square attack: a query-efficient
    black-box adversarial attack via random search.
    """

    is_white_box: ClassVar[bool] = False
    needs_grad_cycle: ClassVar[tuple[bool, ...]] = (False,)

    queries: PositiveInt = 5000
    """The number of windows to try; the start is one more query, as in AutoAttack."""
    p: Annotated[Ratio, Field(gt=0, le=1)] = 0.8
    """The share of pixels in the first windows."""
    restarts: PositiveInt = 1
    """The number of searches, including the first."""

    @override
    def address(self) -> str:
        return f"Square(queries={self.queries}, p={self.p}, restarts={self.restarts})"

    @override
    def num_rounds(self, classes: int) -> int:
        return self.restarts

    @override
    def describe_budget(self, classes: int) -> str:
        restarts = f", {self.restarts} restarts" if self.restarts > 1 else ""
        return f"{self.label()}: {self.queries} queries{restarts}"

    def begin(self, round_init: RoundInit) -> State:
        """Draw the start, and the places and signs of all windows; nothing is drawn later."""
        x, threat, rng = round_init.x.contiguous(), round_init.threat, round_init.rng
        if round_init.natural.shape[1] < 2:
            raise ValueError("Square compares two classes, the network has one; give it two logits or more")
        start = random_stripes if isinstance(threat.norm, Linf) else random_tiles
        return {
            "x": x,
            "y": round_init.y,
            "best": start(x, threat, rng.fold_in("start")),
            "margin": torch.full_like(x[:, 0, 0, 0], float("-inf")),
            "query": torch.zeros_like(round_init.y),
            "moves": self._plan_moves(x, threat.norm, rng.fold_in("moves")),
        }

    def _plan_moves(self, x: Images, norm: Norm, rng: Rng) -> Int[Tensor, "n moves columns"]:
        """The `Moves` of all queries."""
        n, c, h, w = x.shape
        num_windows, num_patterns = (1, 0) if isinstance(norm, Linf) else (2, 1)
        # Differs: released code uses the same places and transpositions, and in Linf the same signs, for the
        # whole batch; here an example does not depend on the others. ADR 0008.
        u = rng.uniform(torch.empty(n, self.queries, 2 * num_windows + num_patterns + c, device=x.device))
        places = u[:, :, : 2 * num_windows]
        transposed = u[:, :, 2 * num_windows : -c] < 0.5
        positive = u[:, :, -c:] < 0.5
        phase = torch.bucketize(torch.arange(self.queries), torch.tensor(HALVE_P_AFTER)).to(x.device)
        side = torch.tensor(window_sides(h, w, self.p, norm), device=x.device)[phase]
        # The paper includes the last place, size - side; released code never uses it.
        corners = places * torch.stack([h - side, w - side] * num_windows, dim=1)
        pattern = 2 * phase[:, None] + transposed
        signs = torch.where(positive, 1, -1)
        columns = side[:, None].expand(n, -1, 1), corners, pattern, signs
        return torch.cat([column.to(torch.int16) for column in columns], dim=2)

    def ask(self, state: State, threat: Threat) -> Images:
        """The best image so far with one window changed; the first query is the start."""
        x, best, query = state["x"], state["best"], state["query"]
        n, c, h, w = x.shape
        number = (query - 1).clamp(0, self.queries - 1)
        move = state["moves"][torch.arange(n, device=x.device), number].long()
        if isinstance(threat.norm, Linf):
            # At the first query the window is empty.
            (window,) = window_masks(move[:, 0] * (query > 0), move[:, 1:3], x)
            signs = move[:, -c:, None, None].to(x.dtype)
            return threat.project(x, torch.addcmul(best, signs, window, value=2 * threat.eps))
        changed = move_windows(x, best, threat, move, window_sides(h, w, self.p, threat.norm))
        return changed if bool(query.all()) else select_rows(query > 0, changed, best)

    def tell(self, state: State, result: QueryResult, threat: Threat) -> State:
        """Keep the image if its margin is higher; this includes the first misclassified image."""
        new_margin = margin(result.logits, state["y"])
        better = new_margin > state["margin"]
        return state | {
            "best": select_rows(better, result.x, state["best"]),
            "margin": torch.where(better, new_margin, state["margin"]),
            "query": state["query"] + 1,
        }

    @override
    def is_finished(self, state: State) -> PerExampleBool:
        return state["query"] > self.queries

    @override
    def num_queries(self) -> int:
        return self.queries + 1

    @override
    def skip_ahead(self, state: State, steps: Labels) -> State | None:
        return state | {"query": state["query"] + steps}

    @override
    def accepted(self, before: State, after: State) -> PerExampleBool:
        return after["margin"] > before["margin"]


@cache
def window_sides(h: int, w: int, p: float, norm: Norm) -> tuple[int, ...]:
    """The side of the window in each phase, at most that of the image; in L2 and L1 odd and at least 3."""
    rounded = [round((p / 2**phase * h * w) ** 0.5) for phase in range(len(HALVE_P_AFTER) + 1)]
    sides = [max(s, 1) if isinstance(norm, Linf) else max(s, 3) // 2 * 2 + 1 for s in rounded]
    return tuple(min(s, h, w) for s in sides)


def random_stripes(x: Images, threat: Threat, rng: Rng) -> Images:
    """The start in Linf: each column of each channel is x + eps or x - eps."""
    u = rng.uniform(torch.empty_like(x[:, :, :1], dtype=torch.float32))
    return (x + threat.eps * torch.where(u < 0.5, 1, -1).to(x.dtype)).clamp(0, 1)


def move_windows(x: Images, best: Images, threat: Threat, move: Moves, sides: tuple[int, ...]) -> Images:
    """The images after one move in L2 or L1, projected into the threat.

    With d = best - x, each channel of the filled window gets the direction d / |d| + sign * pattern and the
    length l with l^p = |d in both windows|^p + (eps^p - |d|^p) / c, where p = 2 in L2 and 1 in L1: the
    content of both windows and the unused budget. The cleared window becomes zero outside the filled one.
    """
    c, d = x.shape[1], best - x
    p = 2 if isinstance(threat.norm, L2) else 1
    filled, cleared = window_masks(move[:, 0], move[:, 1:5], x)
    either = torch.maximum(filled, cleared)
    size = _abs_power(d, p)
    # In L1 slightly less than the radius, so that rounding alone does not require a projection.
    eps = threat.eps if p == 2 else _l1_radius(threat) * (1 - L1_MARGIN)
    unused = eps**p - size.sum(dim=(1, 2, 3), keepdim=True)
    length = _root(((size * either).sum(dim=(2, 3), keepdim=True) + unused / c).clamp_(min=0), p)
    old_length = _root((size * filled).sum(dim=(2, 3), keepdim=True), p).clamp_(min=MIN_LENGTH)
    signs = move[:, -c:, None, None].to(x.dtype)
    new = (filled / old_length).mul_(d).addcmul_(signs, _place_patterns(move, sides, x, p))
    # In L1 each channel gets c times its share, as in released code; the projection removes the excess.
    scale = (length if p == 2 else c * length) / _safe_length(new, p, (2, 3))
    return _project_into(threat, x, d.addcmul_(d, either, value=-1).addcmul_(new, scale))


def random_tiles(x: Images, threat: Threat, rng: Rng) -> Images:
    """The start: a grid of patterns with a fifth of the image's side, with a random sign for each channel."""
    n, c, h, w = x.shape
    p = 2 if isinstance(threat.norm, L2) else 1
    s = max(min(h, w) // 5, 1)
    num_rows, num_columns = h // s, w // s
    # Differs: released code puts the first pattern at (h - 5 s) // 2, which fails for sizes such as 24. Here
    # the grid is centred, which gives the same place for 28, 32, 64 and 224. ADR 0008.
    top, left = (h - num_rows * s) // 2, (w - num_columns * s) // 2
    u = rng.uniform(torch.empty(n, num_rows, num_columns, c + 1, device=x.device))
    signs = torch.where(u < 0.5, 1, -1)[..., :c, None, None]
    transposed = (u[..., c] < 0.5).long()
    tiles = signs * _pattern_table((s,), p, x.dtype, x.device)[0, transposed][:, :, :, None]
    d = torch.zeros_like(x)
    grid = d[:, :, top : top + num_rows * s, left : left + num_columns * s]
    grid.copy_(tiles.permute(0, 3, 1, 4, 2, 5).reshape(grid.shape))
    return _project_into(threat, x, d)


def window_masks(
    side: Int[Tensor, " n"], corners: Int[Tensor, "n corners"], x: Images
) -> list[Float[Tensor, "n 1 h w"]]:
    """Masks that are 1 in the windows and 0 elsewhere; each two columns of `corners` (top, left) give one."""
    h, w = x.shape[2:]
    offset = torch.arange(max(h, w), device=x.device) - corners[:, :, None]
    within = ((offset >= 0) & (offset < side[:, None, None])).to(x.dtype)
    return [
        within[:, i, None, :h, None] * within[:, i + 1, None, None, :w] for i in range(0, corners.shape[1], 2)
    ]


def _place_patterns(move: Moves, sides: tuple[int, ...], x: Images, p: int) -> Float[Tensor, "n 1 h w"]:
    """The pattern of each example in the window to fill, and zero elsewhere."""
    side, corner, pattern = move[:, 0], move[:, 1:3], move[:, 5]
    table = _pattern_table(sides, p, x.dtype, x.device)
    h, w = x.shape[2:]
    width = table.shape[-1]
    # Cells beyond an example's side repeat its last one, which writes the same number twice.
    cells = torch.arange(int(side.max()), device=x.device).minimum(side[:, None] - 1)
    source = pattern[:, None] * width**2 + cells * width
    target = (corner[:, :1] + cells) * w + corner[:, 1:]
    source, target = (index[:, :, None] + cells[:, None, :] for index in (source, target))
    flat = torch.zeros_like(x[:, 0]).flatten(1)
    return flat.scatter_(1, target.flatten(1), table.take(source).flatten(1)).view(-1, 1, h, w)


@cache
def _pattern_table(
    sides: tuple[int, ...], p: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "phases 2 width width"]:
    """The patterns of all sides, plain and transposed, each padded with zeros to the largest side."""
    width = max(sides)
    table = torch.zeros(len(sides), 2, width, width, dtype=torch.float64)
    for i, s in enumerate(sides):
        upper, lower = pyramid(s // 2, s, p), pyramid(s - s // 2, s, p)
        pattern = torch.cat([upper / _safe_length(upper, p, (0, 1)), -lower / _safe_length(lower, p, (0, 1))])
        pattern /= _safe_length(pattern, p, (0, 1))
        table[i, 0, :s, :s] = pattern
        table[i, 1, :s, :s] = pattern.T
    return table.to(device, dtype)


def pyramid(h: int, w: int, p: int) -> Float[Tensor, "h w"]:
    """One half of a pattern, before scaling."""
    rows, columns = (torch.arange(size).sub(size // 2).abs() for size in (h, w))
    steps = 1 / torch.arange(1, max(h, w) // 2 + 2, dtype=torch.float64) ** (2 if p == 2 else 4)
    return steps.flip(0).cumsum(0).flip(0)[torch.maximum(rows[:, None], columns[None, :])]


def _project_into(threat: Threat, x: Images, d: Images) -> Images:
    """Bring x + d into the threat: L2 scales d to the full budget and clips; L1 takes the closest point."""
    if isinstance(threat.norm, L2):
        return torch.addcmul(x, d, threat.eps / _safe_length(d, 2, (1, 2, 3))).clamp_(0, 1)
    radius = _l1_radius(threat)
    moved = x + d
    projected = moved.clamp(0, 1)
    # Where clipping to the box already gives a point in the ball, it is the closest one.
    outside = threat.norm.length(projected - x) > radius
    if outside.any():
        projected[outside] = threat.norm.project(x[outside], moved[outside], radius)
    return projected


def _l1_radius(threat: Threat) -> float:
    """The radius in L1, less a margin; the rounding error does not shrink for budgets below about 3."""
    return max(threat.eps - L1_MARGIN * max(threat.eps, 3), 0.0)


def _abs_power(d: Tensor, p: int) -> Tensor:
    return d * d if p == 2 else d.abs()


def _root(size: Tensor, p: int) -> Tensor:
    return size.sqrt() if p == 2 else size


def _safe_length(d: Tensor, p: int, dims: tuple[int, ...]) -> Tensor:
    """The length over `dims`, at least MIN_LENGTH, so that it can be divided by."""
    return _root(_abs_power(d, p).sum(dim=dims, keepdim=True), p).clamp_(min=MIN_LENGTH)
