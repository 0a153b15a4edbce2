"""Images that are decoded when they are needed, by other processes and ahead of time: the same to the bit."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch

from allrounder.data import Folder, TinyImageNet, fingerprint
from allrounder.data.base import Data, Subset, TensorSplit
from allrounder.data.batches import Batches
from allrounder.data.splits import hold_out
from allrounder.data.streaming import decoder_pool
from allrounder.data.streaming.split import MAX_PREFETCHED, LazySplit
from allrounder.errors import DataError
from allrounder.evaluation.evaluate import evaluate
from allrounder.models.small_cnn import SmallCnn
from allrounder.recipe.recipe import Recipe
from allrounder.rng import Rng
from allrounder.training.data import load_data
from allrounder.training.run import Run
from allrounder.training.train import train
from allrounder.types import Images, Labels
from tests.support.pictures import ROOT, noise, write_animals, write_blobs, write_tiny_imagenet
from tests.support.trainings import SOLO, go, recipe, remains

EVERY = torch.arange(24)


def pets(root: Path, workers: int) -> Data:
    """24 training images, in whose files nothing else than noise is."""
    if not root.exists():
        write_animals(root, train=12, test=3)
    return Folder(path=str(root), workers=workers).load()


def streamed(root: Path, workers: int) -> LazySplit:
    split = pets(root, workers).train
    assert isinstance(split, LazySplit)
    return split


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Generator[list[subprocess.Popen[bytes]]]:
    """The decoding processes, in the order in which they were started; all have ended after a test."""
    processes: list[subprocess.Popen[bytes]] = []
    start = decoder_pool._start

    def noted() -> subprocess.Popen[bytes]:
        processes.append(start())
        return processes[-1]

    monkeypatch.setattr(decoder_pool, "_start", noted)
    yield processes
    gc.collect()
    assert all(process.poll() is not None for process in processes), "a collected pool ends its processes"


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_processes_decodes_identical_images(tmp_path, workers, started):
    alone, pooled = streamed(tmp_path / "x", 0), streamed(tmp_path / "x", workers)
    assert alone.pool is None and not started, "they start when they are needed"
    order = torch.tensor([5, 23, 0, 5, 11, 7, 7, 1])
    expected = alone.fetch(order)
    assert torch.equal(pooled.fetch(order), expected)
    assert 1 <= len(started) <= workers
    pooled.prefetch(order)
    assert torch.equal(pooled.fetch(order), expected)
    assert torch.equal(pooled.fetch(order.flip(0)), expected.flip(0))
    assert torch.equal(alone.fetch(EVERY)[12], torch.tensor(noise(0).transpose(2, 0, 1)).float() / 255)
    assert pooled.fetch(EVERY).is_contiguous() and pooled.fetch(EVERY[:0]).shape == (0, 3, 6, 6)


def test_few_images_start_no_process(tmp_path, started):
    data = pets(tmp_path / "x", 2)
    assert data.shape == (3, 6, 6) and data.test.fetch(torch.arange(3)).shape == (3, 3, 6, 6)
    assert not started


class Recorder:
    """A split that records the rows that were prefetched and fetched."""

    def __init__(self, n: int) -> None:
        self.inner = TensorSplit(torch.rand(n, 1, 1, 1), torch.arange(n) % 2, 2)
        self.prefetched, self.fetched = [], []

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def labels(self) -> Labels:
        return self.inner.labels

    def fetch(self, index: Labels) -> Images:
        self.fetched.append(index.tolist())
        return self.inner.fetch(index)

    def prefetch(self, index: Labels) -> None:
        self.prefetched.append(index.tolist())


@pytest.mark.parametrize(("n", "size"), [(12, 4), (13, 4), (14, 4), (3, 8)])
def test_batches_prefetch_the_next_images(n, size):
    split = Recorder(n)
    batches = Batches(split, size, Rng(0))
    addresses = [(epoch, step) for epoch in (1, 2, 3) for step in range(1, batches.steps + 1)]
    expected_batches = [
        Batches(split.inner, size, Rng(0)).at(*address).index.tolist() for address in addresses
    ]
    for epoch, step in addresses:
        batches.at(epoch, step)
    assert split.fetched == expected_batches
    following = list(zip(split.prefetched[::2], split.prefetched[1::2], strict=True))
    assert following[: len(expected_batches) - 2] == list(pairwise(expected_batches[1:]))


def test_subset_forwards_prefetch():
    split = Recorder(12)
    part = Subset(Subset(split, torch.tensor([9, 8, 7, 6])), torch.tensor([3, 0]))
    part.prefetch(torch.tensor([1, 0]))
    assert split.prefetched == [[9, 6]]
    Subset(split.inner, torch.tensor([1])).prefetch(torch.tensor([0]))  # which has nothing to prepare


def test_prefetched_images_are_decoded_before_fetch(tmp_path, started):
    split = streamed(tmp_path / "x", 1)
    rows = EVERY[:8]
    split.prefetch(rows)
    split.prefetch(rows)
    pieces = split._prefetched[tuple(range(8)), (None,)]
    assert b"".join(piece.result(timeout=30) for piece in pieces)
    for path in (tmp_path / "x" / "train").rglob("*.png"):
        path.unlink()
    assert split.fetch(rows).shape == (8, 3, 6, 6), "the files were read before"
    with pytest.raises(DataError, match="is gone since the folder was listed"):
        split.fetch(rows)


def test_oldest_prefetched_batches_are_dropped(tmp_path):
    split = streamed(tmp_path / "x", 1)
    for first in range(10):
        split.prefetch(EVERY[first : first + 6])
    assert list(split._prefetched) == [
        (tuple(range(first, first + 6)), (None,)) for first in range(10)[-MAX_PREFETCHED:]
    ]
    assert torch.equal(split.fetch(EVERY[:6]), streamed(tmp_path / "x", 0).fetch(EVERY[:6]))


@pytest.mark.parametrize("workers", [0, 2])
def test_fetch_decodes_only_requested_images(tmp_path, workers):
    split = streamed(tmp_path / "x", workers)
    wanted = [3, 4, 5, 6, 7, 20]
    expected = split.fetch(torch.tensor(wanted))
    for row in set(range(24)) - set(wanted):
        Path(split.files.path(row)).write_bytes(b"damaged")
    assert torch.equal(split.fetch(torch.tensor(wanted)), expected)


def test_damaged_image_gives_same_error_with_any_number_of_processes(tmp_path):
    messages: set[str] = set()
    for workers in (0, 1, 2):
        split = streamed(tmp_path / "x", workers)
        (tmp_path / "x" / "train" / "a-cat" / "5.png").write_bytes(b"damaged")
        split.prefetch(EVERY[:8])
        split.prefetch(EVERY[8:16])
        good = split.fetch(EVERY[8:16])
        with pytest.raises(DataError, match=r"a-cat/5.png: cannot be read as an image") as caught:
            split.fetch(EVERY[:8])
        messages.add(str(caught.value))
        assert torch.equal(split.fetch(EVERY[8:16]), good), "the processes live on"
    assert len(messages) == 1


def test_killed_process_is_replaced(tmp_path, started):
    split = streamed(tmp_path / "x", 1)
    expected = split.fetch(EVERY)
    assert len(started) == 1
    os.kill(started[0].pid, signal.SIGKILL)
    started[0].wait(30)
    assert torch.equal(split.fetch(EVERY), expected)
    assert len(started) == 2 and started[1].poll() is None


def test_image_that_kills_processes_is_named(tmp_path, monkeypatch):
    split = streamed(tmp_path / "x", 1)
    fatal = [sys.executable, "-c", "import sys; sys.stdin.buffer.read(4); sys.exit(3)"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with monkeypatch.context() as patch:
        patch.setattr(decoder_pool, "_start", lambda: subprocess.Popen(fatal, **pipes))
        message = (
            r"a-cat/0.png, or one of the 4 after it: two processes ended with code 3 .*use fewer workers"
        )
        with pytest.raises(DataError, match=message):
            split.fetch(EVERY[:10])
    assert torch.equal(split.fetch(EVERY[:10]), streamed(tmp_path / "x", 0).fetch(EVERY[:10]))


def test_decoders_have_their_own_session(tmp_path, started):
    split = streamed(tmp_path / "x", 2)
    split.fetch(EVERY)
    assert all(os.getsid(process.pid) == process.pid != os.getsid(0) for process in started)


def test_closed_pool_decodes_in_this_process(tmp_path, started):
    split = streamed(tmp_path / "x", 2)
    expected = split.fetch(EVERY)
    split.prefetch(EVERY[:8])
    assert split.pool is not None
    split.pool.close()
    assert all(process.poll() == 0 for process in started)
    split.prefetch(EVERY[8:16])
    assert torch.equal(split.fetch(EVERY), expected)
    assert torch.equal(split.fetch(EVERY[:8]), expected[:8])


def test_pickled_split_decodes_without_a_pool(tmp_path, started):
    split = streamed(tmp_path / "x", 2)
    pickler: Any = ForkingPickler
    copy = pickler.loads(pickler.dumps(Subset(split, EVERY[4:20])))
    assert copy.split.pool is None and torch.equal(copy.labels, split.labels[4:20])
    assert torch.equal(copy.fetch(EVERY[:16]), split.fetch(EVERY[4:20]))
    assert split.pool is not None
    split.pool._owner_pid = -1  # as in a fork of the process, which has no threads
    num_started = len(started)
    assert torch.equal(split.fetch(EVERY[4:20]), copy.fetch(EVERY[:16])) and len(started) == num_started


ORPHANS = """
import json, os, signal, sys, time, torch
from allrounder.data import Folder
from allrounder.data.streaming import decoder_pool
started, start = [], decoder_pool._start
decoder_pool._start = lambda: started.append(start()) or started[-1]
child = os.fork()
split = Folder(path=sys.argv[1], workers=2).load().train
split.fetch(torch.arange(24))
for first in range(0, 16, 4):
    split.prefetch(torch.arange(first, first + 8))
