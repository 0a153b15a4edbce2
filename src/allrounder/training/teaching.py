"""Teachers: frozen copies of the network that learners compare their predictions with.

Their weights are sent after the steps at which a refresh is due, also in a single process. So teachers are as
old in a serial run as in several processes, and all placements of the learners give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from allrounder.nn.state import clone, zeros_like
from allrounder.recipe.task import GLOBAL, Task
from allrounder.training.checkpoint import Checkpointer
from allrounder.training.learner import Learner
from allrounder.types import NamedTensors, Weights


@final
class Teaching:
    """Sends the teachers' weights to the learners of this rank."""

    def __init__(
        self,
        tasks: Sequence[Task],
        learners: Sequence[Learner],
        checkpoints: Checkpointer,
        template: NamedTensors,
    ):
        """`template` has the shapes of the weights; its values may change."""
        self.learners = {learner.task.name: learner for learner in learners}
        self.checkpoints = checkpoints
        self.template = template
        periods = [(task, task.objective.refresh_period(checkpoints.clock)) for task in tasks]
        self.periods = [(task, period) for task, period in periods if period is not None]
        """The tasks with teachers, each with the steps between two refreshes."""

    def count_refreshes(self) -> int:
        """Return the number of steps after which teachers get new weights; the last step is none of them."""
        total = self.checkpoints.clock.total_steps
        return len({t for _, period in self.periods for t in range(period, total, period)})

    def refresh(self, t: int, global_weights: Callable[[str], Weights]) -> None:
        """Give new weights to the teachers that are due after step t. All ranks call it together."""
        tasks = [task for task, period in self.periods if t % period == 0]
        if not tasks or t == self.checkpoints.clock.total_steps:
            return
        what = f"the teachers after step {t}"
        self.checkpoints.gather_notes(what)
        for name in dict.fromkeys(name for task in tasks for name in task.objective.teachers().values()):
            weights = global_weights(f"{what}: {name}") if name == GLOBAL else self._receive(name)
            for task in tasks:
                if task.name in self.learners and name in task.objective.teachers().values():
                    self.learners[task.name].load_teacher(name, weights)

    def _receive(self, name: str) -> Weights:
        """Return what a learner gives to the mix, on every rank."""
        leader = self.checkpoints.placement.leader(name)
        world = self.checkpoints.world
        is_leader = world.rank == leader
        weights = clone(self.learners[name].averaged_weights()) if is_leader else zeros_like(self.template)
        world.broadcast_(weights, src=leader)
        return weights
