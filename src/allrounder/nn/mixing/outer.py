"""An outer optimiser: every exchange takes a step of SGD with Nesterov momentum towards the mixture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, final

from pydantic import Field

from allrounder.config.fields import PositiveFloat, Share, frozen_config
from allrounder.nn.mixing.base import LearnerView, MixRule
from allrounder.nn.state import clone, strip_prefix, sum_weights, zeros_like
from allrounder.types import NamedTensors, Weights

LAST, MOMENTUM = "last.", "momentum."
"""Prefixes of the tensors of the memory."""


@final
@frozen_config
class Outer(MixRule):
    """One step of SGD with Nesterov momentum at every exchange, as in DiLoCo.

    The difference between the last global weights and the learners' mixture is the gradient:

        g = theta_g - sum_W gamma_W theta_W,  v <- momentum v + g,  theta_g <- theta_g - lr (g + momentum v)

    With lr = 1 and momentum = 0, the global weights are the mixture. The last global weights are those of the
    last exchange, at first the initial weights, so exchanges should start early in a run. Between exchanges,
    the global weights are what an exchange would give now. Buffers are those of the mixture, because a step
    could make a variance negative; integer buffers are those of the first learner.
    Douillard et al., 2023, DiLoCo: distributed low-communication training of language models.
    """

    uses_shares: ClassVar[bool] = True
    uses_decay: ClassVar[bool] = False
    needs_exchange: ClassVar[bool] = True
    is_convex: ClassVar[bool] = False

    lr: PositiveFloat = 0.7
    """The learning rate of the steps."""
    momentum: Annotated[Share, Field(lt=1)] = 0.9
    """The Nesterov momentum of the steps."""

    def init(self, start: NamedTensors, *, is_first: bool) -> Weights:
        """Return the initial weights for the first learner, zeros for the others."""
        return clone(start) if is_first else zeros_like(start)

    def update_(self, state: NamedTensors, learner: LearnerView, *, share: float, decay: float) -> None:
        """Store the learner's weights, times its share."""
        learner.ema_update_(state, 0.0, share)

    def combine(self, states: Iterable[NamedTensors]) -> Weights:
        """Return the mixture, added in learner order."""
        return sum_weights(states)

    def memory(self, start: NamedTensors) -> Weights:
        """Return the last global weights, at first the initial ones, and the momentum, at first zero."""
        last = {f"{LAST}{name}": tensor for name, tensor in clone(start).items()}
        return last | {f"{MOMENTUM}{name}": tensor for name, tensor in zeros_like(start).items()}

    def step(self, mixture: Weights, memory: NamedTensors) -> tuple[Weights, Weights]:
        """Take one step; as a change of the mixture, so that rate 1 without momentum gives its bits."""
        theta, new = dict(mixture), Weights()
        for name, last in strip_prefix(LAST, memory).items():
            g = last - mixture[name]
            v = self.momentum * memory[f"{MOMENTUM}{name}"] + g
            theta[name] = mixture[name] + (1 - self.lr) * g - self.lr * self.momentum * v
            new[f"{LAST}{name}"], new[f"{MOMENTUM}{name}"] = theta[name].clone(), v
        return theta, new
