"""A delay of interrupts for code that loses them, such as pydantic and the imports of torch and numpy."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import final


@final
class _Request:
    """A handler that only notes its signal."""

    arrived = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.arrived = True


@contextmanager
def delay_interrupts() -> Generator[None]:
    """Delays SIGINT until the end of the block, for code that loses a KeyboardInterrupt. No-op outside the
    main thread, and if Python does not handle SIGINT. Several interrupts count as one.

    The signal is not blocked: the system would deliver it to another thread, and Python to the main thread.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    request = _Request()
    signal.signal(signal.SIGINT, request)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is request:  # else the block has set another handler
            signal.signal(signal.SIGINT, handler)
        if request.arrived:
            signal.raise_signal(signal.SIGINT)
