"""Projected gradient descent with a budget of its own for every number of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from allrounder.attacks.base import Attack, Crafted
from allrounder.attacks.pgd import Pgd, mean_gradient, needs_natural, start_at
from allrounder.rng import Draws
from allrounder.threats.norms import Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes

ROUNDING = 1e-6
"""By which a budget in the type of the images may exceed the threat's."""


@final
@dataclass(frozen=True, eq=False)
class Weighted(Attack):
    """PGD whose perturbation of pixel i stays within budgets_i, none of which exceeds the threat's budget.

    x_0 = x + start, not projected, as released; then x_{t+1} = clip(x_t + step * eps * sign(g), within
    budgets around x and in [0, 1]). Everything else is the plain attack's. It is made for one batch, so it is
    in no table.
    Zhang et al., 2024, Improving accuracy-robustness trade-off via pixel reweighted adversarial training.
    """

    norms: ClassVar[frozenset[type[Norm]]] = frozenset({Linf})

    plain: Pgd
    budgets: Images

    def passes(self) -> Passes:
        """Those of the plain attack."""
        return self.plain.passes()

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Climb from the plain attack's start."""
        plain, budgets = self.plain, self.budgets
        smallest, largest = float(budgets.min()), float(budgets.max())
        if budgets.shape != x.shape or smallest < 0 or largest > threat.eps * (1 + ROUNDING):
            span = f"from {smallest:g} to {largest:g}"
            raise ValueError(
                f"budgets of shape {tuple(budgets.shape)} go {span}, expected the shape {tuple(x.shape)} of "
                f"the images and 0 to {threat.eps:g}, the budget of {threat}; make them of this batch"
            )
        loss = plain.climbed()
        natural = model(x) if needs_natural(loss) else None
        low, high = (x - budgets).clamp(min=0), (x + budgets).clamp(max=1)
        x_adv = x + start_at(plain.start, x, threat, draws)
        for _ in range(plain.steps):
            g = mean_gradient(model, x_adv, y, loss, natural, plain.eot)
            x_adv = torch.clamp(x_adv + plain.step * threat.eps * threat.norm.ascend(g), low, high)
        return Crafted(x=x_adv, passes=self.passes())

    def __str__(self) -> str:
        return f"Weighted({self.plain})"
