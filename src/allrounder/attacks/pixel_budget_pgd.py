"""Projected gradient descent with a separate budget for every pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.losses import needs_natural
from allrounder.attacks.pgd import Pgd, initial_perturbation, loss_grad
from allrounder.rng import Rng
from allrounder.threats.norms import Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes

ROUNDING_SLACK = 1e-6
"""The relative rounding error by which a pixel's budget may exceed that of the threat."""


@final
@dataclass(frozen=True, eq=False)
class PixelBudgetPgd(Attack):
    """PGD that changes pixel i by at most budgets_i, where no budget exceeds that of the threat.

    x_0 = x + start, not projected, as in the released code; then x_t + step * eps * sign(g) is clipped to
    the budgets around x and to [0, 1]. All other settings are those of `pgd`. An instance belongs to one
    batch, so this attack is in no table.
    Zhang et al., 2024, Improving accuracy-robustness trade-off via pixel reweighted adversarial training.
    """

    norms: ClassVar[frozenset[type[Norm]]] = frozenset({Linf})

    pgd: Pgd
    budgets: Images

    @override
    def passes(self) -> Passes:
        return self.pgd.passes()

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        pgd, budgets = self.pgd, self.budgets
        smallest, largest = float(budgets.min()), float(budgets.max())
        if budgets.shape != x.shape or smallest < 0 or largest > threat.eps * (1 + ROUNDING_SLACK):
            span = f"from {smallest:g} to {largest:g}"
            raise ValueError(
                f"budgets of shape {tuple(budgets.shape)} go {span}, expected the shape {tuple(x.shape)} of "
                f"the images and 0 to {threat.eps:g}, the budget of {threat}; compute them for this batch"
            )
        loss = pgd.loss_fn()
        natural = model(x) if needs_natural(loss) else None
        low, high = (x - budgets).clamp(min=0), (x + budgets).clamp(max=1)
        x_adv = x + initial_perturbation(pgd.start, x, threat, rng)
        for _ in range(pgd.steps):
            g = loss_grad(model, x_adv, y, loss, natural, pgd.eot)
            x_adv = torch.clamp(x_adv + pgd.step * threat.eps * threat.norm.ascend(g), low, high)
        return AttackResult(x=x_adv, passes=self.passes())

    def __str__(self) -> str:
        return f"PixelBudgetPgd({self.pgd})"
