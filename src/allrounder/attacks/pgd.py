"""Projected gradient descent on minus the loss, in any norm, and the loop that its relatives share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, TypeAlias, final

import torch
from pydantic import Field
from torch import Tensor

from allrounder.attacks.base import Attack, Crafted
from allrounder.attacks.custom_loss import CustomLoss, OrCustom
from allrounder.attacks.losses import LOSSES, NEEDS_NATURAL, AttackLoss, LossName
from allrounder.config.fields import Count, Ratio, value
from allrounder.rng import Draws
from allrounder.threats.norms import EVERY_NORM, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Logits, Passes

Start: TypeAlias = Literal["random", "boundary", "gaussian", "zero"]
Step: TypeAlias = Annotated[Ratio, Field(gt=0)]


@final
@value
class Pgd(Attack):
    """Projected gradient descent (PGD): steps of fixed length up the loss; the last point counts.

    x_0 = P(x + start), then x_{t+1} = P(x_t + step * eps * ascend(grad_x loss(f(x_t), y))), with P the
    projection on ball and box. Takes exactly `steps * eot` forward and backward passes (and one forward more
    for a loss that compares with the natural prediction), so loss and fooled at the last point stay unknown.
    Madry et al., 2018, Towards deep learning models resistant to adversarial attacks.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM

    steps: Count = 10
    step: Step = 0.25
    """Length of a step, as a fraction of eps."""
    loss: Annotated[LossName | CustomLoss, OrCustom()] = "ce"
    """What to climb: ce (cross-entropy), margin, cw (its hinge), kl (from the natural prediction), lse (the
    squared error of probabilities), lse-drift (the same from the natural prediction)."""
    start: Start = "random"
    """random (in the ball), boundary (on it), gaussian (0.001 * noise, as in TRADES), zero (the image)."""
    eot: Count = 1
    """How many gradients of a random network to average in a step (expectation over transformations)."""

    def __post_init__(self) -> None:
        if self.loss in ("kl", "lse-drift") and self.start == "zero":
            said = "is flat at the image itself; start gaussian or random, not zero"
            raise ValueError(f"the loss {self.loss} {said}")

    def passes(self) -> Passes:
        """A pair for every gradient, and the natural prediction where the loss compares with it."""
        return Passes(self.steps * self.eot + needs_natural(self.climbed()), self.steps * self.eot)

    def climbed(self) -> AttackLoss:
        """The loss as a function."""
        return self.loss if isinstance(self.loss, CustomLoss) else LOSSES[self.loss]

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Climb from the chosen start."""
        d = start_at(self.start, x, threat, draws)
        return climb(model, x, y, threat, self.climbed(), d, steps=self.steps, step=self.step, eot=self.eot)


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
    eot: int = 1,
) -> Crafted:
    """The loop: gradient; gather it with the earlier ones into m; step up along m; project."""
    natural = model(x) if needs_natural(loss) else None
    alpha = step * threat.eps
    project = threat.around(x)
    x_adv, m = project(x + start), torch.zeros_like(x)
    for _ in range(steps):
        g = mean_gradient(model, x_adv, y, loss, natural, eot)
        m = gather(m, g)
        x_adv = project(threat.norm.ascend(m).mul_(alpha).add_(x_adv))
    forwards, backwards = steps * eot + (natural is not None), steps * eot
    return Crafted(x=x_adv, passes=Passes(forwards=forwards, backwards=backwards))


def needs_natural(loss: AttackLoss) -> bool:
    """Whether a loss compares with the natural prediction."""
    return loss.needs_natural if isinstance(loss, CustomLoss) else loss in NEEDS_NATURAL


def mean_gradient(
    model: Classifier, x: Images, y: Labels, loss: AttackLoss, natural: Logits | None, eot: int
) -> Images:
    """The mean of so many gradients at one point: the network draws anew in every pass.

    Athalye et al., 2018, Synthesizing robust adversarial examples: expectation over transformations (EOT).
    """
    g = gradient(model, x, y, loss, natural)
    for _ in range(eot - 1):
        g = g + gradient(model, x, y, loss, natural)
    # One gradient is not touched, so that averaging costs other attacks neither time nor bits.
    return g / eot if eot > 1 else g


def gradient(model: Classifier, x: Images, y: Labels, loss: AttackLoss, natural: Logits | None) -> Images:
    """The gradient of every example's loss with respect to its image; parameters get none."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        total = loss(model(x), y, natural).sum()
    return slope(total, x)


def slope(total: Tensor, x: Images) -> Images:
    """The gradient of a sum of losses with respect to the images that they were computed from."""
    g = torch.autograd.grad(total, x, allow_unused=True)[0] if total.requires_grad else None
    if g is None:
        raise ValueError(
            "no gradient reaches the images; remove no_grad, detach or rounding from the network, or wrap "
            "what needs them in Bpda"
        )
    return g
