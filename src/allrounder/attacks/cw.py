"""PGD on the margin loss of Carlini and Wagner."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, final

from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.losses import hinge
from allrounder.attacks.pgd import StepSize, pgd_loop
from allrounder.config.fields import PositiveFloat, PositiveInt, frozen_config
from allrounder.rng import Rng
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes


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
        d = threat.norm.sample(x, threat.eps, rng.fold_in("start"))
        return pgd_loop(model, x, y, threat, loss, d, steps=self.steps, step=self.step)
