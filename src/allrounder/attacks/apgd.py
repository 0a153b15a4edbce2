"""APGD: projected gradient ascent with an adaptive step size for each example.

Croce and Hein, 2020, Reliable evaluation of adversarial robustness with an ensemble of diverse
parameter-free attacks; for L1, 2021, Mind the box.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from allrounder.attacks.base import select_rows
from allrounder.attacks.losses import (
    ALLOW_CUSTOM_LOSS,
    CustomLoss,
    cross_entropy,
    dlr,
    margin,
    targeted_dlr,
    targeted_margin,
)
from allrounder.attacks.search.base import QueryResult, RoundInit, Search, State
from allrounder.config.fields import (
    NonEmpty,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Share,
    frozen_config,
)
from allrounder.errors import ThreatError
from allrounder.threats.norms import L1, expand
from allrounder.threats.threat import Threat
from allrounder.types import Images, Labels, Logits, PerExample, PerExampleBool

NEW_STEP_WEIGHT = 0.75
"""The weight of the new step; the previous step has the rest (momentum)."""

RadiusSchedule: TypeAlias = tuple[tuple[PositiveFloat, Annotated[Share, Field(gt=0)]], ...]
"""Radii in units of eps, each with its share of the steps."""
L1_SCHEDULE: RadiusSchedule = ((3.0, 0.3), (2.0, 0.3), (1.0, 0.4))
"""The schedule of AutoAttack in L1: search larger balls first."""


@final
@frozen_config
class Apgd(Search):
    """Auto-PGD (APGD): projected gradient ascent with momentum and a step that is halved at checkpoints.

    z = P(x_i + step * ascend(g)), x_{i+1} = P(x_i + 0.75 (z - x_i) + 0.25 (x_i - x_{i-1})). The first step is
    2 eps. A checkpoint halves the step and returns to the best point if at most a share rho of the steps
    since the last checkpoint raised the loss, or if the best loss has not improved since then and the step
    was not halved then. In L1 there is no momentum, and checkpoints also set how many coordinates a step
    moves. Queries the start and `steps` further points; with a schedule, a start for each radius.
    """

    steps: PositiveInt = 100
    surrogate: Annotated[Literal["ce", "dlr"] | CustomLoss, ALLOW_CUSTOM_LOSS] = "ce"
    """The loss to increase: ce (cross-entropy), dlr (difference of logits ratio; margin for few classes)."""
    targets: NonNegativeInt = 0
    """The number of target classes, the likeliest first; 0 is the untargeted attack."""
    restarts: PositiveInt = 1
    """The number of random starts for each target."""
    rho: Share = 0.75
    """The step is halved unless more than this share of steps raises the loss; not used in L1."""
    schedule: Annotated[RadiusSchedule, NonEmpty] = ((1.0, 1.0),)
    """The radii in order, in units of eps, with shares of the steps; each starts at the best point so far."""
    eot: PositiveInt = 1
    """How many gradients to average, for random networks (expectation over transformations)."""

    @override
    def address(self) -> str:
        surrogate = repr(self.surrogate) if isinstance(self.surrogate, str) else self.surrogate.address()
        return (
            f"Apgd(steps={self.steps}, surrogate={surrogate}, targets={self.targets}, "
            f"restarts={self.restarts}, rho={self.rho}, schedule={self.schedule}, eot={self.eot})"
        )

    def __post_init__(self) -> None:
        if self.schedule[-1][0] != 1 or abs(sum(share for _, share in self.schedule) - 1) > 1e-9:
            expected = "expected 1 as the last radius and shares that sum to 1"
            raise ValueError(f"the schedule is {self.schedule}, {expected}; change it")
        if isinstance(self.surrogate, str):
            return
        if self.targets:
            got = f"{self.surrogate.name} has no targeted form, got targets = {self.targets}"
            raise ValueError(f"the loss {got}; set targets to 0, or use the loss ce or dlr")
        if self.surrogate.needs_natural:
            got = f"{self.surrogate.name} needs natural logits"
            raise ValueError(f"the loss {got}; use it with Pgd, not Apgd")

    @override
    def num_rounds(self, classes: int) -> int:
        return self.restarts * (min(self.targets, classes - 1) if self.targets else 1)

    def loss_name(self, classes: int) -> str:
        """The loss for a number of classes: "ce", "dlr", "margin", "targeted ce", .. or a custom one.

        DLR needs three classes, and four if targeted; with fewer, the margin replaces it.
        """
        if isinstance(self.surrogate, CustomLoss):
            return self.surrogate.name
        too_few = classes < (4 if self.targets else 3)
        name = "margin" if self.surrogate == "dlr" and too_few else self.surrogate
        return f"targeted {name}" if self.targets else name

    def label(self) -> str:
        """Names the loss; the targeted DLR loss is "apgd-t", as in AutoAttack."""
        if self.targets and self.surrogate == "dlr":
            return "apgd-t"
        loss = self.surrogate if isinstance(self.surrogate, str) else self.surrogate.name
        return f"apgd-{loss}-t" if self.targets else f"apgd-{loss}"

    @override
    def describe_budget(self, classes: int) -> str:
        loss = self.loss_name(classes)
        replaced = self.surrogate == "dlr" and "margin" in loss
        radii = ", ".join(f"{radius:g}" for radius, _ in self.schedule)
        words = [
            f"{self.steps} steps",
            f"{self.num_rounds(classes) // self.restarts} targets" if self.targets else "",
            f"{self.restarts} restarts" if self.restarts > 1 else "",
            f"radii {radii} eps" if len(self.schedule) > 1 else "",
            f"mean of {self.eot} gradients" if self.eot > 1 else "",
            f"loss {loss}" + (f" (the ratio needs more classes than {classes})" if replaced else ""),
        ]
        return f"{self.label()}: {', '.join(filter(None, words))}"

    def begin(self, round_init: RoundInit) -> State:
        """Start at a random point on the boundary of the first ball."""
        x, threat, rng = round_init.x, round_init.threat, round_init.rng.fold_in("start")
        eps = self._plan(threat, x.device).radii[0] * threat.eps
        # In L1, noise that the projection makes sparse: `sample_boundary` would change every coordinate.
        d = rng.normal(x) if isinstance(threat.norm, L1) else threat.norm.sample_boundary(x, eps, rng)
        point = threat.norm.project(x, x + d, eps)
        # Until the first checkpoint an L1 step moves a fifth of the coordinates.
        return self.begin_at(point, round_init, self._target_class(round_init), (x[0].numel() + 4) // 5)

    def begin_at(self, point: Images, round_init: RoundInit, target: Labels, num_coordinates: int) -> State:
        """Start at a given point; in L1 the first steps move `num_coordinates` coordinates."""
        x, y, threat = round_init.x, round_init.y, round_init.threat
        query = torch.zeros_like(y)
        zeros = torch.zeros_like(x[:, 0, 0, 0])
        eps = self._plan(threat, y.device).eps_at(query, threat.eps).to(x)
        return {
            "x": x,
            "y": y,
            "target": target,
            "query": query,
            "point": point,
            "previous": point.clone(),
            "best": point.clone(),
            "best_gradient": torch.zeros_like(x),
            "best_loss": zeros,
            "last_loss": zeros.clone(),
            "checkpoint_loss": zeros.clone(),
            # All coordinates count as changed, so that the best point at the first checkpoint is sparser.
            **_initial_course(query + x[0].numel(), query + num_coordinates, eps, threat),
        }

    @override
    def ask(self, state: State, threat: Threat) -> Images:
        return state["point"]

    @override
    def loss(self, state: State, logits: Logits) -> PerExample:
        if isinstance(self.surrogate, CustomLoss):
            return self.surrogate(logits, state["y"])
        name = self.loss_name(logits.shape[1])
        y, target = state["y"], state["target"]
        if name == "targeted ce":
            return -cross_entropy(logits, target)
        if self.targets:
            return (targeted_dlr if name == "targeted dlr" else targeted_margin)(logits, y, target)
        return {"ce": cross_entropy, "dlr": dlr, "margin": margin}[name](logits, y)

    def tell(self, state: State, result: QueryResult, threat: Threat) -> State:
        """Update the best point, adapt the step at a checkpoint, then take a step or enter the next ball."""
        loss, g = _finite_loss_and_grad(result)
        x, query = result.x, state["query"]
        sparse = isinstance(threat.norm, L1)
        plan = self._plan(threat, query.device)
        is_start, period = plan.is_start[query], plan.period[query]
        better = is_start | (loss > state["best_loss"])
        new = state | {
            "best": select_rows(better, x, state["best"]),
            "best_gradient": select_rows(better, g, state["best_gradient"]),
            "best_loss": select_rows(better, loss, state["best_loss"]),
            "last_loss": loss.clone(),
            # Differs: released code compares the first step with zero, not with the start (ADR 0008).
            "num_rises": state["num_rises"] + (~is_start & (loss > state["last_loss"])),
        }
        if bool((at_checkpoint := period > 0).any()):
            eps = plan.eps_at(query, threat.eps).to(x)
            returns, course = _refine_l1(new, eps) if sparse else self._halve_steps(new, period)
            new |= {name: select_rows(at_checkpoint, tensor, new[name]) for name, tensor in course.items()}
            returns = returns & at_checkpoint
            x = select_rows(returns, new["best"], x)
            g = select_rows(returns, new["best_gradient"], g)
        else:
            x = x.clone()  # it becomes `previous`, which must not share memory with the result
        direction = _sparse_sign(g, new["num_coordinates"]) if sparse else threat.norm.ascend(g)
        d = expand(new["step"]) * direction
        query = (query + 1).clamp(max=len(plan))
        if not sparse:
            weight = expand(torch.where(is_start, 1.0, NEW_STEP_WEIGHT).to(x))
            z = _project_to_radius(new["x"], x + d, plan, query, threat)
            d = weight * (z - x) + (1 - weight) * (x - new["previous"])
        enters = plan.is_start[query]
        any_enters = bool(enters.any())
        point = select_rows(enters, new["best"], x + d) if any_enters else x + d
        point = _project_to_radius(new["x"], point, plan, query, threat)
        new |= {"query": query, "previous": x, "point": point}
        if not any_enters:
            return new
        num_changed = _count_changed(new["x"], point)
        eps = plan.eps_at(query, threat.eps).to(x)
        course = _initial_course(num_changed, _num_coordinates(num_changed), eps, threat)
        return new | {name: select_rows(enters, tensor, new[name]) for name, tensor in course.items()}

    @override
    def is_finished(self, state: State) -> PerExampleBool:
        return state["query"] >= self.num_queries()

    @override
    def num_queries(self) -> int:
        return len(plan_checkpoints(self.schedule, self.steps, False, torch.device("cpu")))

    def _plan(self, threat: Threat, device: torch.device) -> CheckpointPlan:
        return plan_checkpoints(self.schedule, self.steps, isinstance(threat.norm, L1), device)

    def _target_class(self, round_init: RoundInit) -> Labels:
        if self.targets == 0:
            return round_init.y.clone()
        # The label comes first, so it is never a target, even where it is not the likeliest class.
        ranked = round_init.natural.scatter(1, round_init.y[:, None], float("inf"))
        ranked = ranked.argsort(dim=1, descending=True, stable=True)
        return ranked[:, 1 + round_init.round % min(self.targets, ranked.shape[1] - 1)].clone()

    def _halve_steps(self, state: State, period: Labels) -> tuple[PerExampleBool, State]:
        """The checkpoint in Linf and L2: which examples return to the best point, and the new values."""
        too_few_rises = state["num_rises"] <= self.rho * period
        no_progress = ~state["was_halved"] & (state["best_loss"] <= state["checkpoint_loss"])
        returns = too_few_rises | no_progress
        return returns, {
            "step": torch.where(returns, state["step"] / 2, state["step"]),
            "was_halved": returns,
            "checkpoint_loss": state["best_loss"],
            "num_rises": torch.zeros_like(state["num_rises"]),
        }


def _initial_course(num_changed: Labels, num_coordinates: Labels, eps: Tensor, threat: Threat) -> State:
    """The values that are reset at the start of each radius."""
    return {
        "step": eps if isinstance(threat.norm, L1) else 2 * eps,
        "was_halved": torch.ones_like(num_changed, dtype=torch.bool),
        "num_rises": torch.zeros_like(num_changed),
        "num_changed": num_changed,
        "num_coordinates": num_coordinates,
    }


def _project_to_radius(x0: Images, x: Images, plan: CheckpointPlan, query: Labels, threat: Threat) -> Images:
    """Project each point into the box and into the ball of its query."""
    if len(plan.radii) == 1:
        return threat.project(x0, x)
    projected = torch.empty_like(x)
    for number, radius in enumerate(plan.radii):
        rows = (plan.radius_index[query] == number).nonzero().squeeze(1)
        if len(rows):
            projected[rows] = threat.norm.project(x0[rows], x[rows], radius * threat.eps)
    return projected


def _refine_l1(state: State, eps: PerExample) -> tuple[PerExampleBool, State]:
    """The checkpoint in L1: where the best point has become sparser, return to it with full steps."""
    num_changed = _count_changed(state["x"], state["best"])
    sparser = 20 * num_changed < 19 * state["num_changed"]
    step = torch.where(sparser, eps, torch.maximum(state["step"] / 1.5, eps / 10))
    num_coordinates = _num_coordinates(num_changed)
    return sparser, {"step": step, "num_changed": num_changed, "num_coordinates": num_coordinates}


def _count_changed(x: Images, x_adv: Images) -> Labels:
    """The number of coordinates in which images differ by more than rounding."""
    return ((x_adv - x).abs() > 4 * torch.finfo(x.dtype).eps).flatten(1).sum(dim=1)


def _num_coordinates(num_changed: Labels) -> Labels:
    """The number of coordinates that an L1 step moves: two thirds of those changed at the best point."""
    return ((2 * num_changed + 2) // 3).clamp(min=1)


def _sparse_sign(g: Images, num_coordinates: Labels) -> Images:
    """sign(g) on the `num_coordinates` coordinates of largest |g|, zero elsewhere; of length one in L1."""
    size = g.abs().flatten(1)
    smallest = size.topk(int(num_coordinates.max()), dim=1).values.gather(1, num_coordinates[:, None] - 1)
    d = torch.where(size < smallest, 0, g.flatten(1).sign())
    return (d / d.abs().sum(dim=1, keepdim=True).clamp(min=1)).view_as(g)


def _finite_loss_and_grad(result: QueryResult) -> tuple[PerExample, Images]:
    """The loss and gradient; raise ThreatError if one is not finite, which would look like robustness."""
    assert result.loss is not None and result.gradient is not None, "Apgd needs gradients"
    loss, g = result.loss[0], result.gradient[0].contiguous()
    # A sum is not finite if one of its terms is not.
    not_finite = loss.isnan() | ~g.sum(dim=(1, 2, 3)).isfinite()
    if not_finite.any():
        problem = f"loss or gradient of {int(not_finite.sum())} of {len(loss)} images is not finite"
        raise ThreatError(f"APGD: the {problem}; fix the network, or attack it without gradients")
    return loss, g


@final
@dataclass(frozen=True, eq=False)
class CheckpointPlan:
    """What happens at each query of a search; the last row applies to all later queries."""

    radii: tuple[float, ...]
    """In units of eps."""
    radius_index: Int[Tensor, " t"]
    """The position in `radii`."""
    is_start: Bool[Tensor, " t"]
    """Whether the query is the first one with its radius."""
    period: Int[Tensor, " t"]
    """At a checkpoint, the number of steps since the previous one; otherwise 0."""

    def __len__(self) -> int:
        return len(self.is_start) - 1

    def eps_at(self, query: Int[Tensor, " n"], eps: float) -> Float[Tensor, " n"]:
        """The radius of the ball at each query, in float64."""
        radii = torch.tensor(self.radii, dtype=torch.float64, device=query.device) * eps
        return radii[self.radius_index[query]]


@cache
def plan_checkpoints(
    schedule: RadiusSchedule, steps: int, sparse: bool, device: torch.device
) -> CheckpointPlan:
    """Plan a search of `steps` steps; a radius whose share is less than one step is skipped."""
    counts = [int(share * steps) for _, share in schedule[:-1]]
    counts.append(steps - sum(counts))
    stages = [(radius, count) for (radius, _), count in zip(schedule, counts, strict=True) if count]
    rows = [
        (number, t == 0, checkpoint_periods(count, sparse=sparse).get(t, 0))
        for number, (_, count) in enumerate(stages)
        for t in range(count + 1)
    ]
    columns = zip(*rows, (len(stages) - 1, False, 0), strict=True)
    radius_index, is_start, period = (torch.tensor(column, device=device) for column in columns)
    return CheckpointPlan(tuple(radius for radius, _ in stages), radius_index, is_start, period)


def checkpoint_periods(steps: int, *, sparse: bool) -> dict[int, int]:
    """The steps after which there is a checkpoint, each with the number of steps since the previous one.

    The first is 22 % of all steps, each next one 3 % shorter, down to 6 %; in L1 (`sparse`) all are 4 %.
    """
    percentages = (4, 0, 4) if sparse else (22, 3, 6)
    period, decrease, shortest = (max(percentage * steps // 100, 1) for percentage in percentages)
    periods: dict[int, int] = {}
    end = period
    while end <= steps:
        periods[end] = period
        period = max(period - decrease, shortest)
        end += period
    return periods
