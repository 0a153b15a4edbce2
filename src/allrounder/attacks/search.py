"""Attacks that ask and learn: the searches of AutoAttack, written so that every example goes its own way.

A search never sees the network. It says which image it wants to know about next (`ask`), and learns from the
answer (`tell`); whoever drives it pays for the passes and decides whether an image it asked about is an
adversarial one inside the threat. So a search cannot report a false success, its passes are counted in one
place, and examples at different points of their search can share a batch: each row of the state depends on
its own example alone.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch

from allrounder.attacks.base import Attack, Crafted
from allrounder.rng import Draws
from allrounder.threats import Threat
from allrounder.types import Classifier, Images, Labels, Logits, Passes, PerExample, PerExampleBool

State: TypeAlias = dict[str, torch.Tensor]
"""What a search knows: tensors with one row per example, the same names and shapes from beginning to end."""

SLACK = 1e-6
"""How far rounding may carry an image out of the ball and still count, in units of max(1, eps)."""


@dataclass(frozen=True, eq=False)
class Question:
    """What a search is asked to do with some examples: one of its rounds, from the beginning."""

    x: Images
    y: Labels
    natural: Logits
    """The network's logits at x."""
    threat: Threat
    draws: Draws
    """Addressed to this round; per example in an evaluation, so draw once per name and never per step."""
    round: int


@dataclass(frozen=True, eq=False)
class Answer:
    """What the network says about the images that were asked about."""

    x: Images
    logits: Logits
    loss: PerExample | None = None
    gradient: Images | None = None
    """The gradient of the search's loss with respect to x; None for a search that only queries."""


class Search(Attack):
    """An attack by asking; the subclasses are final frozen values."""

    wants_gradient: ClassVar[bool] = True

    def repeats(self) -> int:
        """How often a network is asked the same, to average its answers: more than once where it is
        random."""
        return 1

    @abstractmethod
    def rounds(self, classes: int) -> int:
        """How many times an example is searched, with another start or target each time."""

    @abstractmethod
    def begin(self, question: Question) -> State:
        """The state at the beginning of a round; costs no pass. x and y belong into it if `tell` needs
        them."""

    @abstractmethod
    def ask(self, state: State, threat: Threat) -> Images:
        """The image to be asked about next, for every example."""

    def loss(self, state: State, logits: Logits) -> PerExample:
        """What to differentiate at the image asked about, if a gradient is wanted."""
        raise AssertionError("only searches that want gradients have a loss")

    @abstractmethod
    def tell(self, state: State, answer: Answer, threat: Threat) -> State:
        """The state after an answer; a new one, the old is left alone."""

    @abstractmethod
    def finished(self, state: State) -> PerExampleBool:
        """Which examples have used up their round."""

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Search all examples side by side; the first success is kept, an example without one stays as it
        was."""
        with torch.no_grad():
            natural = model(x)
        x_adv, fooled = x, natural.argmax(1) != y
        passes = Passes(forwards=1)
        for number in range(self.rounds(natural.shape[1])):
            state = self.begin(Question(x, y, natural, threat, draws.at("round", number), number))
            while not (fooled | self.finished(state)).all():
                answer = inquire(self, model, state, threat)
                passes = passes + cost(self)
                new = succeeded(answer, x, y, threat) & ~fooled & ~self.finished(state)
                x_adv = torch.where(new[:, None, None, None], answer.x, x_adv)
                fooled = fooled | new
                state = self.tell(state, answer, threat)
        return Crafted(x=x_adv, fooled=fooled, passes=passes)


def cost(search: Search) -> Passes:
    """The passes of one question."""
    return Passes(forwards=search.repeats(), backwards=search.repeats() * search.wants_gradient)


def inquire(search: Search, model: Classifier, state: State, threat: Threat) -> Answer:
    """Ask the network what a search wants to know: one forward pass, and one backward pass for a gradient."""
    x = search.ask(state, threat).detach()
    if not search.wants_gradient:
        with torch.no_grad():
            return Answer(x, model(x))
    answers: list[tuple[torch.Tensor, ...]] = []
    for _ in range(search.repeats()):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            logits = model(x)
            loss = search.loss(state, logits)
            answers.append((logits.detach(), loss.detach(), torch.autograd.grad(loss.sum(), x)[0]))
    logits, loss, gradient = (torch.stack(part).mean(0) for part in zip(*answers, strict=True))
    return Answer(x.detach(), logits, loss, gradient)


def succeeded(answer: Answer, x: Images, y: Labels, threat: Threat) -> PerExampleBool:
    """Whether the images asked about are misclassified and inside the threat."""
    return (answer.logits.argmax(1) != y) & threat.contains(x, answer.x, slack=SLACK)
