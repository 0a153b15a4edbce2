"""SIGINT and SIGTERM as a flag that loops check between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import final

EXIT_RESUMABLE = 75
"""The exit code of a process that a signal stopped after it saved its state."""


@final
class StopRequest:
    """The name of the signal that asked to stop, if one did."""

    signal: str | None = None


@contextmanager
def stop_on_signals() -> Generator[StopRequest]:
    """Yields a request that the first signal sets; a second signal has its usual effect. No-op outside the
    main thread."""
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request_stop(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None:  # a block of delay_interrupts has put this handler back
            restore()
            signal.raise_signal(number)
            return
        stop.signal = signal.Signals(number).name
        for other, handler in handlers.items():
            if signal.getsignal(other) is request_stop:  # else a block of delay_interrupts puts it back
                signal.signal(other, handler)

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    for number in handlers:
        signal.signal(number, request_stop)
    try:
        yield stop
    finally:
        restore()
