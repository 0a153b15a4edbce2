"""Projected gradient descent (PGD) on the negative loss, in any norm, and with the loss of CW."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Annotated, ClassVar, Literal, TypeAlias, final

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult, CheckedNetwork
from allrounder.attacks.losses import (
    ALLOW_CUSTOM_LOSS,
    LOSSES,
    AttackLoss,
    CustomLoss,
    LossName,
    cross_entropy,
    cross_entropy_grad,
    hinge,
    log_likelihood_grad,
    needs_natural,
)
from allrounder.config.fields import PositiveFloat, PositiveInt, Ratio, frozen_config
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Logits, Passes

Start: TypeAlias = Literal["random", "boundary", "gaussian", "zero"]
StepSize: TypeAlias = Annotated[Ratio, Field(gt=0)]


@final
@frozen_config
class Pgd(Attack):
    """Projected gradient descent (PGD): steps of fixed length that increase the loss; returns the last point.

    x_0 = P(x + start), then x_{t+1} = P(x_t + step * eps * ascend(grad_x loss(f(x_t), y))), with P the
    projection on ball and box. The loss at the last point is not computed.
    Madry et al., 2018, Towards deep learning models resistant to adversarial attacks.
    """

    names: ClassVar[tuple[str, ...]] = ("pgd",)

    steps: PositiveInt = 10
    step: StepSize = 0.25
    """Length of a step, as a fraction of eps."""
    loss: Annotated[LossName | CustomLoss, ALLOW_CUSTOM_LOSS] = "ce"
    """The loss to increase: ce (cross-entropy), margin, cw (hinge of the margin), lse (squared error of the
    probabilities), or from the natural prediction, kl (divergence) and lse-drift (squared error)."""
    start: Start = "random"
    """random (in the ball), boundary (on it), gaussian (0.001 * noise, as in TRADES), zero (the image)."""
    eot: PositiveInt = 1
    """How many gradients to average in a step, for random networks (expectation over transformations)."""

    def __post_init__(self) -> None:
        check_start(self.loss, self.start)

    @override
    def passes(self) -> Passes:
        return Passes(self.steps * self.eot + needs_natural(self.loss_fn()), self.steps * self.eot)

    def loss_fn(self) -> AttackLoss:
        """The loss as a function."""
        return self.loss if isinstance(self.loss, CustomLoss) else LOSSES[self.loss]

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        d = initial_perturbation(self.start, x, threat, rng)
        loss = self.loss_fn()
        return pgd_loop(model, x, y, threat, loss, d, steps=self.steps, step=self.step, eot=self.eot)


@final
@frozen_config
class Cw(Attack):
    """CW loss, PGD optimiser: PGD on -max(z_y - max_{k != y} z_k + kappa, 0), from a random start.

    This is the attack that papers on adversarial training call CW, not the minimal-norm attack of the same
    paper. Carlini and Wagner, 2017, Towards evaluating the robustness of neural networks.
    """

    names: ClassVar[tuple[str, ...]] = ("cw",)

    steps: PositiveInt = 30
    step: StepSize = 0.25
    """Length of a step, as a fraction of eps."""
    kappa: PositiveFloat = 50.0
    """The margin above which the loss of an example is constant."""

    @override
    def passes(self) -> Passes:
        return Passes(self.steps, self.steps)

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        loss = partial(hinge, kappa=self.kappa)
        d = initial_perturbation("random", x, threat, rng)
        return pgd_loop(model, x, y, threat, loss, d, steps=self.steps, step=self.step)


def check_start(loss: LossName | CustomLoss, start: Start) -> None:
    """Raise ValueError for a loss that has no gradient at the start."""
    if loss in ("kl", "lse-drift") and start == "zero":
        fix = "set start to gaussian, random or boundary"
        raise ValueError(f"the loss {loss} is flat at the image itself, got start = zero; {fix}")


def initial_perturbation(start: Start, x: Images, threat: Threat, rng: Rng) -> Images:
    """The perturbation to start from, before projection."""
    match start:
        case "random":
            return threat.norm.sample(x, threat.eps, rng.fold_in("start"))
        case "boundary":
            return threat.norm.sample_boundary(x, threat.eps, rng.fold_in("start"))
        case "gaussian":
            return 0.001 * rng.fold_in("start").normal(x)
        case "zero":
            return torch.zeros_like(x)


def pgd_loop(
    model: Classifier,
    x: Images,
    y: Labels,
    threat: Threat,
    loss: AttackLoss,
    start: Images,
    *,
    steps: int,
    step: float,
    momentum_fn: Callable[[Images, Images], Images] = lambda m, g: g,
    eot: int = 1,
) -> AttackResult:
    """The loop of PGD: compute the gradient g, set m = momentum_fn(m, g), step along m, project."""
    natural = model(x) if needs_natural(loss) else None
    alpha, project = step * threat.eps, threat.projector(x)
    x_adv = project(x + start)
    m = torch.zeros_like(x)
    grad = LossGradient(model, y, loss, natural, eot)
    for _ in range(steps):
        m = momentum_fn(m, grad(x_adv))
        x_adv = project(threat.norm.move(x_adv, m, alpha))
    return AttackResult(x=x_adv, passes=Passes(steps * eot + (natural is not None), steps * eot))


def loss_grad(
    model: Classifier, x: Images, y: Labels, loss: AttackLoss, natural: Logits | None = None, eot: int = 1
) -> Images:
    """The gradient of each example's loss with respect to its image: see `LossGradient`."""
    return LossGradient(model, y, loss, natural, eot)(x)


@final
class LossGradient:
    """The gradient of each example's loss with respect to its image, as a mean of `eot` gradients.

    What all steps of an attack have in common is computed once. Athalye et al., 2018, Synthesizing robust
    adversarial examples: expectation over transformations (EOT).
    """

    def __init__(
        self, model: Classifier, y: Labels, loss: AttackLoss, natural: Logits | None = None, eot: int = 1
    ) -> None:
        self.model, self.y, self.loss, self.natural, self.eot = model, y, loss, natural, eot
        self.upstream: Logits | None = None
        """The first factor of the gradient of the cross-entropy."""

    def __call__(self, x: Images) -> Images:
        """The gradient at x."""
        if self.eot == 1:  # not divided: that would cost time and could change bits
            return self._draw(x)
        return reduce(torch.add, (self._draw(x) for _ in range(self.eot))) / self.eot

    def _draw(self, x: Images) -> Images:
        found = self.model.vjp(x) if isinstance(self.model, CheckedNetwork) else None
        if found is not None:
            logits, pull_back = found
            return pull_back(self._logit_grad(logits))
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            total = self.loss(self.model(point), self.y, self.natural).sum()
        return input_grad(total, point)

    def _logit_grad(self, logits: Logits) -> Logits:
        if self.loss is cross_entropy:
            if self.upstream is None:
                self.upstream = log_likelihood_grad(logits, self.y)
            return cross_entropy_grad(logits, self.upstream)
        with torch.enable_grad():
            point = logits.detach().requires_grad_()
            # A loss may work in place, which a leaf forbids.
            total = self.loss(point.clone(), self.y, self.natural).sum()
        return input_grad(total, point)


def input_grad(total: Tensor, x: Tensor) -> Tensor:
    """The gradient of a sum of losses with respect to images or logits; raise ValueError if there is none."""
    g = torch.autograd.grad(total, x, allow_unused=True)[0] if total.requires_grad else None
    if g is None:
        fix = "remove no_grad, detach or rounding from the network, or wrap the steps that need them in Bpda"
        raise ValueError(f"no gradient reaches the images; {fix}")
    return g
