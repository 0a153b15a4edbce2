"""Every test runs on one thread, with the shape and type annotations of the package checked at run time."""

from __future__ import annotations

import multiprocessing
import signal

from jaxtyping import config, install_import_hook

install_import_hook("allrounder", "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell; tests of Ctrl-C need it
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("allrounder", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("allrounder")


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers begin as copies of this process, which takes no time; spawned ones import everything anew."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations are not checked, as for users, so that arguments of a wrong type reach the package."""
    monkeypatch.setattr(config, "jaxtyping_disable", True)