os.write(1, (json.dumps([process.pid for process in started]) + "\\n").encode())
if child == 0:
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
"""


def test_decoders_end_with_their_parent(tmp_path):
    """One of two leaves in peace, the other is killed."""
    write_animals(tmp_path, train=12)
    command = [sys.executable, "-c", ORPHANS, str(tmp_path)]
    process = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=True, timeout=60)
    pids = [pid for line in process.stdout.splitlines() for pid in json.loads(line)]
    assert len(process.stdout.splitlines()) == 2 and len(pids) >= 2
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a decoding process outlived its parent"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def grey(root: Path, workers: int) -> Data:
    return Folder(path=str(root), channels=1, workers=workers).load()


def test_training_with_decoders_gives_identical_weights_after_damaged_image(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "NUM_SAMPLED", 1)  # else it would be met before the first step
    root = write_blobs(tmp_path / "blobs")
    value = recipe(
        SOLO,
        ('name = "blobs"', 'name = "any"'),
        ("epochs = 3", "epochs = 2"),
        ("train_images = 6", "train_images = 0"),
    )
    runs = {workers: go(value, tmp_path / f"run-{workers}", data=grey(root, workers)) for workers in (0, 2)}
    expected = remains(runs[0].folder)
    assert remains(runs[2].folder) == expected
    rest, _ = hold_out(grey(root, 0).train, 12, Rng(5).fold_in("validation"))
    last = Batches(rest, 16, Rng(5)).at(1, 3).index[0]
    assert isinstance(rest, Subset) and isinstance(rest.split, LazySplit)
    victim = Path(rest.split.files.path(int(rest.index[last])))
    content = victim.read_bytes()
    broken = tmp_path / "broken"
    data, pooled = grey(root, 0), grey(root, 1)
    victim.write_bytes(content[:40])
    with pytest.raises(DataError, match=victim.name):
        go(value, broken, data=data)
    assert Run(broken).latest_checkpoint() is not None and not Run(broken).finished
    victim.write_bytes(content)
    go(value, broken, data=pooled, resume=True)
    assert remains(broken) == expected


TINY = """
epochs = 1
batch_size = 6
model = { kind = "small-cnn", width = 4 }
data = { kind = "tiny-imagenet", folder = "PATH", workers = 1 }
[validation]
images = 0
[[task]]
name = "natural"
objective = { kind = "natural" }
lr = 0.01
"""


def test_tiny_imagenet_can_be_trained_and_evaluated(tmp_path):
    root = write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    value = Recipe.loads(TINY.replace("PATH", str(root)))
    run = train(value, tmp_path / "run")
    assert run.finished and Batches(load_data(value).train, 6, Rng(0)).steps == 2
    with Rng(0).seed_global():
        model = SmallCnn(width=4).build(3, (3, 64, 64)).eval()
    outcomes = [
        evaluate(
            model, TinyImageNet(folder=str(root), workers=workers).load(), probes=["pgd-2@Linf:4/255"], n=9
        )
        for workers in (0, 2)
    ]
    assert len(outcomes[0].label) == 9
    for name, predicted in outcomes[0].predicted.items():
        assert predicted.tolist() == outcomes[1].predicted[name].tolist()


@pytest.mark.slow
def test_evaluation_in_several_processes_equals_one_process(tmp_path):
    data = TinyImageNet(folder=str(write_tiny_imagenet(tmp_path)), workers=1).load()
    with Rng(0).seed_global():
        model = SmallCnn(width=4).build(3, (3, 64, 64)).eval()
    one, two = (evaluate(model, data, probes=["pgd-2@Linf:4/255"], workers=workers) for workers in (1, 2))
    assert all(one.predicted[name].tolist() == two.predicted[name].tolist() for name in one.predicted)
