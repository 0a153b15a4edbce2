"""FAB, the fast adaptive boundary attack: a search for the closest image that is misclassified."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from allrounder.attacks.fab_projection import displace, gap
from allrounder.attacks.search.base import Answer, Question, Search, State
from allrounder.config.fields import Count, Number, Share, Whole, value
from allrounder.rng import Draws
from allrounder.threats.norms import L1, L2, Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Images, Logits, PerExample, PerExampleBool

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

    A step takes a pass with a gradient to see the boundary (with one for every wrong class where none is
    targeted), and a forward pass to judge where it led.
    """

    norms: ClassVar[frozenset[type[Norm]]] = frozenset({Linf, L2, L1})
    cycle: ClassVar[tuple[bool, ...]] = (True, False)

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

    def address(self) -> str:
        """The text that selects its random numbers."""
        return (
            f"Fab(steps={self.steps}, targets={self.targets}, restarts={self.restarts}, "
            f"alpha_max={self.alpha_max}, eta={self.eta}, beta={self.beta})"
        )

    def rounds(self, classes: int) -> int:
        """One per target and start; there are no more targets than other classes."""
        return self.restarts * min(self.targets or 1, classes - 1)

    def begin(self, question: Question) -> State:
        """At the image, or at a random point near it."""
        x, y = question.x, question.y
        target, restart = divmod(question.round, self.restarts)
        others = question.natural.scatter(1, y[:, None], float("-inf"))
        ranked = others.argsort(dim=1, descending=True, stable=True)[:, :-1]
        return {
            "x": x,
            "y": y,
            "aims": ranked[:, target : target + 1] if self.targets else ranked,
            "point": _start(x, question.threat, question.draws) if restart else x.clone(),
            "moves": torch.zeros_like(y),
            "judged": torch.zeros_like(y),
            "best": torch.full_like(x[:, 0, 0, 0], float("inf")),
        }

    def ask(self, state: State, threat: Threat) -> Images:
        """The current point."""
        return state["point"]

    def loss(self, state: State, logits: Logits) -> Float[Tensor, "m n"]:
        """z_t - z_y for every class t to aim at."""
        return (logits.gather(1, state["aims"]) - logits.gather(1, state["y"][:, None])).T

    def tell(self, state: State, answer: Answer, threat: Threat) -> State:
        """Move on with the plane seen from here, or step back from a new point beyond the boundary.

        `best` is the length of the shortest perturbation that a step led to and that is misclassified.
        """
        x, point = state["x"], state["point"]
        if answer.gradient is None:
            far = threat.norm.length(point - x)
            wrong = (answer.logits.argmax(1) != state["y"]) & (state["judged"] < state["moves"])
            return state | {
                "point": torch.where(_wide(wrong), x + self.beta * (point - x), point),
                "judged": state["moves"].clone(),
                "best": torch.minimum(state["best"], far.where(wrong, float("inf"))),
            }
        rise, slope = _closest(answer, threat.norm)
        going = state["moves"] < self.steps
        ahead = self._move(x, point, rise, slope, threat.norm)
        # Only where the search is over in a batch that goes on.
        ahead = ahead if going.all() else torch.where(_wide(going), ahead, point)
        return state | {"point": ahead, "moves": state["moves"] + going}

    def finished(self, state: State) -> PerExampleBool:
        """Whether the last step is made and judged."""
        return state["judged"] == self.steps

    def questions(self) -> int:
        """Two for every step."""
        return 2 * self.steps

    def _move(self, x: Images, point: Images, rise: PerExample, slope: Images, norm: Norm) -> Images:
        d1 = displace(point, slope, rise, norm)
        d2 = displace(x, slope, rise + (slope * (x - point)).sum(dim=(1, 2, 3)), norm)
        from_point, from_x = (norm.length(d).clamp(min=FLOOR) for d in (d1, d2))
        a = _wide((from_point / (from_point + from_x)).clamp(max=self.alpha_max))
        return ((1 - a) * (point + self.eta * d1) + a * (x + self.eta * d2)).clamp(0, 1)


def _closest(answer: Answer, norm: Norm) -> tuple[PerExample, Images]:
    """The boundary: value and slope of the closest plane among those of the classes aimed at."""
    rise, slope = answer.loss, answer.gradient
    assert rise is not None and slope is not None, "FAB wants gradients"
    if len(rise) == 1:
        return rise[0], slope[0].contiguous()
    near = torch.stack([gap(w, c, norm) for w, c in zip(slope, rise, strict=True)])
    # A broken gradient is taken rather than passed over, so that it is seen.
    which = near.masked_fill(near.isnan(), -1).argmin(dim=0)
    every = torch.arange(len(which), device=which.device)
    return rise[which, every], slope[which, every]


def _start(x: Images, threat: Threat, draws: Draws) -> Images:
    """A random direction from x, half the budget long, clipped to the box."""
    draws = draws.at("start")
    d = 2 * draws.uniform(x) - 1 if isinstance(threat.norm, Linf) else draws.normal(x)
    length = threat.norm.length(d).clamp(min=torch.finfo(d.dtype).tiny)
    return (x + threat.eps / 2 * d / _wide(length)).clamp(0, 1)


def _wide(per_example: Tensor) -> Tensor:
    return per_example[:, None, None, None]
