"""The momentum iterative method."""

from __future__ import annotations

from typing import ClassVar, final

from allrounder.attacks.base import Attack, Crafted
from allrounder.attacks.losses import cross_entropy
from allrounder.attacks.pgd import Step, climb
from allrounder.config.fields import Count, Share, value
from allrounder.rng import Draws
from allrounder.threats.norms import EVERY_NORM, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes


@final
@value
class Mim(Attack):
    """Momentum iterative method (MIM, MI-FGSM): steps along a running sum of normalised gradients.

    m = decay * m + g / mean|g|, then x_{t+1} = P(x_t + step * eps * ascend(m)), from a random start, on
    cross-entropy. Dong et al., 2018, Boosting adversarial attacks with momentum.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM

    steps: Count = 20
    step: Step = 0.25
    """Length of a step, as a fraction of eps."""
    decay: Share = 1.0
    """How much of the sum survives a step; 0 is PGD."""

    def passes(self) -> Passes:
        """A pair for every step."""
        return Passes(self.steps, self.steps)

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Climb with momentum."""

        def gather(m: Images, g: Images) -> Images:
            return self.decay * m + g / (g.abs().mean(dim=(1, 2, 3), keepdim=True) + 1e-12)

        d = threat.norm.sample(x, threat.eps, draws.at("start"))
        return climb(model, x, y, threat, cross_entropy, d, steps=self.steps, step=self.step, gather=gather)
