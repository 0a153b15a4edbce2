"""Multi steepest descent: one search through the union of several balls."""

from __future__ import annotations

from typing import ClassVar, final

import torch

from allrounder.attacks.base import Attack, Crafted
from allrounder.attacks.losses import cross_entropy
from allrounder.attacks.pgd import Step, gradient
from allrounder.attacks.worst_of import balls
from allrounder.config.fields import Count, value
from allrounder.rng import Draws
from allrounder.threats.norms import EVERY_NORM, L1, L2, Linf, Norm
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Classifier, Images, Labels, Passes, PerExampleBool

ORDER: tuple[type[Norm], ...] = (L1, L2, Linf)
"""In which candidates are compared: of equals, the later one is kept."""
FEWEST, MOST = 5, 20
"""How many coordinates an L1 step moves."""


@final
@value
class MultiSteepest(Attack):
    """Multi steepest descent (MSD): in every step, the steepest step of the norm that raises the loss most.

    d_0 = 0; for every threat p a candidate c_p = box(P_p(d_t + alpha_p steepest_p(g))), with g the gradient
    of the cross-entropy at x + d_t and P_p the projection on the ball of p alone; d_{t+1} is the candidate of
    largest cross-entropy, for every image. So d may leave every ball but one: it wanders in their union. The
    best d of all steps counts, not the last; the start has no say in it.

    An L1 step moves k coordinates of largest |g| by alpha_1 / k each, k drawn uniformly from 5 to 20 in every
    step, but none that is at a wall of the box, or that far from the wall it would go to.
    Maini et al., 2020, Adversarial robustness against the union of multiple perturbation models.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM
    unions: ClassVar[bool] = True

    steps: Count = 10
    linf_step: Step = 0.25
    """Length of a step in Linf, as a fraction of eps."""
    l2_step: Step = 0.25
    """Length of a step in L2, as a fraction of eps."""
    l1_step: Step = 0.25
    """Length of a step in L1, over all its coordinates, as a fraction of eps."""

    def passes(self) -> Passes:
        """Under one threat."""
        return self.passes_under(1)

    def passes_under(self, threats: int) -> Passes:
        """Under a union of so many threats: in every step a gradient, and a forward pass per candidate."""
        return Passes(1 + threats, 1) * self.steps

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat | AnyOf, draws: Draws) -> Crafted:
        """Step to the best candidate, and remember the best of all."""
        # Sorting keeps equals in order, so that two balls of one norm compare as they were written.
        union = sorted(balls(threat), key=lambda one: ORDER.index(type(one.norm)))
        now, best, best_loss = x, x, torch.zeros_like(x[:, 0, 0, 0])
        for t in range(self.steps):
            g = gradient(model, now, y, cross_entropy, None)
            picked, top = now, torch.full_like(best_loss, float("-inf"))
            for one in union:
                candidate = self._candidate(one, x, now, g, draws.at("step", t))
                loss = cross_entropy(model(candidate), y)
                higher = ~(loss < top)  # not (loss >= top), so that a NaN is kept and the gateway sees it
                picked, top = _where(higher, candidate, picked), torch.where(higher, loss, top)
            now, better = picked, ~(top <= best_loss)
            best, best_loss = _where(better, now, best), torch.where(better, top, best_loss)
        return Crafted(x=best, loss=best_loss, passes=self.passes_under(len(union)))

    def _candidate(self, threat: Threat, x: Images, now: Images, g: Images, draws: Draws) -> Images:
        match threat.norm:
            case L1():
                k = min(int(draws.at("coordinates").integers(1, FEWEST, MOST + 1)), x[0].numel())
                length = self.l1_step * threat.eps / k
                d = now - x + length * k_hot(g, now, k, length)
                return (x + onto_l1(d, threat.eps)).clamp(0, 1)
            case L2():
                step = self.l2_step
            case _:
                step = self.linf_step
        return threat.project(x, now + step * threat.eps * threat.norm.ascend(g))


def k_hot(g: Images, x: Images, k: int, gap: float) -> Images:
    """sign(g) on the k coordinates of largest |g| that have room, zero elsewhere.

    No room is at a wall of the box, whichever way g points, and within `gap` of the wall it points to.
    """
    walled = (x <= 0) | (x >= 1) | ((g < 0) & (x <= gap)) | ((g > 0) & (x >= 1 - gap))
    free = torch.where(walled, 0, g).flatten(1)
    top = free.abs().topk(k, dim=1).indices
    signs = free.gather(1, top).sign() + 0 * free.gather(1, top)  # torch says 0 for NaN, which looks flat
    return torch.zeros_like(free).scatter(1, top, signs).view_as(g)


def onto_l1(d: Images, eps: float) -> Images:
    """The closest point of the L1 ball, whatever the box: every |d_i| less one level, at least zero.

    The level is where the sum is eps: the largest of (|d|_(1) + .. + |d|_(j) - eps) / j, sorted downwards.
    """
    size = d.abs().flatten(1)
    sums = size.sort(dim=1, descending=True).values.cumsum(1) - eps
    counts = torch.arange(1, size.shape[1] + 1, dtype=size.dtype, device=size.device)
    level = (sums / counts).amax(dim=1, keepdim=True).clamp(min=0)
    return (d.flatten(1).sign() * (size - level).clamp(min=0)).view_as(d)


def _where(rows: PerExampleBool, one: Images, other: Images) -> Images:
    return torch.where(rows[:, None, None, None], one, other)
