"""Projected gradient descent that stops soon after the network is fooled."""

from __future__ import annotations

from typing import Literal, final

import torch
from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.losses import LOSSES, needs_natural
from allrounder.attacks.pgd import Start, StepSize, check_start, initial_perturbation, input_grad
from allrounder.config.fields import NonNegativeFloat, NonNegativeInt, PositiveInt, frozen_config
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes


@final
@frozen_config
class EarlyStopPgd(Attack):
    """PGD that stops `tau` steps after an image is first misclassified (friendly adversarial training).

    Each image starts with tau spare steps. Before each step the moving images are classified: a misclassified
    image stops if it has no spare step left, and otherwise uses one up. The others move as in PGD,
    x_{t+1} = P(x_t + step * eps * ascend(g) + omega * noise). With tau = steps and omega = 0 this equals PGD
    bit for bit. Only moving images pass through the network.
    Zhang et al., 2020, Attacks which do not kill training make adversarial learning stronger.
    """

    steps: PositiveInt = 10
    """The maximum number of steps of an image."""
    step: StepSize = 0.25
    """Length of a step, as a fraction of eps."""
    tau: NonNegativeInt = 0
    """The number of steps after the first misclassification."""
    omega: NonNegativeFloat = 0.001
    """The standard deviation of the Gaussian noise added in each step, in image units."""
    loss: Literal["ce", "kl"] = "ce"
    """The loss to increase: ce (cross-entropy), kl (divergence from the natural prediction)."""
    start: Start = "random"
    """random (in the ball), boundary (on it), gaussian (0.001 * noise, as in TRADES), zero (the image)."""

    def __post_init__(self) -> None:
        check_start(self.loss, self.start)

    @override
    def passes(self) -> Passes:
        return Passes(self.steps + needs_natural(LOSSES[self.loss]), self.steps)

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        # Differs: released code returns the images that stopped first before all others; here images keep
        # their order (ADR 0021).
        loss = LOSSES[self.loss]
        natural = model(x) if needs_natural(loss) else None
        passes = Passes(forwards=int(natural is not None))
        x_adv = threat.project(x, x + initial_perturbation(self.start, x, threat, rng))
        spare_steps, steps_taken = torch.full_like(y, self.tau), torch.zeros_like(y)
        moving = torch.arange(len(y), device=y.device)
        for number in range(self.steps):
            with torch.enable_grad():
                point = x_adv[moving].requires_grad_()
                logits = model(point)
                total = loss(logits, y[moving], None if natural is None else natural[moving]).sum()
            fooled = logits.detach().argmax(dim=1) != y[moving]
            continues = ~fooled | (spare_steps[moving] > 0)
            passes += Passes(1, int(continues.any()))
            if not continues.any():
                break
            spare_steps[moving] -= fooled.long()
            g = input_grad(total, point)[continues]
            moving = moving[continues]
            d = self.step * threat.eps * threat.norm.ascend(g)
            if self.omega:
                d = d + self.omega * rng.fold_in("noise", number).normal(x)[moving]
            x_adv[moving] = threat.project(x[moving], x_adv[moving] + d)
            steps_taken[moving] += 1
        return AttackResult(x=x_adv, passes=passes, steps=steps_taken)
