"""The interface of mix rules, and what a rule sees of a learner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, final

from allrounder.nn.state import EmaUpdate
from allrounder.types import NamedTensors, Weights


@final
class LearnerView:
    """What a rule sees of a learner: its name, the weights that it gives to the mix and, if the rule declares
    `uses_gradients`, the gradients of its last step, for which other rules do not pay."""

    def __init__(self, name: str, weights: NamedTensors) -> None:
        """The weights may change in place later, but must not be replaced."""
        self.name = name
        self.weights = weights
        self.gradients: NamedTensors = {}
        """The gradients that the optimiser applied in the last step, by the names of parameters. A parameter
        without gradient and a buffer are missing; all are missing after a step without an update."""
        self._ema_update: EmaUpdate | None = None

    def ema_update_(self, average: NamedTensors, decay: float, share: float = 1.0) -> None:
        """average <- decay * average + (1 - decay) * share * weights. The tensors of an average are checked
        and sorted only once."""
        if self._ema_update is None or self._ema_update.target is not average:
            self._ema_update = EmaUpdate(average, self.weights)
        self._ema_update(decay, share)


class MixRule(ABC):
    """How the weights of learners become global weights; a frozen value whose states the mixer keeps.

    There is one state per learner: tensors by name, with the same names and shapes for all learners.
    Updating a state needs no communication. Only when global weights are needed, every rank receives all
    states, in learner order, and combines them; so a serial and a distributed training round alike. A rule
    may also have a memory, which is the same on all ranks and changes at exchanges only.
    """

    uses_shares: ClassVar[bool]
    """Whether it weighs the learners by their shares; recipes of other rules must not have shares."""
    uses_decay: ClassVar[bool]
    """Whether it keeps a moving average; recipes of other rules must not have a decay."""
    is_convex: ClassVar[bool]
    """Whether global weights always lie in the convex hull of the initial weights and the learners' weights
    so far, up to rounding."""

    uses_gradients: ClassVar[bool] = False
    """Whether it reads the gradients of the learners."""
    needs_exchange: ClassVar[bool] = False
    """Whether it makes no sense without exchanges."""
    needs_held_out: ClassVar[bool] = False
    """Whether it measures held-out images at exchanges."""

    @abstractmethod
    def init(self, start: NamedTensors, *, is_first: bool) -> Weights:
        """Return a learner's state before the first step; `start` must not be kept or changed.

        All learners start from the weights `start`, and `combine` gives `start` again. `is_first` marks the
        first learner.
        """

    @abstractmethod
    def update_(self, state: NamedTensors, learner: LearnerView, *, share: float, decay: float) -> None:
        """Update a learner's state, in place, after a step of the learner."""

    @abstractmethod
    def combine(self, states: Iterable[NamedTensors]) -> Weights:
        """Return the global weights; `states` are those of all learners, in order, and must not be changed.

        The iterable receives one state at a time, so a rule that adds them up never holds all of them. It
        must be exhausted: all ranks communicate in its course.
        """

    def memory(self, start: NamedTensors) -> Weights:
        """Return what the rule keeps from exchange to exchange, before the first one; nothing by default.

        `start` holds the initial weights without buffers; it must not be kept or changed.
        """
        return {}

    def step(self, mixture: Weights, memory: NamedTensors) -> tuple[Weights, NamedTensors]:
        """Return the global weights that follow from the combined states, and the memory after an exchange
        that uses them; by default both as they are. The memory itself must not be changed, because the
        global weights are also needed between exchanges."""
        return mixture, memory

    def share_in_force(self, state: NamedTensors) -> float | None:
        """Return the share of a learner that the rule itself chose; None, as by default, if it did not."""
        return None
