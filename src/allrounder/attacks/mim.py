"""The momentum iterative method (MIM)."""

from __future__ import annotations

from typing import ClassVar, final

from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.losses import cross_entropy
from allrounder.attacks.pgd import StepSize, initial_perturbation, pgd_loop
from allrounder.config.fields import PositiveInt, Share, frozen_config
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes


@final
@frozen_config
class Mim(Attack):
    """Momentum iterative method (MIM, MI-FGSM): steps along a decaying sum of normalised gradients.

    m = decay * m + g / mean|g|, then x_{t+1} = P(x_t + step * eps * ascend(m)), from a random start, on
    cross-entropy. Dong et al., 2018, Boosting adversarial attacks with momentum.
    """

    names: ClassVar[tuple[str, ...]] = ("mim", "mi-fgsm")

    steps: PositiveInt = 20
    step: StepSize = 0.25
    """Length of a step, as a fraction of eps."""
    decay: Share = 1.0
    """The factor of the sum in each step; 0 is PGD."""

    @override
    def passes(self) -> Passes:
        return Passes(self.steps, self.steps)

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        def accumulate(m: Images, g: Images) -> Images:
            return self.decay * m + g / (g.abs().mean(dim=(1, 2, 3), keepdim=True) + 1e-12)

        d = initial_perturbation("random", x, threat, rng)
        return pgd_loop(
            model, x, y, threat, cross_entropy, d, steps=self.steps, step=self.step, momentum_fn=accumulate
        )
