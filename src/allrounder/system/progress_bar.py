"""The bar of a training: epoch, losses, accuracies of the last validation, shares, next exchange and ETA."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import final

from allrounder.system.progress import TrainingStatus
from allrounder.system.screen import Screen, find_screen

BAR_WIDTH = 24
MAX_HOURS = 72
"""Longer durations are given in days."""


def format_duration(seconds: float) -> str:
    """Format seconds with a unit that fits."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60:02d} min" if hours < MAX_HOURS else f"{hours // 24} days"


@final
class TrainingBar:
    """Shows the progress of one training on a screen; without one that replaces lines, it writes a line per
    epoch, or per tenth of the epochs if there are more than ten."""

    def __init__(self, name: str, screen: Screen | None = None):
        """`name` labels the bar; the screen is by default that of this process."""
        self.name = name
        self.screen = find_screen() if screen is None else screen
        self.status = TrainingStatus(0, 1)
        self.t = 0
        self.total = 1
        self.resumed_at = 0
        self.started = self.drawn = time.monotonic()
        self.tenth = 0

    def __enter__(self) -> TrainingBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self.t:
            self._draw()
        self.screen.close()

    def begin(self, total: int, done: int) -> None:
        """Set the number of steps, and how many are from an earlier session."""
        self.total = max(total, 1)
        self.t = self.resumed_at = done
        self.started = time.monotonic()
        self._draw()

    def step(self, t: int) -> None:
        """Move the bar to step t."""
        self.t = t
        pause = self.screen.seconds_between_draws
        if pause is not None and (t == self.total or time.monotonic() - self.drawn >= pause):
            self._draw()

    def report(self, status: TrainingStatus) -> None:
        """Show the status after an epoch."""
        self.status = status
        if self.screen.seconds_between_draws is not None:
            self._draw()
            return
        tenth = 10 * status.epoch // status.epochs
        if tenth > self.tenth and status.losses:
            facts = "; ".join(_describe(status))
            eta = self._eta() if status.epoch < status.epochs else "finished"
            self.screen.write(f"{self.name}: epoch {status.epoch}/{status.epochs}: {facts}; {eta}")
        self.tenth = tenth

    def log(self, text: str) -> None:
        """Show a message above the bar."""
        self.screen.write(f"note: {text}")

    def _draw(self) -> None:
        self.drawn = time.monotonic()
        filled = BAR_WIDTH * self.t // self.total
        bar = "#" * filled + "-" * (BAR_WIDTH - filled)
        epoch = min(self.status.epoch + 1, self.status.epochs)
        steps = f"epoch {epoch}/{self.status.epochs} [{bar}] step {self.t}/{self.total}"
        self.screen.draw(
            [f"{self.name}: {steps}, {self._eta()}", *(f"  {x}" for x in _describe(self.status))]
        )

    def _eta(self) -> str:
        elapsed = time.monotonic() - self.started
        if self.t >= self.total:
            return f"done in {format_duration(elapsed)}"
        taken = self.t - self.resumed_at
        return f"ETA {format_duration(elapsed / taken * (self.total - self.t))}" if taken else "ETA unknown"


def _describe(status: TrainingStatus) -> Iterator[str]:
    """Describe what is known: losses, shares, accuracies and the next exchange."""
    if status.losses:
        yield f"loss {_join(status.losses, '{:.3f}')}"
    if status.accuracies:
        yield f"validation {_join(status.accuracies, '{:.1%}')}"
    shares = f"shares {_join(status.shares, '{:.2f}')}" if status.shares else ""
    exchange = "" if status.next_exchange is None else f"next exchange in epoch {status.next_exchange}"
    if shares or exchange:
        yield "; ".join(filter(None, [shares, exchange]))


def _join(numbers: Mapping[str, float], style: str) -> str:
    return ", ".join(f"{name} {style.format(number)}" for name, number in numbers.items())
