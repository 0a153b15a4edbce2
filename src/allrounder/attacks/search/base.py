"""`Search`, the ask/tell interface of the attacks in AutoAttack.

A search has no access to the network: `ask` returns the images to query next, and `tell` updates the state
with the result. The caller runs the network and decides whether a queried image is adversarial. So a search
cannot report a false success, passes are counted in one place, and examples at different points of their
search can share a batch: each row of the state depends only on its own example.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult, select_rows
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Logits, Passes, PerExampleBool

State: TypeAlias = dict[str, Tensor]
"""The state of a search: tensors with one row per example, whose names and shapes never change."""

SUCCESS_SLACK = 1e-6
"""How far rounding may move an adversarial image out of the ball, in units of max(1, eps)."""


@dataclass(frozen=True, eq=False)
class RoundInit:
    """What a search needs to begin a round: the examples, the threat and the random numbers."""

    x: Images
    y: Labels
    natural: Logits
    threat: Threat
    rng: Rng
    """In an evaluation, random numbers are addressed per example, so draw once per name, never per step."""
    round: int


@dataclass(frozen=True, eq=False)
class QueryResult:
    """What the network returns for the queried images."""

    x: Images
    logits: Logits
    passes: Passes
    loss: Float[Tensor, "m n"] | None = None
    """The losses that were differentiated; None for a query without gradient."""
    gradient: Float[Tensor, "m n c h w"] | None = None
    """The gradients of the losses with respect to x."""


class Search(Attack):
    """An attack with an ask/tell interface; subclasses are final frozen values."""

    stops_at_success: ClassVar[bool] = True
    needs_grad_cycle: ClassVar[tuple[bool, ...]] = (True,)
    """Whether each query of a step needs gradients; all examples of a batch are at the same query."""
    eot: int = 1
    """How many times each gradient query is repeated and averaged; more than once for random networks."""

    @abstractmethod
    @override
    def address(self) -> str: ...

    def num_grads(self, classes: int) -> int:
        """The number of losses that a query with gradients differentiates."""
        return 1

    @abstractmethod
    def num_rounds(self, classes: int) -> int:
        """How many rounds each example has, with another start or target each."""

    @abstractmethod
    def begin(self, round_init: RoundInit) -> State:
        """The state at the beginning of a round, without a pass; it holds "x" and "y"."""

    @abstractmethod
    def ask(self, state: State, threat: Threat) -> Images:
        """The image to query next, for each example."""

    def loss(self, state: State, logits: Logits) -> Float[Tensor, "*m n"]:
        """One or several losses to differentiate at the queried image, for a query that needs gradients."""
        raise AssertionError("only a search that needs gradients has a loss")

    @abstractmethod
    def tell(self, state: State, result: QueryResult, threat: Threat) -> State:
        """Return the state after a query; does not change the old state."""

    @abstractmethod
    def is_finished(self, state: State) -> PerExampleBool:
        """Whether the round of each example is over."""

    @abstractmethod
    def num_queries(self) -> int:
        """The number of queries of a round without success; drivers check it."""

    def skip_ahead(self, state: State, steps: Labels) -> State | None:
        """The state after `steps` rejected queries, as `tell` returns it; None if the search cannot skip."""
        return None

    def accepted(self, before: State, after: State) -> PerExampleBool:
        """Whether `tell` changed the next query; only for searches that can skip ahead."""
        raise AssertionError("only a search that can skip ahead reports accepted queries")

    @override
    def fills_idle_slots(self, classes: int) -> bool:
        # With other rounds, or by looking ahead.
        return self.num_rounds(classes) > 1 or not any(self.needs_grad_cycle)

    @override
    def evaluation_passes(self, classes: int) -> Passes:
        num_cycles = self.num_rounds(classes) * self.num_queries() // len(self.needs_grad_cycle)
        gradient = Passes(1, self.num_grads(classes)) * self.eot
        per_query = [gradient if needs_grad else Passes(1) for needs_grad in self.needs_grad_cycle]
        return sum(per_query, Passes()) * num_cycles + Passes(forwards=1)

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        """Search all examples in one batch; keeps the first success, or the image itself without one."""
        natural = model(x)
        x_adv, fooled = x, natural.argmax(1) != y
        passes = Passes(forwards=1)
        for number in range(self.num_rounds(natural.shape[1])):
            state = self.begin(RoundInit(x, y, natural, threat, rng.fold_in("round", number), number))
            while not (fooled | self.is_finished(state)).all():
                for needs_grad in self.needs_grad_cycle:
                    result = query_model(self, model, state, threat, needs_grad)
                    passes = passes + result.passes
                    new = is_adversarial(result, state, threat) & ~fooled & ~self.is_finished(state)
                    x_adv = select_rows(new, result.x, x_adv)
                    fooled = fooled | new
                    state = self.tell(state, result, threat)
        return AttackResult(x=x_adv, fooled=fooled, passes=passes)


def query_model(
    search: Search, model: Classifier, state: State, threat: Threat, needs_grad: bool
) -> QueryResult:
    """Query the network at the images that a search asks for: a forward pass, and a backward pass per loss.

    With gradients the query is repeated `search.eot` times, and the results are averaged.
    """
    x = search.ask(state, threat).detach()
    if not needs_grad:
        with torch.no_grad():
            return QueryResult(x, model(x), Passes(forwards=1))
    samples = [_differentiate(search, model, state, x) for _ in range(search.eot)]
    logits, loss, gradient = (
        tensors[0] if len(tensors) == 1 else torch.stack(tensors).mean(0)
        for tensors in zip(*samples, strict=True)
    )
    return QueryResult(x, logits, Passes(1, len(loss)) * len(samples), loss, gradient)


def _differentiate(
    search: Search, model: Classifier, state: State, x: Images
) -> tuple[Logits, Float[Tensor, "m n"], Float[Tensor, "m n c h w"]]:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        logits = model(x)
        loss = search.loss(state, logits)
        losses = loss if loss.dim() == 2 else loss[None]
        totals = losses.sum(dim=1)
        gradients = [
            torch.autograd.grad(total, x, retain_graph=number < len(totals))[0]
            for number, total in enumerate(totals, start=1)
        ]
    stacked = torch.stack(gradients) if len(gradients) > 1 else gradients[0][None]
    return logits.detach(), losses.detach(), stacked


def is_adversarial(result: QueryResult, state: State, threat: Threat) -> PerExampleBool:
    """Whether the images that were queried in a state are misclassified and inside the threat."""
    fooled = result.logits.argmax(1) != state["y"]
    rows = fooled.nonzero().squeeze(1)
    if len(rows):
        # Only misclassified images, usually few, are checked against the threat.
        fooled[rows] = threat.contains(state["x"][rows], result.x[rows], slack=SUCCESS_SLACK)
    return fooled
