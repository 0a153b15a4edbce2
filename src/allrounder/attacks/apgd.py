"""APGD: gradient ascent that chooses the length of its steps, for every example on its own.

Croce and Hein, 2020, Reliable evaluation of adversarial robustness with an ensemble of diverse
parameter-free attacks; for L1, the same authors, 2021, Mind the box.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor

from allrounder.attacks.apgd_schedule import Plan, Schedule, plan
from allrounder.attacks.custom_loss import CustomLoss, OrCustom
from allrounder.attacks.losses import cross_entropy, dlr, dlr_towards, margin, towards
from allrounder.attacks.search.base import Answer, Question, Search, State
from allrounder.config.fields import Count, Share, Some, Whole, value
from allrounder.errors import ThreatError
from allrounder.threats.norms import EVERY_NORM, L1, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Images, Labels, Logits, PerExample, PerExampleBool

MOMENTUM = 0.75
"""The share of a step that follows the newest gradient; the rest goes on as the step before did."""


@final
@value
class Apgd(Search):
    """Projected gradient ascent with momentum, whose step is halved where it leads no further (APGD).

    z = P(x_i + step * ascend(g)), x_{i+1} = P(x_i + 0.75 (z - x_i) + 0.25 (x_i - x_{i-1})). The step is 2 eps
    at first. At a checkpoint it is halved, and the search returns to its best point, if at most a share rho
    of the steps since the last checkpoint raised the loss, or if none raised the best loss and the step was
    not halved then. In L1 there is no momentum, and checkpoints also set how many coordinates a step moves.

    Asks about the start and `steps` points more; with a schedule, about a start for every radius.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM

    steps: Count = 100
    surrogate: Annotated[Literal["ce", "dlr"] | CustomLoss, OrCustom()] = "ce"
    """What to climb: ce (cross-entropy), dlr (difference of logits ratio; the margin for few classes)."""
    targets: Whole = 0
    """How many wrong classes to aim at in turn, the likeliest first; 0 only aims away from the label."""
    restarts: Count = 1
    """How often to search from another random start, with every target."""
    rho: Share = 0.75
    """The share of steps that must raise the loss, else the step is halved; plays no part in L1."""
    schedule: Annotated[Schedule, Some] = ((1.0, 1.0),)
    """Radii to search in turn, in units of eps, each with its share of the steps; the best point of one,
    brought into the next ball, is the start there."""
    eot: Count = 1
    """How many answers of a random network to average (expectation over transformations)."""

    def address(self) -> str:
        """The text that selects its random numbers."""
        loss = self.surrogate
        surrogate = loss.address() if isinstance(loss, CustomLoss) else repr(loss)
        return (
            f"Apgd(steps={self.steps}, surrogate={surrogate}, targets={self.targets}, "
            f"restarts={self.restarts}, rho={self.rho}, schedule={self.schedule}, eot={self.eot})"
        )

    def repeats(self) -> int:
        """As often as its answers are averaged."""
        return self.eot

    def __post_init__(self) -> None:
        if self.schedule[-1][0] != 1 or abs(sum(share for _, share in self.schedule) - 1) > 1e-9:
            raise ValueError("a schedule ends with the radius 1 and its shares add up to 1; change it")
        if isinstance(self.surrogate, CustomLoss) and self.targets:
            got = f"{self.surrogate.name} is told of no target, got targets = {self.targets}"
            raise ValueError(f"the loss {got}; leave targets at 0, or climb ce or dlr")
        if isinstance(self.surrogate, CustomLoss) and self.surrogate.needs_natural:
            raise ValueError(f"the loss {self.surrogate.name} needs natural logits; give it to Pgd, not Apgd")

    def rounds(self, classes: int) -> int:
        """One for every target and restart; the same target comes again after all others."""
        return self.restarts * (min(self.targets, classes - 1) if self.targets else 1)

    def loss_used(self, classes: int) -> str:
        """What is climbed with so many classes: "ce", "dlr" or "margin", or "targeted" and one of them; or
        the name of a custom loss.

        The ratio needs three classes, and four if targeted; with fewer, its numerator is what is left.
        """
        if isinstance(self.surrogate, CustomLoss):
            return self.surrogate.name
        few = classes < (4 if self.targets else 3)
        name = "margin" if self.surrogate == "dlr" and few else self.surrogate
        return f"targeted {name}" if self.targets else name

    def begin(self, question: Question) -> State:
        """At a random point on the boundary of the first ball."""
        x, threat = question.x, question.threat
        draws, sparse = question.draws.at("start"), isinstance(threat.norm, L1)
        eps = plan(self.schedule, self.steps, sparse, x.device).radii[0] * threat.eps
        # In L1, noise that the projection makes sparse: `boundary` would move every coordinate a little.
        d = draws.normal(x) if sparse else threat.norm.boundary(x, eps, draws)
        now = threat.norm.project(x, x + d, eps)
        # Until the first checkpoint a fifth of the coordinates is moved.
        return self.begin_at(now, question, self._target(question), kept=(x[0].numel() + 4) // 5)

    def begin_at(self, now: Images, question: Question, target: Labels, kept: int) -> State:
        """At a given point, with so many coordinates to move at first in L1."""
        x, y, threat = question.x, question.y, question.threat
        told, sparse = torch.zeros_like(y), isinstance(threat.norm, L1)
        at, nothing = plan(self.schedule, self.steps, sparse, y.device), torch.zeros_like(x[:, 0, 0, 0])
        return {
            "x": x,
            "y": y,
            "target": target,
            "told": told,
            "now": now,
            "before": now.clone(),
            "best": now.clone(),
            "best_gradient": torch.zeros_like(x),
            "best_loss": nothing,
            "last_loss": nothing.clone(),
            "checked_loss": nothing.clone(),
            # Whatever is best at the first checkpoint counts as sparser.
            **_start(told + x[0].numel(), told + kept, at.eps(told, threat.eps).to(x), sparse),
        }

    def ask(self, state: State, threat: Threat) -> Images:
        """The newest point."""
        return state["now"]

    def loss(self, state: State, logits: Logits) -> PerExample:
        """What is climbed, at the newest point."""
        if isinstance(self.surrogate, CustomLoss):
            return self.surrogate(logits, state["y"])
        name, y, target = self.loss_used(logits.shape[1]), state["y"], state["target"]
        if not self.targets:
            return {"ce": cross_entropy, "dlr": dlr, "margin": margin}[name](logits, y)
        if name == "targeted ce":
            return -cross_entropy(logits, target)
        return (dlr_towards if name == "targeted dlr" else towards)(logits, y, target)

    def tell(self, state: State, answer: Answer, threat: Threat) -> State:
        """Remember the best point, change course at a checkpoint, and step or go to the next start."""
        loss, g = _finite(answer)
        told, x, sparse = state["told"], answer.x, isinstance(threat.norm, L1)
        at = plan(self.schedule, self.steps, sparse, told.device)
        first, period = at.first[told], at.period[told]
        better = first | (loss > state["best_loss"])
        new = state | {
            "best": _where(better, x, state["best"]),
            "best_gradient": _where(better, g, state["best_gradient"]),
            "best_loss": _where(better, loss, state["best_loss"]),
            "last_loss": loss.clone(),
            # Differs: released code compares the first step with zero, not with the start (ADR 0008).
            "rises": state["rises"] + (~first & (loss > state["last_loss"])),
        }
        due = period > 0
        if bool(due.any()):
            eps = at.eps(told, threat.eps).to(x)
            returns, course = _refined(new, eps) if sparse else self._halved(new, period)
            new |= {name: _where(due, tensor, new[name]) for name, tensor in course.items()}
            returns = returns & due
            x, g = _where(returns, new["best"], x), _where(returns, new["best_gradient"], g)
        else:
            x = x.clone()  # as the next `before`, which must not share the answer's memory
        d = _wide(new["step"]) * (_steepest(g, new["kept"]) if sparse else threat.norm.ascend(g))
        told = (told + 1).clamp(max=len(at))
        if not sparse:
            share = _wide(torch.where(first, 1.0, MOMENTUM).to(x))
            z = _project(new["x"], x + d, at, told, threat)
            d = share * (z - x) + (1 - share) * (x - new["before"])
        enters = at.first[told]
        if not bool(enters.any()):
            return new | {"told": told, "before": x, "now": _project(new["x"], x + d, at, told, threat)}
        now = _project(new["x"], _where(enters, new["best"], x + d), at, told, threat)
        changed = _changed(new["x"], now)
        fresh = _start(changed, _kept(changed), at.eps(told, threat.eps).to(x), sparse)
        new |= {"told": told, "before": x, "now": now}
        return new | {name: _where(enters, tensor, new[name]) for name, tensor in fresh.items()}

    def finished(self, state: State) -> PerExampleBool:
        """Whether every point of the plan was answered."""
        return state["told"] >= self.questions()

    def questions(self) -> int:
        """Every step, and a start for every radius."""
        return len(plan(self.schedule, self.steps, False, torch.device("cpu")))

    def _target(self, question: Question) -> Labels:
        if self.targets == 0:
            return question.y.clone()
        # The label goes first, so that it is no target even where it is not the likeliest class.
        ranked = question.natural.scatter(1, question.y[:, None], float("inf"))
        ranked = ranked.argsort(dim=1, descending=True, stable=True)
        return ranked[:, 1 + question.round % min(self.targets, ranked.shape[1] - 1)].clone()

    def _halved(self, state: State, period: Labels) -> tuple[PerExampleBool, State]:
        """The checkpoint in Linf and L2: who returns to the best point, and what else changes."""
        stuck = state["rises"] <= self.rho * period
        idle = ~state["halved"] & (state["best_loss"] <= state["checked_loss"])
        returns = stuck | idle
        return returns, {
            "step": torch.where(returns, state["step"] / 2, state["step"]),
            "halved": returns,
            "checked_loss": state["best_loss"],
            "rises": torch.zeros_like(state["rises"]),
        }


def _start(changed: Labels, kept: Labels, eps: Tensor, sparse: bool) -> State:
    """What is new at the start in a ball."""
    return {
        "step": eps if sparse else 2 * eps,
        "halved": torch.ones_like(changed, dtype=torch.bool),
        "rises": torch.zeros_like(changed),
        "changed": changed,
        "kept": kept,
    }


def _project(x0: Images, x: Images, at: Plan, told: Labels, threat: Threat) -> Images:
    """Bring every point into the box and into the ball that is its turn."""
    if len(at.radii) == 1:
        return threat.project(x0, x)
    projected = torch.empty_like(x)
    for number, radius in enumerate(at.radii):
        rows = (at.radius[told] == number).nonzero().squeeze(1)
        if len(rows):
            projected[rows] = threat.norm.project(x0[rows], x[rows], radius * threat.eps)
    return projected


def _refined(state: State, eps: PerExample) -> tuple[PerExampleBool, State]:
    """The checkpoint in L1: while the best point gets sparser, steps follow it at full length; else they get
    shorter, down to a tenth."""
    changed = _changed(state["x"], state["best"])
    sparser = 20 * changed < 19 * state["changed"]
    step = torch.where(sparser, eps, torch.maximum(state["step"] / 1.5, eps / 10))
    return sparser, {"step": step, "changed": changed, "kept": _kept(changed)}


def _changed(x: Images, x_adv: Images) -> Labels:
    """In how many coordinates images differ, by more than rounding."""
    return ((x_adv - x).abs() > 4 * torch.finfo(x.dtype).eps).flatten(1).sum(dim=1)


def _kept(changed: Labels) -> Labels:
    """How many coordinates a step in L1 moves: two thirds of those that the best point has changed."""
    return ((2 * changed + 2) // 3).clamp(min=1)


def _steepest(g: Images, kept: Labels) -> Images:
    """sign(g) on so many coordinates of largest |g|, zero elsewhere; of length one in L1."""
    size = g.abs().flatten(1)
    least = size.topk(int(kept.max()), dim=1).values.gather(1, kept[:, None] - 1)
    d = torch.where(size < least, 0, g.flatten(1).sign())
    return (d / d.abs().sum(dim=1, keepdim=True).clamp(min=1)).view_as(g)


def _finite(answer: Answer) -> tuple[PerExample, Images]:
    """Loss and gradient. A gradient that is not finite would stop a search, and look like robustness."""
    assert answer.loss is not None and answer.gradient is not None, "Apgd wants gradients"
    loss, g = answer.loss[0], answer.gradient[0].contiguous()
    # In a sum, one number that is not finite shows.
    broken = loss.isnan() | ~g.sum(dim=(1, 2, 3)).isfinite()
    if broken.any():
        what = f"loss or gradient of {int(broken.sum())} of {len(loss)} images is not finite"
        raise ThreatError(f"APGD: the {what}; mend the network, or attack it without gradients")
    return loss, g


def _wide(per_example: Tensor) -> Tensor:
    return per_example[:, None, None, None]


def _where(rows: PerExampleBool, one: Tensor, other: Tensor) -> Tensor:
    """A new tensor with some rows of one and the others of the other."""
    return torch.where(rows.view(-1, *[1] * (one.dim() - 1)), one, other)
