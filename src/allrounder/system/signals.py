"""Turn SIGINT and SIGTERM into a question the training loop asks between steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import final


@final
class Stop:
    """Whether, and by which signal, the run was asked to stop."""

    signal: str | None = None


@contextmanager
def stop_on_signals() -> Generator[Stop]:
    """Note the first signal; a second one does what it always did. Outside the main thread nothing
    changes."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        stop.signal = signal.Signals(number).name
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        restore()
