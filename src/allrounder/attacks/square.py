"""Square: random search by repainting windows, the part of AutoAttack that needs no gradient."""

from __future__ import annotations

from functools import cache
from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from allrounder.attacks.losses import margin
from allrounder.attacks.search.base import Answer, Question, Search, State
from allrounder.attacks.square_patches import Windows, exchange, inside, tiles
from allrounder.config.fields import Count, Ratio, value
from allrounder.rng import Draws
from allrounder.threats.norms import EVERY_NORM, Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Images, Labels, PerExampleBool

CHANGES = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The last moves, counted from 0, of all phases but the last; p is halved after each."""


@final
@value
class Square(Search):
    """Random search: change one window of an image at a time, and keep what raises the margin.

    A window of side s = round(sqrt(p * h * w)) at a random place gets new content; p is halved after the
    moves in CHANGES, however many queries there are, as AutoAttack does it. Linf: every channel of the window
    becomes x + eps or x - eps; the start is vertical stripes of them. L2 and L1: see patches.py. Only logits
    are seen, so masked gradients do not protect a network. Andriushchenko et al., 2020, Square attack: a
    query-efficient black-box adversarial attack via random search.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM
    cycle: ClassVar[tuple[bool, ...]] = (False,)

    queries: Count = 5000
    """The number of windows to try; the start is one query more, as in AutoAttack."""
    p: Annotated[Ratio, Field(gt=0, le=1)] = 0.8
    """The share of pixels in the first windows."""
    restarts: Count = 1
    """The number of searches, the first one included."""

    def address(self) -> str:
        """The text that selects its random numbers."""
        return f"Square(queries={self.queries}, p={self.p}, restarts={self.restarts})"

    def rounds(self, classes: int) -> int:
        """One for each search."""
        return self.restarts

    def begin(self, question: Question) -> State:
        """The start, and the place and signs of every window to come: nothing is drawn later."""
        x, threat, draws = question.x.contiguous(), question.threat, question.draws
        if question.natural.shape[1] < 2:
            raise ValueError("Square compares two classes, the network has one; give it two logits or more")
        start = stripes if isinstance(threat.norm, Linf) else tiles
        return {
            "x": x,
            "y": question.y,
            "best": start(x, threat, draws.at("start")),
            "margin": torch.full_like(x[:, 0, 0, 0], float("-inf")),
            "asked": torch.zeros_like(question.y),
            "plan": self._plan(x, threat.norm, draws.at("moves")),
        }

    def _plan(self, x: Images, norm: Norm, draws: Draws) -> Int[Tensor, "n moves columns"]:
        """What every move does: the side of its window, top and left of it, the sign of each channel. In L2
        and L1 there are two windows, and before the signs comes the number of the pattern."""
        (n, c, h, w), (windows, turns) = x.shape, (1, 0) if isinstance(norm, Linf) else (2, 1)
        # Differs: released code shares places and turns, and in Linf signs, in a batch; here an example does
        # not depend on its neighbours. ADR 0008.
        u = draws.uniform(torch.empty(n, self.queries, 2 * windows + turns + c, device=x.device))
        places, turned, heads = u[:, :, : 2 * windows], u[:, :, 2 * windows : -c] < 0.5, u[:, :, -c:] < 0.5
        phase = torch.bucketize(torch.arange(self.queries), torch.tensor(CHANGES)).to(x.device)
        side = torch.tensor(sides(h, w, self.p, norm), device=x.device)[phase]
        # The last place, size - side, is in the paper, but released code never takes it.
        corners = places * torch.stack([h - side, w - side] * windows, dim=1)
        pattern, signs = 2 * phase[:, None] + turned, torch.where(heads, 1, -1)
        columns = side[:, None].expand(n, -1, 1), corners, pattern, signs
        return torch.cat([column.to(torch.int16) for column in columns], dim=2)

    def ask(self, state: State, threat: Threat) -> Images:
        """The best image so far with one window changed; at first the start."""
        x, best, asked = state["x"], state["best"], state["asked"]
        (n, c, h, w), number = x.shape, (asked - 1).clamp(0, self.queries - 1)
        move = state["plan"][torch.arange(n, device=x.device), number].long()
        side, signs = move[:, 0], move[:, -c:, None, None].to(x.dtype)
        if isinstance(threat.norm, Linf):
            # At the start the window is empty.
            (window,) = inside(side * (asked > 0), move[:, 1:3], x)
            return threat.project(x, torch.addcmul(best, signs, window, value=2 * threat.eps))
        windows = Windows(side, move[:, 1:5], move[:, 5], signs)
        changed = exchange(x, best, threat, windows, sides(h, w, self.p, threat.norm))
        return changed if bool(asked.all()) else torch.where((asked > 0)[:, None, None, None], changed, best)

    def tell(self, state: State, answer: Answer, threat: Threat) -> State:
        """Keep the image if its margin is higher; the first one misclassified always is."""
        found = margin(answer.logits, state["y"])
        better = found > state["margin"]
        best = torch.where(better[:, None, None, None], answer.x, state["best"])
        raised = torch.where(better, found, state["margin"])
        return state | {"best": best, "margin": raised, "asked": state["asked"] + 1}

    def finished(self, state: State) -> PerExampleBool:
        """Once there are answers about the start and all windows."""
        return state["asked"] > self.queries

    def questions(self) -> int:
        """The start and all windows."""
        return self.queries + 1

    def ahead(self, state: State, steps: Labels) -> State | None:
        """With the next windows, should none of those before raise the margin."""
        return state | {"asked": state["asked"] + steps}

    def moved(self, before: State, after: State) -> PerExampleBool:
        """Where the margin was raised."""
        return after["margin"] > before["margin"]


@cache
def sides(h: int, w: int, p: float, norm: Norm) -> tuple[int, ...]:
    """The sides of the windows, phase by phase; in L2 and L1 odd and 3 or more, where the image is larger."""
    plain = [round((p / 2**phase * h * w) ** 0.5) for phase in range(len(CHANGES) + 1)]
    wanted = [max(s, 1) if isinstance(norm, Linf) else max(s, 3) // 2 * 2 + 1 for s in plain]
    return tuple(min(s, h, w) for s in wanted)


def stripes(x: Images, threat: Threat, draws: Draws) -> Images:
    """The start in Linf: x + eps or x - eps, one of them along each column of each channel."""
    u = draws.uniform(torch.empty_like(x[:, :, :1], dtype=torch.float32))
    return (x + threat.eps * torch.where(u < 0.5, 1, -1).to(x.dtype)).clamp(0, 1)
