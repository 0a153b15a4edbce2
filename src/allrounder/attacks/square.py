"""Square: random search with square windows, the stage of AutoAttack that needs no gradient."""

from __future__ import annotations

from functools import cache
from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from allrounder.attacks.losses import margin
from allrounder.attacks.search.base import QueryResult, RoundInit, Search, State
from allrounder.attacks.square_patches import WindowMove, move_windows, random_tiles, window_masks
from allrounder.config.fields import PositiveInt, Ratio, frozen_config
from allrounder.rng import Rng
from allrounder.threats.norms import Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Images, Labels, PerExampleBool

HALVE_P_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The moves, counted from 0, after which p is halved; each one ends a phase."""


@final
@frozen_config
class Square(Search):
    """Random search: change one window of an image per query, and keep the change if it raises the margin.

    A window of side s = round(sqrt(p * h * w)) at a random place gets new content. p is halved after the
    moves in HALVE_P_AFTER, whatever the number of queries, as in AutoAttack. Linf: each channel of the window
    becomes x + eps or x - eps; the start consists of vertical stripes of these. L2 and L1: see
    square_patches.py. Only logits are used, so masked gradients do not protect a network. Andriushchenko et
    al., 2020, Square attack: a query-efficient black-box adversarial attack via random search.
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
        """The columns of each move: the side of the window, its top and left, and the sign of each channel.

        In L2 and L1 there are two windows, and the index of the pattern comes before the signs.
        """
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
        side, signs = move[:, 0], move[:, -c:, None, None].to(x.dtype)
        if isinstance(threat.norm, Linf):
            # At the first query the window is empty.
            (window,) = window_masks(side * (query > 0), move[:, 1:3], x)
            return threat.project(x, torch.addcmul(best, signs, window, value=2 * threat.eps))
        windows = WindowMove(side, move[:, 1:5], move[:, 5], signs)
        changed = move_windows(x, best, threat, windows, window_sides(h, w, self.p, threat.norm))
        return changed if bool(query.all()) else torch.where((query > 0)[:, None, None, None], changed, best)

    def tell(self, state: State, result: QueryResult, threat: Threat) -> State:
        """Keep the image if its margin is higher; this includes the first misclassified image."""
        new_margin = margin(result.logits, state["y"])
        better = new_margin > state["margin"]
        return state | {
            "best": torch.where(better[:, None, None, None], result.x, state["best"]),
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
