"""A place where the worker processes of one evaluation wait for each other, to divide the images again.

An image that the first attack of a cascade fools costs little, one that it does not fool costs thousands of
passes more. So equal numbers of images are unequal work, which is only known after the first attack.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from allrounder.types import Labels

POLL_SECONDS = 0.05
WAITS, ENDED = ".waits", ".ended"


@final
@dataclass(frozen=True)
class Meeting:
    """The workers of an evaluation, which run at the same time, and a temporary folder with one file for each
    of them that waits or has ended."""

    folder: Path
    workers: tuple[str, ...]

    def first_share(self, worker: str, rows: Labels) -> Int[Tensor, " m"]:
        """The part of the images that a worker begins with."""
        return rows[self.workers.index(worker) :: len(self.workers)]

    def wait(self, worker: str, report: Callable[[], None]) -> None:
        """Wait until every other worker waits or has ended; `report` is called meanwhile, and may raise to
        stop. The parent calls `leave` for a worker that was killed, so nobody waits for it."""
        (self.folder / f"{worker}{WAITS}").touch()
        while not all(self._waits(other) or self._has_left(other) for other in self.workers):
            report()
            time.sleep(POLL_SECONDS)

    def leave(self, worker: str) -> None:
        """Note that the process of a worker has ended."""
        (self.folder / f"{worker}{ENDED}").touch()

    def present_rows(self, rows: Labels) -> Int[Tensor, " m"]:
        """The images of the workers that waited. Those of a worker that ended before are left to the next
        call: one of them may be the reason."""
        present = torch.tensor([self._waits(worker) for worker in self.workers])
        return rows[present[torch.arange(len(rows)) % len(self.workers)]]

    def second_share(self, worker: str, rows: Labels) -> Int[Tensor, " m"]:
        """The part of the remaining images that a worker continues with; all must give the same images."""
        present = [other for other in self.workers if self._waits(other)]
        return rows[present.index(worker) :: len(present)]

    def _waits(self, worker: str) -> bool:
        return (self.folder / f"{worker}{WAITS}").exists()

    def _has_left(self, worker: str) -> bool:
        return (self.folder / f"{worker}{ENDED}").exists()
