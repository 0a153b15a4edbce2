"""Projected gradient descent that stops soon after the network is fooled."""

from __future__ import annotations

from typing import ClassVar, Literal, final

import torch

from allrounder.attacks.base import Attack, Crafted
from allrounder.attacks.losses import LOSSES, NEEDS_NATURAL
from allrounder.attacks.pgd import Start, Step, slope, start_at
from allrounder.config.fields import Count, NonNegative, Whole, value
from allrounder.rng import Draws
from allrounder.threats.norms import EVERY_NORM, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes


@final
@value
class Friendly(Attack):
    """PGD that leaves an image alone `tau` steps after it is first misclassified: friendly to the learner.

    Before each of the `steps` steps every image that still moves is classified. Misclassified, it stops
    where it is if it has no steps to spare, and else has one less; the others move,
    x_{t+1} = P(x_t + step * eps * ascend(g) + omega * noise), as in PGD. So with tau = 0 an image that is
    wrong at its random start takes no step at all, and with tau = steps and omega = 0 this is PGD to the bit.
    Only images that move pass through the network. Zhang et al., 2020, Attacks which do not kill training
    make adversarial learning stronger.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM

    steps: Count = 10
    """The most steps an image takes."""
    step: Step = 0.25
    """Length of a step, as a fraction of eps."""
    tau: Whole = 0
    """Steps after the first misclassification."""
    omega: NonNegative = 0.001
    """The deviation of Gaussian noise that is added in every step, in image units."""
    loss: Literal["ce", "kl"] = "ce"
    """What to climb: cross-entropy, or the divergence from the natural prediction."""
    start: Start = "random"
    """random (in the ball), boundary (on it), gaussian (0.001 * noise, as in TRADES), zero (the image)."""

    def __post_init__(self) -> None:
        if self.loss == "kl" and self.start == "zero":
            raise ValueError("the loss kl is flat at the image itself; start gaussian or random, not zero")

    def passes(self) -> Passes:
        """A pair for every step, at most, and the natural prediction where the loss compares with it."""
        return Passes(self.steps + (self.loss == "kl"), self.steps)

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Move the images that still may; the order stays."""
        # Differs: released code hands out the images that stopped first before all others; here they keep
        # their places (ADR 0021).
        natural = model(x) if LOSSES[self.loss] in NEEDS_NATURAL else None
        passes = Passes(forwards=int(natural is not None))
        x_adv = threat.project(x, x + start_at(self.start, x, threat, draws))
        spare, taken = torch.full_like(y, self.tau), torch.zeros_like(y)
        moving = torch.arange(len(y), device=y.device)
        for number in range(self.steps):
            with torch.enable_grad():
                here = x_adv[moving].requires_grad_()
                logits = model(here)
                kept = None if natural is None else natural[moving]
                total = LOSSES[self.loss](logits, y[moving], kept).sum()
            wrong = logits.detach().argmax(dim=1) != y[moving]
            goes = ~wrong | (spare[moving] > 0)
            passes += Passes(1, int(bool(goes.any())))
            if not goes.any():
                break
            spare[moving] -= wrong.long()
            g, moving = slope(total, here)[goes], moving[goes]
            move = self.step * threat.eps * threat.norm.ascend(g)
            if self.omega:
                move = move + self.omega * draws.at("noise", number).normal(x)[moving]
            x_adv[moving] = threat.project(x[moving], x_adv[moving] + move)
            taken[moving] += 1
        return Crafted(x=x_adv, passes=passes, steps=taken)
