"""Projected gradient descent on minus the loss, in any norm, and the loop that its relatives share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, TypeAlias, final

import torch
from pydantic import Field

from allrounder.attacks.base import Attack, Crafted
from allrounder.attacks.losses import LOSSES, NEEDS_NATURAL, AttackLoss, LossName
from allrounder.norms import EVERY_NORM, Norm
from allrounder.rng import Draws
from allrounder.threats import Threat
from allrounder.types import Classifier, Images, Labels, Logits, Passes
from allrounder.values import Count, Ratio, value

Start: TypeAlias = Literal["random", "boundary", "gaussian", "zero"]
Step: TypeAlias = Annotated[Ratio, Field(gt=0)]


@final
@value
class Pgd(Attack):
    """Projected gradient descent (PGD): steps of fixed length up the loss; the last point counts.

    x_0 = P(x + start), then x_{t+1} = P(x_t + step * eps * ascend(grad_x loss(f(x_t), y))), with P the
    projection on ball and box. Takes exactly `steps` forward and backward passes (and one forward more for
    the loss kl), so loss and fooled at the last point stay unknown. Madry et al., 2018, Towards deep learning
    models resistant to adversarial attacks.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM

    steps: Count = 10
    step: Step = 0.25
    """Length of a step, as a fraction of eps."""
    loss: LossName = "ce"
    """What to climb: ce (cross-entropy), margin, cw (its hinge), kl (from the natural prediction)."""
    start: Start = "random"
    """random (in the ball), boundary (on it), gaussian (0.001 * noise, as in TRADES), zero (the image)."""

    def __post_init__(self) -> None:
        if self.loss == "kl" and self.start == "zero":
            raise ValueError("the loss kl is flat at the image itself; start gaussian or random, not zero")

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Climb from the chosen start."""
        d = start_at(self.start, x, threat, draws)
        return climb(model, x, y, threat, LOSSES[self.loss], d, steps=self.steps, step=self.step)


def start_at(start: Start, x: Images, threat: Threat, draws: Draws) -> Images:
    """The perturbation to start from, not projected yet."""
    match start:
        case "random":
            return threat.norm.sample(x, threat.eps, draws.at("start"))
        case "boundary":
            return threat.norm.boundary(x, threat.eps, draws.at("start"))
        case "gaussian":
            return 0.001 * draws.at("start").normal(x)
        case "zero":
            return torch.zeros_like(x)


def newest(m: Images, g: Images) -> Images:
    """Follow the newest gradient alone."""
    return g


def climb(
    model: Classifier,
    x: Images,
    y: Labels,
    threat: Threat,
    loss: AttackLoss,
    start: Images,
    *,
    steps: int,
    step: float,
    gather: Callable[[Images, Images], Images] = newest,
) -> Crafted:
    """The loop: gradient; gather it with the earlier ones into m; step up along m; project."""
    natural = model(x) if loss in NEEDS_NATURAL else None
    alpha = step * threat.eps
    x_adv, m = threat.project(x, x + start), torch.zeros_like(x)
    for _ in range(steps):
        g = gradient(model, x_adv, y, loss, natural)
        m = gather(m, g)
        x_adv = threat.project(x, x_adv + alpha * threat.norm.ascend(m))
    return Crafted(x=x_adv, passes=Passes(forwards=steps + (natural is not None), backwards=steps))


def gradient(model: Classifier, x: Images, y: Labels, loss: AttackLoss, natural: Logits | None) -> Images:
    """The gradient of every example's loss with respect to its image; parameters get none."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        total = loss(model(x), y, natural).sum()
        g = torch.autograd.grad(total, x, allow_unused=True)[0] if total.requires_grad else None
    if g is None:
        raise ValueError(
            "no gradient reaches the images; remove no_grad, detach or rounding from the network"
        )
    return g
