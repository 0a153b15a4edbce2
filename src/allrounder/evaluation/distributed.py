"""A result store that several ranks fill together; they need no common disk.

Rank 0 owns the folder, if there is one. Before the work starts it sends the stored results to all ranks, so
that no attack is run twice. The other ranks send every new shard to rank 0, which writes it while it works on
its own images, so the results of a rank survive if that rank is killed later.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from allrounder.distributed import World
from allrounder.errors import Interrupted, WorldError
from allrounder.evaluation.store import ResultStore
from allrounder.system.signals import StopRequest

POLL_SECONDS = 0.5
"""Seconds between two checks for messages from other ranks."""
ROWS_PER_MESSAGE = 50_000
"""Rows whose results are sent in one message: about 2 MB for one attack."""


@final
class SharedStore:
    """The result store of this rank, kept in step with those of the other ranks."""

    def __init__(self, world: World, num_images: int, folder: Path | None, keys: Sequence[str]):
        """A collective call: all ranks give the same number of images and the same store keys."""
        assert world.coordinator is not None
        self.world = world
        self.coordinator = world.coordinator
        self.keys = keys
        self.last_poll = 0.0
        self.store = ResultStore(num_images, folder if world.is_main else None)
        self._broadcast("before")

    def poll(self, signal: str | None) -> str | None:
        """Send a heartbeat, receive new results, and return the reason why all ranks must stop, if any."""
        self.world.heartbeat()
        if signal is None and time.monotonic() - self.last_poll < POLL_SECONDS:
            return None
        self.last_poll = time.monotonic()
        self._receive()
        return self.coordinator.stop_requested(signal)

    def start_sending(self) -> None:
        """From now on, send every new shard to rank 0."""
        if not self.world.is_main:
            self.store.on_new = self.coordinator.send_note

    def finish(self, stopped: Interrupted | None, stop: StopRequest) -> None:
        """Wait for all ranks, then give every store all results; raise on all ranks if one was stopped."""
        self.store.on_new = lambda results: None
        try:
            reason = None if stopped is None else str(stopped)
            reasons = self.coordinator.all_gather_object(
                "the end of the evaluation", reason, lambda: self.poll(stop.signal)
            )
        except WorldError:
            with suppress(WorldError):  # keep the results that were sent before the failure
                self._receive()
            raise
        self._receive()
        for reason in filter(None, reasons):
            raise Interrupted(reason)
        self._broadcast("after")

    def _receive(self) -> None:
        for results in self.coordinator.recv_notes() if self.world.is_main else ():
            self.store.merge(results)

    def _broadcast(self, when: str) -> None:
        """Send the results of rank 0 to all ranks."""
        for key in self.keys:
            for first in range(0, self.store.num_images, ROWS_PER_MESSAGE):
                rows = range(first, min(first + ROWS_PER_MESSAGE, self.store.num_images))
                results = self.store.export([key], rows) if self.world.is_main else None
                what = f"the results of {key} {when}, from row {first}"
                self.store.merge(self.world.all_gather_object(what, results)[0])


def check_rank_options(world: World, workers: int, keep_examples: bool) -> None:
    """Raise if `workers` or `keep_examples` is combined with several ranks."""
    if world.size > 1 and (workers > 1 or keep_examples):
        got = f"workers: got {workers}" if workers > 1 else "keep_examples: got True"
        hint = "torchrun sets the number" if workers > 1 else "images are not sent between ranks, use workers"
        raise WorldError(f"{got} in a world of {world.size} processes; leave it out: {hint}")
