"""The margin loss of Carlini and Wagner, climbed with PGD."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, final

from allrounder.attacks.base import Attack, Crafted
from allrounder.attacks.losses import hinge
from allrounder.attacks.pgd import Step, climb
from allrounder.config.fields import Count, Positive, value
from allrounder.rng import Draws
from allrounder.threats.norms import EVERY_NORM, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes


@final
@value
class Cw(Attack):
    """CW loss, PGD optimiser: PGD on -max(z_y - max_{k != y} z_k + kappa, 0), from a random start.

    What tables of adversarial training call CW; not the minimal-norm attack of the same paper. Carlini and
    Wagner, 2017, Towards evaluating the robustness of neural networks.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM

    steps: Count = 30
    step: Step = 0.25
    """Length of a step, as a fraction of eps."""
    kappa: Positive = 50.0
    """The margin beyond which an example is left alone."""

    def passes(self) -> Passes:
        """A pair for every step."""
        return Passes(self.steps, self.steps)

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Climb the margin."""
        loss = partial(hinge, kappa=self.kappa)
        d = threat.norm.sample(x, threat.eps, draws.at("start"))
        return climb(model, x, y, threat, loss, d, steps=self.steps, step=self.step)
