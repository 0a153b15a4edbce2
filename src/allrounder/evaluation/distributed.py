"""A ledger that several processes fill together, with nothing in common but the line between them.

Rank 0's has the folder, if there is one. What it knows already is told to all before they begin, so that
nothing is done twice; the others leave every page that they settle for rank 0, which writes it down while it
works on its own share. So what a rank did is kept when it is killed later.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from allrounder.distributed import World
from allrounder.errors import Interrupted, WorldError
from allrounder.evaluation.store import Ledger
from allrounder.system.signals import Stop

OFTEN = 0.5
"""Seconds between two looks at what others have left."""
TOLD = 50_000
"""Rows whose lines are told at once: of one attack, some 2 MB."""


@final
class Shared:
    """The ledger of this rank, and what it hears of the others while it is filled."""

    def __init__(self, world: World, images: int, folder: Path | None, attacks: Sequence[str]):
        """All ranks make one together, over the same images and for the same attacks."""
        assert world.link is not None
        self.world, self.link, self.attacks, self.looked = world, world.link, attacks, 0.0
        self.ledger = Ledger(images, folder if world.chief else None)
        self._spread("before")

    def look(self, signal: str | None) -> str | None:
        """Called often: shows that this rank is at work, and says why all are to stop, if they are."""
        self.world.tick()
        if signal is None and time.monotonic() - self.looked < OFTEN:
            return None
        self.looked = time.monotonic()
        self._collect()
        return self.link.wanted(signal)

    def begin(self) -> None:
        """From now on, what is new here is left for rank 0."""
        if not self.world.chief:
            self.ledger.tell = self.link.post

    def end(self, stopped: Interrupted | None, stop: Stop) -> None:
        """Wait for all; then every ledger has all lines, unless somebody was stopped, which all then are."""
        self.ledger.tell = lambda told: None
        try:
            told = None if stopped is None else str(stopped)
            reasons = self.link.meet("the end of the evaluation", told, lambda: self.look(stop.signal))
        except WorldError:
            with suppress(WorldError):  # what was left before is not lost
                self._collect()
            raise
        self._collect()
        for reason in filter(None, reasons):
            raise Interrupted(reason)
        self._spread("after")

    def _collect(self) -> None:
        for told in self.link.collect() if self.world.chief else ():
            self.ledger.hear(told)

    def _spread(self, when: str) -> None:
        """Tell all ranks what rank 0 knows."""
        for attack in self.attacks:
            for first in range(0, self.ledger.images, TOLD):
                rows = range(first, min(first + TOLD, self.ledger.images))
                told = self.ledger.told([attack], rows) if self.world.chief else None
                what = f"the lines of {attack} {when}, from row {first}"
                self.ledger.hear(self.world.meet(what, told)[0])


def check_alone(world: World, workers: int, keep_examples: bool) -> None:
    """Raise where what is asked for and several ranks exclude each other."""
    if world.size > 1 and (workers > 1 or keep_examples):
        got = f"workers: got {workers}" if workers > 1 else "keep_examples: got images to keep"
        how = "torchrun says how many" if workers > 1 else "they do not travel, use workers for that"
        raise WorldError(f"{got} in a world of {world.size} processes; leave it out: {how}")
