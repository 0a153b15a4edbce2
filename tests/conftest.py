"""Every test runs on one thread, with the annotated shapes of tensors checked at run time."""

from __future__ import annotations

import gc
import multiprocessing
import random
import signal

from jaxtyping import config

from tests.support.shape_checks import install_shape_checks

install_shape_checks()

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell; tests of Ctrl-C need it
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("allrounder", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("allrounder")


def pytest_collection_finish() -> None:
    """Exclude what exists before the first test from garbage collection: every training ends with one, and it
    would look through all tests each time."""
    gc.collect()
    gc.freeze()


def seed_global_generators() -> None:
    """Seed what initialises the networks of tests: an unlucky draw must not fail a test once a month."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


seed_global_generators()


@pytest.fixture(scope="module", autouse=True)
def seeded_module() -> None:
    """What the fixtures of a module draw is the same in every run."""
    seed_global_generators()


@pytest.fixture(autouse=True)
def seeded_test(seeded_module: None) -> None:
    """What a test draws is the same in every run, whatever ran before it."""
    seed_global_generators()


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers begin as copies of this process, which takes no time; spawned ones import everything again."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations are not checked, as for users, so that arguments of a wrong type reach the package."""
    monkeypatch.setattr(config, "jaxtyping_disable", True)
