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
from jaxtyping import Float
from torch import Tensor

from allrounder.attacks.base import Attack, Crafted
from allrounder.rng import Draws
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Logits, Passes, PerExampleBool

State: TypeAlias = dict[str, Tensor]
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
    passes: Passes
    loss: Float[Tensor, "m n"] | None = None
    """The losses that were differentiated; None where no gradient was wanted."""
    gradient: Float[Tensor, "m n c h w"] | None = None
    """Their gradients with respect to x."""


class Search(Attack):
    """An attack by asking; the subclasses are final frozen values."""

    cycle: ClassVar[tuple[bool, ...]] = (True,)
    """Whether the questions of a step want gradients, in turn; all examples of a batch keep in step."""

    @abstractmethod
    def address(self) -> str:
        """The text that selects this search's random numbers, and under which its results are stored.

        It is data: renaming a class or adding a field must not change it.
        """

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

    def loss(self, state: State, logits: Logits) -> Float[Tensor, "*m n"]:
        """What to differentiate at the image asked about, if a gradient is wanted: one loss or several."""
        raise AssertionError("only searches that want gradients have a loss")

    @abstractmethod
    def tell(self, state: State, answer: Answer, threat: Threat) -> State:
        """The state after an answer; a new one, the old is left alone."""

    @abstractmethod
    def finished(self, state: State) -> PerExampleBool:
        """Which examples have used up their round."""

    @abstractmethod
    def questions(self) -> int:
        """How many questions a round asks that breaks nothing: its budget, which drivers hold it to."""

    def ahead(self, state: State, steps: Labels) -> State | None:
        """The state after so many answers that change nothing, if that is known; `tell` changes what this
        does."""
        return None

    def moved(self, before: State, after: State) -> PerExampleBool:
        """Where an answer has changed what is asked next; for searches that can look ahead."""
        raise AssertionError("only searches that look ahead can be told from")

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
                for gradient in self.cycle:
                    answer = inquire(self, model, state, threat, gradient)
                    passes = passes + answer.passes
                    new = succeeded(answer, x, y, threat) & ~fooled & ~self.finished(state)
                    x_adv = torch.where(new[:, None, None, None], answer.x, x_adv)
                    fooled = fooled | new
                    state = self.tell(state, answer, threat)
        return Crafted(x=x_adv, fooled=fooled, passes=passes)


def inquire(search: Search, model: Classifier, state: State, threat: Threat, gradient: bool) -> Answer:
    """Ask the network what a search wants to know: a forward pass, and a backward pass for each gradient.

    A network that is random may be asked several times; then the answers are averaged.
    """
    x = search.ask(state, threat).detach()
    if not gradient:
        with torch.no_grad():
            return Answer(x, model(x), Passes(forwards=1))
    answers = [_differentiate(search, model, state, x) for _ in range(search.repeats())]
    passes = Passes(len(answers), sum(len(answer[1]) for answer in answers))
    if len(answers) == 1:
        return Answer(x, answers[0][0], passes, *answers[0][1:])
    logits, loss, slopes = (torch.stack(part).mean(0) for part in zip(*answers, strict=True))
    return Answer(x, logits, passes, loss, slopes)


def _differentiate(
    search: Search, model: Classifier, state: State, x: Images
) -> tuple[Logits, Float[Tensor, "m n"], Float[Tensor, "m n c h w"]]:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        logits = model(x)
        loss = search.loss(state, logits)
        rows = loss if loss.dim() == 2 else loss[None]
        totals = rows.sum(dim=1)
        more = [row < len(totals) - 1 for row in range(len(totals))]
        slopes = [torch.autograd.grad(t, x, retain_graph=m)[0] for t, m in zip(totals, more, strict=True)]
    return logits.detach(), rows.detach(), torch.stack(slopes) if len(slopes) > 1 else slopes[0][None]


def succeeded(answer: Answer, x: Images, y: Labels, threat: Threat) -> PerExampleBool:
    """Whether the images asked about are misclassified and inside the threat."""
    wrong = answer.logits.argmax(1) != y
    rows = wrong.nonzero().squeeze(1)
    if len(rows):
        # Most images are classified correctly, and then it does not matter where they are.
        wrong[rows] = threat.contains(x[rows], answer.x[rows], slack=SLACK)
    return wrong
