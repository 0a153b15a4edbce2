"""Compare what a training will write with the free space of its disk, in a plan and before the first step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from allrounder.errors import StorageError
from allrounder.nn.state import weights_of

if TYPE_CHECKING:
    from allrounder.training.trainer import Trainer


def count_needed_bytes(trainer: Trainer) -> int:
    """Return a lower bound on the bytes of a run folder at its largest: a checkpoint is deleted when the next
    one is complete, and at the end there are the last weights, and the best ones if they are selected.

    Of learners of other ranks only the network counts. Momentum that does not exist yet does not count.
    """
    names = [learner.task.name for learner in trainer.learners]
    states = [count_bytes(learner.state_dict().values()) for learner in trainer.learners]
    states += [count_bytes(trainer.mixer.state_dict(name).values()) for name in names]
    network = count_bytes(weights_of(trainer.scratch_model).values())
    count = len(trainer.recipe.tasks)
    state, weights = sum(states) + (count - len(names)) * network, (1 + count) * network
    best = 0 if trainer.selection.split is None else weights
    return max(2 * state + best, state + best + weights)


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(tensor.nbytes for tensor in tensors)


def check_disk_space(folder: Path, needed: int) -> None:
    """Raise StorageError if the disk of a run folder has less space than its files will take."""
    if (problem := find_space_problem(folder, needed)) is not None:
        advice = "free some space and call again, or choose a folder on another disk"
        raise StorageError(f"{problem}; {advice}", resumable=True)


def find_space_problem(folder: Path, needed: int) -> str | None:
    """Return a message if the disk of a run folder, which need not exist, has less space than its files will
    take; None if it has enough. Files of earlier sessions count as space, because they are replaced."""
    free = read_free_bytes(folder)
    if free is None:
        return None
    written = sum(count_file_bytes(folder / name) for name in ("checkpoints", "weights"))
    if needed <= free + written:
        return None
    sizes = f"{needed / 1e6:,.1f} MB or more, and the disk has {(free + written) / 1e6:,.1f} MB"
    return f"{folder}: its checkpoints and weights will take {sizes}"


def count_file_bytes(folder: Path) -> int:
    """Return the bytes of the files in a folder, without files that another process deletes meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.path.getsize(os.path.join(parent, name))
    return total


def read_free_bytes(folder: Path) -> int | None:
    """Return the free space of the disk on which a folder is, or would be created; None if its file system
    does not report sizes."""
    place = folder.absolute()
    usage = shutil.disk_usage(next(path for path in (place, *place.parents) if os.path.exists(path)))
    return usage.free if usage.total else None
