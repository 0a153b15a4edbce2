"""What rank 0 writes down for all ranks: the log, the states of learners, the bytes that went between them.

The others need no run folder, so the machines of a run need no disk in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, final

from allrounder.config.time import Clock
from allrounder.data.fingerprint import check_same
from allrounder.distributed import Placement, World
from allrounder.nn.state import Weights
from allrounder.system.files import read_tensors
from allrounder.training.learner import Learner
from allrounder.training.metrics import Meter, means, total
from allrounder.training.run import Run


@final
class Minutes:
    """Keeps what is to be written until all ranks have come to the same point."""

    def __init__(self, run: Run, world: World, placement: Placement, clock: Clock, meter: Meter):
        """Nothing has been said yet."""
        self.run, self.world, self.placement, self.clock, self.meter = run, world, placement, clock, meter
        self.epochs: list[dict[str, Any]] = []
        self.wire: Counter[str] = Counter()

    def end_epoch(self, t: int, seated: Mapping[str, Mapping[str, float]]) -> None:
        """Note how the learners seated here did in the epoch that ends with step t, with facts of each.

        It is written when all have come so far, in learner order, as a single process would.
        """
        seconds = self.meter.seconds()
        for name, facts in seated.items():
            note = {"t": t, "learner": name, "sums": self.meter.taken(name), "facts": {**facts}}
            self.epochs.append({**note, "seconds": seconds})
        if self.world.size == 1:
            self.meet(f"epoch {self.clock.epoch(t)}")

    def meet(self, what: str, **facts: Any) -> list[dict[str, Any]]:
        """Wait for all ranks; the facts of each."""
        notes = self.world.meet(what, {**facts, "epochs": self.epochs, "wire": self.world.sent()})
        self.epochs = []
        if self.world.chief:
            for rank, note in enumerate(notes):
                # What crosses between learners is known to rank 0; what groups say to themselves is not.
                self.wire.update({k: n for k, n in note["wire"].items() if rank == 0 or k == "gradients"})
            self._write([entry for note in notes for entry in note["epochs"]])
        return notes

    def save_checkpoint(self, t: int, own: Callable[[str], Weights], facts: Mapping[str, Any]) -> None:
        """Save the states of all learners after step t, then drop best weights that the facts do not
        mention."""
        notes = self.meet(f"the checkpoint after step {t}", sums=self.meter.sums)
        states, ranks = self._gathered(own), self.placement.ranks
        self._log_wire(t)
        if self.world.chief:
            sums = {name: total([notes[rank]["sums"][name] for rank in ranks[name]]) for name in ranks}
            self.run.save_checkpoint(t, states, {**facts, "sums": sums})
            self._keep_best(facts)

    def save_weights(
        self, which: str, t: int, theta: Weights, learner: Callable[[str], Learner], card: Mapping[str, Any]
    ) -> None:
        """Save the global weights and those of all learners as "best" or "last"."""
        weights = {"global": theta, **self._gathered(lambda name: learner(name).weights())}
        averaged = [task.name for task in self.run.recipe.tasks if task.average is not None]
        live = self._gathered(lambda name: learner(name).live, averaged)
        weights |= {f"{name}.live": tensors for name, tensors in live.items()}
        if which == "last":
            self._log_wire(t)
        if self.world.chief:
            self.run.save_weights(which, t, weights, card)

    def take_up(self, shown: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Weights]]:
        """The facts of the newest checkpoint, and the states of the learners seated here; the beginning where
        there is none. The images shown must be those of the checkpoint."""
        point, facts = self.run.resume_point() if self.world.chief else (None, {})
        if point is not None:
            check_same(self.run.folder, facts, shown)
        facts = self.meet("the newest checkpoint", checkpoint=facts)[0]["checkpoint"]
        states = self._handed_out(lambda name: read_tensors(cast(Path, point), name)) if facts["t"] else {}
        if facts["t"]:
            led = [name for name in states if self.world.rank == self.placement.leader(name)]
            self.meter.restore({name: facts["sums"][name] for name in led})
        if self.world.chief:
            self.run.rewind(point, facts["metrics_bytes"])
            self._keep_best(facts)
        return facts, states

    def _keep_best(self, facts: Mapping[str, Any]) -> None:
        best = facts.get("best")
        self.run.keep_best(best["t"] if best else None)

    def _gathered(
        self, own: Callable[[str], Weights], names: Sequence[str] | None = None
    ) -> dict[str, Weights]:
        """The tensors of every learner, or of some, on rank 0, from the ranks that speak for them; nothing
        elsewhere."""
        found: dict[str, Weights] = {}
        for name in self.placement.ranks if names is None else names:
            leader = self.placement.leader(name)
            came = self.world.hand_over(own(name) if self.world.rank == leader else None, leader, 0)
            if came is not None:
                found[name] = came
        return found

    def _handed_out(self, read: Callable[[str], Weights]) -> dict[str, Weights]:
        """The tensors of the learners seated here, which rank 0 reads for all."""
        found: dict[str, Weights] = {}
        for name, ranks in self.placement.ranks.items():
            state = read(name) if self.world.chief else None
            for rank in ranks:
                came = self.world.hand_over(state, 0, rank)
                if came is not None:
                    found[name] = came
        return found

    def _log_wire(self, t: int) -> None:
        """Write the bytes that went between processes since this was last done, where there are several."""
        self.wire.update(self.world.sent())
        if self.world.size > 1 and self.world.chief:
            self.run.log("wire", t=t, epoch=self.clock.epoch(t), **dict(sorted(self.wire.items())))
        self.wire.clear()

    def _write(self, entries: list[dict[str, Any]]) -> None:
        order = list(self.placement.ranks)
        for t, name in sorted({(e["t"], order.index(e["learner"])) for e in entries}):
            shared = [e for e in entries if (e["t"], e["learner"]) == (t, order[name])]
            facts = {**means(total([e["sums"] for e in shared])), **shared[0]["facts"]}
            where = {"t": t, "epoch": self.clock.epoch(t), "learner": order[name]}
            self.run.log("epoch", **where, **facts, seconds=shared[0]["seconds"])
