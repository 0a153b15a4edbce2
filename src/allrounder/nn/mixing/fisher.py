"""A moving average of the learners' mixture in which squared gradients weigh every parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, final

import torch
from pydantic import Field

from allrounder.config.fields import PositiveFloat, Share, frozen_config
from allrounder.nn.mixing.base import LearnerView, MixRule
from allrounder.nn.state import clone, strip_prefix, sum_weights, zeros_like
from allrounder.types import NamedTensors, Weights

WEIGHTED, TOTAL, SQUARE, STEPS = "weighted.", "total.", "square.", "steps"
"""Prefixes of the tensors of a state, and the name of its counter of steps."""


@final
@frozen_config
class Fisher(MixRule):
    """A moving average weighted by shares and by squared gradients, parameter by parameter.

        A_W <- a A_W + (1 - a) gamma_W F_W theta_W,    B_W <- a B_W + (1 - a) gamma_W F_W,
        theta_g = sum_W A_W / sum_W B_W,               F_W = S_W + epsilon

    S_W averages the squares of the gradients that the optimiser of learner W applies: their running mean
    over the first 1 / (1 - square_decay) steps, a moving average after them. It estimates the diagonal of the
    Fisher information, so a learner counts most for the parameters that its loss depends on. If F is constant
    and the same for all learners, this is `ema`. Buffers have no gradients, so they are mixed as by `ema`;
    integer buffers are those of the first learner. The initial weights count with the first F of the first
    learner. A state is three times as large as the weights.
    Matena and Raffel, 2022, Merging models with Fisher-weighted averaging, who merge once, after training.
    """

    uses_shares: ClassVar[bool] = True
    uses_decay: ClassVar[bool] = True
    uses_gradients: ClassVar[bool] = True
    is_convex: ClassVar[bool] = False  # only every single parameter lies between those of the learners

    square_decay: Annotated[Share, Field(lt=1)] = 0.99
    """The decay of the average of squared gradients."""
    epsilon: PositiveFloat = 1e-8
    """Added to the squares, so that a parameter without gradients is mixed by the shares alone."""

    def init(self, start: NamedTensors, *, is_first: bool) -> Weights:
        """Return sums that stand for the initial weights for the first learner, zeros for the others."""
        weighted = clone(start) if is_first else zeros_like(start)
        floats = {name: tensor for name, tensor in weighted.items() if tensor.is_floating_point()}
        device = next((tensor.device for tensor in weighted.values()), None)
        state: Weights = {STEPS: torch.zeros((), dtype=torch.int64, device=device)}
        for name, tensor in weighted.items():
            state[f"{WEIGHTED}{name}"] = tensor.mul_(self.epsilon) if name in floats else tensor
        for name, tensor in floats.items():
            state[f"{TOTAL}{name}"] = torch.full_like(tensor, self.epsilon if is_first else 0.0)
            state[f"{SQUARE}{name}"] = torch.zeros_like(tensor)
        return state

    def update_(self, state: NamedTensors, learner: LearnerView, *, share: float, decay: float) -> None:
        """Average the squared gradients, then both sums."""
        # Tensors instead of numbers: to read the counter would wait for an accelerator.
        steps = state[STEPS].add_(1)
        rate = (1 / steps).clamp(min=1 - self.square_decay)
        for name, theta in learner.weights.items():
            weighted = state[f"{WEIGHTED}{name}"]
            if not weighted.is_floating_point():
                weighted.copy_(theta)
                continue
            total, square = state[f"{TOTAL}{name}"], state[f"{SQUARE}{name}"]
            if (g := learner.gradients.get(name)) is not None:
                square.add_(rate * (g.to(square.dtype).square() - square))
            f = square + self.epsilon
            factor = decay * torch.where(steps == 1, f / self.epsilon, 1.0)
            weighted.mul_(factor).addcmul_(f, theta.to(f.dtype), value=(1 - decay) * share)
            total.mul_(factor).add_(f, alpha=(1 - decay) * share)

    def combine(self, states: Iterable[NamedTensors]) -> Weights:
        """Return the quotient of the two sums over the learners, each added in learner order."""
        sums = sum_weights(_without_squares(state) for state in states)
        totals = strip_prefix(TOTAL, sums)
        return {
            name: weighted / totals[name] if name in totals else weighted
            for name, weighted in strip_prefix(WEIGHTED, sums).items()
        }


def _without_squares(state: NamedTensors) -> Weights:
    return {name: tensor for name, tensor in state.items() if not name.startswith(SQUARE)}
