"""FAB, the fast adaptive boundary attack: searches for the closest misclassified image."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from allrounder.attacks.fab_projection import displace, plane_distance
from allrounder.attacks.search.base import QueryResult, RoundInit, Search, State
from allrounder.config.fields import FiniteFloat, NonNegativeInt, PositiveInt, Share, frozen_config
from allrounder.rng import Rng
from allrounder.threats.norms import Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Images, Logits, PerExample, PerExampleBool

MIN_LENGTH = 1e-8
"""A lower bound for the lengths of displacements, which are divided by."""


@final
@frozen_config
class Fab(Search):
    """FAB and its targeted form FAB-T: steps towards the decision boundary, linearised at the current point.

    With df = z_t - z_y and its gradient w at the point p, the boundary is the plane df + w.(u - p) = 0. Let
    d1 and d2 be the shortest displacements from p and from x to the plane inside the box (see
    fab_projection.py). Then
        a  = min(|d1| / (|d1| + |d2|), alpha_max)
        p' = clip((1 - a) (p + eta d1) + a (x + eta d2)),
    and where p' is misclassified, the next step starts at x + beta (p' - x). The threat matters only for
    random starts. Croce and Hein, 2020, Minimally distorted adversarial examples with a fast adaptive
    boundary attack.

    A step takes a query with a gradient for the plane (one gradient per wrong class if untargeted), and a
    forward pass to classify the new point.
    """

    needs_grad_cycle: ClassVar[tuple[bool, ...]] = (True, False)

    steps: PositiveInt = 100
    """Steps per round."""
    targets: NonNegativeInt = 9
    """The number of target classes, one per round, by descending natural logit; 0 aims at the closest class
    in every step."""
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

    def num_rounds(self, classes: int) -> int:
        """One round per target and start; there are at most as many targets as other classes."""
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
        """Take a step (after a query with a gradient), or a backward step from a misclassified point.

        `best_length` is the length of the shortest misclassified perturbation found so far.
        """
        x, point = state["x"], state["point"]
        if result.gradient is None:
            length = threat.norm.length(point - x)
            is_new = state["steps_checked"] < state["steps_taken"]
            fooled = (result.logits.argmax(1) != state["y"]) & is_new
            return state | {
                "point": torch.where(_expand(fooled), x + self.beta * (point - x), point),
                "steps_checked": state["steps_taken"].clone(),
                "best_length": torch.minimum(state["best_length"], length.where(fooled, float("inf"))),
            }
        df, w = _closest_plane(result, threat.norm)
        moving = state["steps_taken"] < self.steps
        new_point = self._move(x, point, df, w, threat.norm)
        # Examples whose search is over stay where they are.
        new_point = new_point if moving.all() else torch.where(_expand(moving), new_point, point)
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
        a = _expand((length1 / (length1 + length2)).clamp(max=self.alpha_max))
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
    return (x + threat.eps / 2 * d / _expand(length)).clamp(0, 1)


def _expand(per_example: Tensor) -> Tensor:
    return per_example[:, None, None, None]
