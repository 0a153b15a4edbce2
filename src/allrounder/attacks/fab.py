"""FAB, the fast adaptive boundary attack: a search for the closest image that is misclassified."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias, final

import torch
from pydantic import Field
from torch import Tensor

from allrounder.attacks.hyperplane import displace, gap
from allrounder.attacks.search import Answer, Question, Search, State
from allrounder.norms import L1, L2, Linf, Norm
from allrounder.rng import Draws
from allrounder.threats import Threat
from allrounder.types import Images, Logits, PerExample, PerExampleBool
from allrounder.values import Count, Number, Share, Whole, value

Crossing: TypeAlias = Literal["return", "reuse"]

FLOOR = 1e-8
"""The least length that a displacement counts for."""


@final
@value
class Fab(Search):
    """FAB and its targeted form FAB-T: step on the decision boundary as seen from the current point.

    With df = z_t - z_y and its gradient w at the point p, the boundary is the plane df + w.(u - p) = 0. With
    the shortest ways d1 from p and d2 from x to it inside the box (see hyperplane.py),
        a  = min(|d1| / (|d1| + |d2|), alpha_max)
        p' = clip((1 - a) (p + eta d1) + a (x + eta d2)),
    and where p' is misclassified, the next step is taken from x + beta (p' - x). The threat plays no part in
    it, but for random starts. Croce and Hein, 2020, Minimally distorted adversarial examples with a fast
    adaptive boundary attack.

    A step takes one pass: the one that judges p' also shows the next plane. It takes a second one after a
    crossing, and most steps cross, to see the boundary from the point stepped back to; crossing = "reuse"
    does without. Where no class is targeted, every further class takes a pass.
    """

    norms: ClassVar[frozenset[type[Norm]]] = frozenset({Linf, L2, L1})

    steps: Count = 100
    """Steps per round."""
    targets: Whole = 9
    """Classes to aim at, by falling natural logit, one per round; 0 goes for the closest at every step."""
    restarts: Count = 1
    """Starts per target: the image itself, then random points at half the budget from it."""
    alpha_max: Share = 0.1
    """The largest weight of the image itself, which keeps the search close to it."""
    eta: Annotated[Number, Field(ge=1)] = 1.05
    """How far to go beyond the plane."""
    beta: Share = 0.9
    """How much of the way to keep after crossing the boundary."""
    crossing: Crossing = "return"
    """Where to look from after crossing it: return (from the point stepped back to, as published) or reuse
    (from beyond, as already seen; half the passes)."""

    def rounds(self, classes: int) -> int:
        """One per target and start; there are no more targets than other classes."""
        return self.restarts * min(self.targets or 1, classes - 1)

    def begin(self, question: Question) -> State:
        """At the image, or at a random point near it."""
        x, y = question.x, question.y
        target, restart = divmod(question.round, self.restarts)
        others = question.natural.scatter(1, y[:, None], float("-inf"))
        ranked = others.argsort(dim=1, descending=True, stable=True)[:, :-1]
        state = {
            "x": x,
            "y": y,
            "aims": ranked[:, target : target + 1] if self.targets else ranked,
            "turn": torch.zeros_like(y),
            "point": _start(x, question.threat, question.draws) if restart else x.clone(),
            "fresh": torch.zeros_like(y, dtype=torch.bool),
            "moves": torch.zeros_like(y),
            "best": torch.full_like(x[:, 0, 0, 0], float("inf")),
        }
        if not self.targets:
            state |= {
                "near": state["best"].clone(),
                "rise": state["best"].clone(),
                "slope": torch.zeros_like(x),
            }
        return state

    def ask(self, state: State, threat: Threat) -> Images:
        """The current point."""
        return state["point"]

    def loss(self, state: State, logits: Logits) -> PerExample:
        """z_t - z_y."""
        aim = state["aims"].gather(1, state["turn"][:, None])
        return (logits.gather(1, aim) - logits.gather(1, state["y"][:, None])).squeeze(1)

    def tell(self, state: State, answer: Answer, threat: Threat) -> State:
        """Step back from a new point beyond the boundary, or move on with the plane seen from here.

        `best` is the length of the shortest perturbation asked about that is misclassified.
        """
        x, point, norm = state["x"], state["point"], threat.norm
        wrong = (answer.logits.argmax(1) != state["y"]) & ~self.finished(state)
        best = torch.minimum(state["best"], norm.length(point - x).where(wrong, float("inf")))
        behind = torch.where(_wide(wrong), x + self.beta * (point - x), point)
        back = state["fresh"] & wrong & (self.crossing == "return")
        here = point if self.crossing == "return" else behind
        plane = self._plane(state, answer, here, norm)
        last = state["turn"] + 1 == state["aims"].shape[1]
        going = last & ~back & (state["moves"] < self.steps)
        ahead, moving = torch.where(_wide(back), behind, point), going.nonzero().squeeze(1)
        ahead[moving] = self._move(
            x[moving], here[moving], plane["rise"][moving], plane["slope"][moving], norm
        )
        return {
            **state,
            **({} if self.targets else plane),
            "turn": (state["turn"] + 1).masked_fill(back | last, 0),
            "point": ahead,
            "fresh": going,
            "moves": state["moves"] + going,
            "best": best,
        }

    def finished(self, state: State) -> PerExampleBool:
        """Whether the last step is made and judged."""
        return (state["moves"] == self.steps) & ~state["fresh"]

    def _plane(self, state: State, answer: Answer, here: Images, norm: Norm) -> State:
        """The boundary: value and slope here of the closest plane among those of the classes asked about."""
        assert answer.loss is not None and answer.gradient is not None, "FAB wants gradients"
        rise, slope = answer.loss, answer.gradient
        if self.crossing == "reuse":
            rise = _carry(rise, slope, here - answer.x)
        if self.targets:
            return {"rise": rise, "slope": slope}
        near = gap(slope, rise, norm)
        # A broken gradient is taken rather than passed over, so that it is seen.
        closer = (state["turn"] == 0) | (near < state["near"]) | near.isnan()
        return {
            "near": torch.where(closer, near, state["near"]),
            "rise": torch.where(closer, rise, state["rise"]),
            "slope": torch.where(_wide(closer), slope, state["slope"]),
        }

    def _move(self, x: Images, point: Images, rise: PerExample, slope: Images, norm: Norm) -> Images:
        d1 = displace(point, slope, rise, norm)
        d2 = displace(x, slope, _carry(rise, slope, x - point), norm)
        from_point, from_x = (norm.length(d).clamp(min=FLOOR) for d in (d1, d2))
        a = _wide((from_point / (from_point + from_x)).clamp(max=self.alpha_max))
        return ((1 - a) * (point + self.eta * d1) + a * (x + self.eta * d2)).clamp(0, 1)


def _start(x: Images, threat: Threat, draws: Draws) -> Images:
    """A random direction from x, half the budget long, clipped to the box."""
    draws = draws.at("start")
    d = 2 * draws.uniform(x) - 1 if isinstance(threat.norm, Linf) else draws.normal(x)
    length = threat.norm.length(d).clamp(min=torch.finfo(d.dtype).tiny)
    return (x + threat.eps / 2 * d / _wide(length)).clamp(0, 1)


def _carry(rise: PerExample, slope: Images, d: Images) -> PerExample:
    """The value of a plane at a distance d from where it is known."""
    return rise + (slope * d).sum(dim=(1, 2, 3))


def _wide(per_example: Tensor) -> Tensor:
    return per_example[:, None, None, None]
