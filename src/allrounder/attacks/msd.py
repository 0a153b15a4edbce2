"""Multi steepest descent: one search through the union of several balls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, final

import torch
from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult, select_rows
from allrounder.attacks.losses import cross_entropy
from allrounder.attacks.pgd import StepSize, loss_grad
from allrounder.config.fields import PositiveInt, frozen_config
from allrounder.rng import Rng
from allrounder.threats.norms import L1, L2, Linf, Norm
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Classifier, Images, Labels, Passes

NORM_ORDER: tuple[type[Norm], ...] = (L1, L2, Linf)
"""The order in which candidates are compared; the last one wins ties."""
MIN_COORDINATES, MAX_COORDINATES = 5, 20
"""The range of the number of coordinates that an L1 step moves."""


@final
@frozen_config
class Msd(Attack):
    """Multi steepest descent (MSD): each step uses the norm whose steepest step increases the loss most.

    d_0 = 0. Each threat p gives a candidate c_p = box(P_p(d_t + alpha_p steepest_p(g))), with g the gradient
    of the cross-entropy at x + d_t and P_p the projection on the ball of p. For each image, d_{t+1} is the
    candidate of highest cross-entropy, so d stays in the union of the balls. The result is the best d of all
    steps, not the last; the start does not count.

    An L1 step moves the k coordinates of largest |g| by alpha_1 / k each, with k drawn uniformly from 5 to 20
    in each step. It skips coordinates at a bound of the box, or within alpha_1 / k of the bound ahead.
    Maini et al., 2020, Adversarial robustness against the union of multiple perturbation models.
    """

    supports_unions: ClassVar[bool] = True

    steps: PositiveInt = 10
    linf_step: StepSize = 0.25
    """Length of a step in Linf, as a fraction of eps."""
    l2_step: StepSize = 0.25
    """Length of a step in L2, as a fraction of eps."""
    l1_step: StepSize = 0.25
    """Length of a step in L1, summed over its coordinates, as a fraction of eps."""

    @override
    def passes(self) -> Passes:
        return Passes(2, 1) * self.steps

    def passes_under(self, threats: Sequence[Threat]) -> Passes:
        """Each step takes a gradient, and a forward pass per candidate."""
        return Passes(1 + len(threats), 1) * self.steps

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat | AnyOf, rng: Rng) -> AttackResult:
        # Sorting is stable, so two balls of the same norm keep their order.
        union = sorted(threat.threats, key=lambda member: NORM_ORDER.index(type(member.norm)))
        point = best = x
        best_loss = torch.zeros_like(x[:, 0, 0, 0])
        for t in range(self.steps):
            g = loss_grad(model, point, y, cross_entropy)
            chosen, chosen_loss = point, torch.full_like(best_loss, float("-inf"))
            for member in union:
                candidate = self._candidate(member, x, point, g, rng.fold_in("step", t))
                loss = cross_entropy(model(candidate), y)
                # Not (loss >= chosen_loss), so that a NaN is kept and `perturb` detects it.
                higher = ~(loss < chosen_loss)
                chosen = select_rows(higher, candidate, chosen)
                chosen_loss = torch.where(higher, loss, chosen_loss)
            point = chosen
            better = ~(chosen_loss <= best_loss)
            best = select_rows(better, point, best)
            best_loss = torch.where(better, chosen_loss, best_loss)
        return AttackResult(x=best, loss=best_loss, passes=self.passes_under(union))

    def _candidate(self, threat: Threat, x: Images, point: Images, g: Images, rng: Rng) -> Images:
        match threat.norm:
            case L1():
                # One number for the batch, also on a rank that attacks a single image of it.
                shared = replace(rng.fold_in("coordinates"), shard=None)
                drawn = shared.integers(1, MIN_COORDINATES, MAX_COORDINATES + 1)
                k = min(int(drawn), x[0].numel())
                length = self.l1_step * threat.eps / k
                d = point - x + length * k_hot(g, point, k, length)
                return (x + project_l1_ball(d, threat.eps)).clamp(0, 1)
            case _:
                step = self.l2_step if isinstance(threat.norm, L2) else self.linf_step
                return threat.project(x, point + step * threat.eps * threat.norm.ascend(g))


def k_hot(g: Images, x: Images, k: int, gap: float) -> Images:
    """sign(g) on the k free coordinates of largest |g|, zero elsewhere.

    A coordinate is not free if x is at a bound of the box, or within `gap` of the bound that g points to.
    """
    blocked = (x <= 0) | (x >= 1) | ((g < 0) & (x <= gap)) | ((g > 0) & (x >= 1 - gap))
    free = torch.where(blocked, 0, g).flatten(1)
    top = free.abs().topk(k, dim=1).indices
    # torch.sign maps NaN to 0; adding 0 * g keeps it.
    signs = free.gather(1, top).sign() + 0 * free.gather(1, top)
    return torch.zeros_like(free).scatter(1, top, signs).view_as(g)


def project_l1_ball(d: Images, eps: float) -> Images:
    """Project d on the L1 ball, without the box: |d_i| becomes max(|d_i| - level, 0).

    The level is the largest of (|d|_(1) + .. + |d|_(j) - eps) / j, with |d| in descending order.
    """
    size = d.abs().flatten(1)
    sums = size.sort(dim=1, descending=True).values.cumsum(1) - eps
    counts = torch.arange(1, size.shape[1] + 1, dtype=size.dtype, device=size.device)
    level = (sums / counts).amax(dim=1, keepdim=True).clamp(min=0)
    return (d.flatten(1).sign() * (size - level).clamp(min=0)).view_as(d)
