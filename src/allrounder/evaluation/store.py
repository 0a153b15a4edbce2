"""The results of an evaluation, per attack and image, kept on disk so that no attack is run twice.

A result depends on the network, the image, the attack, the seed, the batch size and the number of threads,
and on nothing else: not on the other images or attacks, and not on the process that wrote it. So one folder
serves any number of images and attacks, and a later call reuses the results of earlier ones.

    plan.json                              what all results in the folder have in common, and the format
    results/ATTACK-DIGEST/ROW.safetensors  shards: the results of some images, named by their first row

A damaged shard is set aside as ROW.safetensors.damaged, and its results are computed again.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast, final

import torch
from jaxtyping import Float
from torch import Tensor

from allrounder.errors import RunError
from allrounder.system.checked_files import read_arrays, read_json, write_arrays, write_json
from allrounder.system.files import (
    LOCK_FILE,
    check_location,
    explain_write_errors,
    lock_folder,
    make_folder,
    temporary_path,
)
from allrounder.types import Images, Labels, PerExampleBool

FORMAT_VERSION = 3
"""Of the layout above and of the arithmetic of attacks; folders of other versions are refused."""
PLAN_FILE = "plan.json"
RESULTS_FOLDER = "results"
UNCHANGED = "choose another folder, nothing was changed"
SHARD_FIELDS = ("row", "predicted", "distance")
ExportedResults: TypeAlias = Mapping[str, Mapping[str, Sequence[int | float]]]
"""Results in plain numbers, by store key and SHARD_FIELDS."""


@final
@dataclass(frozen=True, eq=False)
class AttackResults:
    """The results of one attack, with one entry for every image of the split."""

    done: PerExampleBool
    """Whether there is a result for the image."""
    predicted: Labels
    """The class that the unmodified network predicts for the image that the attack returned."""
    distance: Float[Tensor, " n"]
    """The norm of the perturbation, in the attack's norm; NaN where the prediction is correct."""

    @classmethod
    def empty(cls, num_images: int) -> AttackResults:
        """No image has a result yet."""
        predicted = torch.full((num_images,), -1, dtype=torch.int64)
        distance = torch.full((num_images,), float("nan"), dtype=torch.float64)
        return cls(predicted >= 0, predicted, distance)

    def write_(self, shard: Mapping[str, Tensor]) -> None:
        """Copy the results of a shard into this one."""
        rows = shard["row"]
        self.done[rows] = True
        self.predicted[rows] = shard["predicted"]
        self.distance[rows] = shard["distance"]


@final
class ResultStore:
    """The results of all attacks on the images of one split, in memory and, with a folder, on disk.

    Keys are those of `AttackStage.key`, "natural", and those of corrupted images.
    """

    def __init__(self, num_images: int, folder: Path | None = None):
        """For a split of `num_images` images."""
        self.num_images = num_images
        self.folder = folder
        self.cached: dict[str, AttackResults] = {}
        self.on_new: Callable[[ExportedResults], object] = lambda results: None
        """Called with every new shard."""

    def results(self, key: str) -> AttackResults:
        """All results of an attack so far."""
        if key not in self.cached:
            results = self.cached[key] = AttackResults.empty(self.num_images)
            for shard in self._read_shards(key):
                results.write_(shard)
        return self.cached[key]

    def add(
        self, key: str, rows: Labels, predicted: Labels, distance: Tensor, x: Images | None = None
    ) -> None:
        """Write the results that are new as one shard, so each row is in exactly one; keep `x` if given."""
        new = (~self.results(key).done[rows]).nonzero().squeeze(1)
        if len(new) == 0:
            return
        rows = rows[new]
        shard = {"row": rows, "predicted": predicted[new], "distance": distance[new]}
        if x is not None:  # only images that fool the network are kept
            fooled = (~distance[new].isnan()).nonzero().squeeze(1)
            shard |= {"x": x[new][fooled], "x_row": rows[fooled]}
        if self.folder is not None:
            file = self._attack_folder(key) / f"{int(rows[0]):07d}.safetensors"
            make_folder(file.parent)
            arrays = {name: tensor.detach().cpu().numpy() for name, tensor in shard.items()}
            write_arrays(file, arrays, {"attack": key})
        # The file comes first: after an interrupted write, the same shard can be written again.
        self.results(key).write_(shard)
        self.on_new({key: _to_lists(shard)})

    def export(self, keys: Iterable[str] | None = None, rows: range | None = None) -> ExportedResults:
        """The results in memory in plain numbers, for `merge`; all, or of some keys and a range of rows."""
        within = rows or range(self.num_images)
        exported: dict[str, dict[str, list[int | float]]] = {}
        for key in self.cached if keys is None else keys:
            results = self.results(key)
            done = results.done[within.start : within.stop].nonzero().squeeze(1) + within.start
            shard = {"row": done, "predicted": results.predicted[done], "distance": results.distance[done]}
            exported[key] = _to_lists(shard)
        return exported

    def merge(self, exported: ExportedResults) -> None:
        """Add the results of another store for the same images."""
        for key, shard in exported.items():
            rows, predicted = (torch.tensor(shard[name], dtype=torch.int64) for name in ("row", "predicted"))
            self.add(key, rows, predicted, torch.tensor(shard["distance"], dtype=torch.float64))

    def examples(self, key: str, rows: set[int]) -> dict[int, Tensor]:
        """The images that were kept of an attack, by row, at some rows."""
        images: dict[int, Tensor] = {}
        for shard in self._read_shards(key):
            kept = cast(list[int], shard["x_row"].tolist()) if "x" in shard else ()
            images |= {row: shard["x"][position].clone() for position, row in enumerate(kept) if row in rows}
        return images

    def _attack_folder(self, key: str) -> Path:
        assert self.folder is not None
        word = "".join(sign if sign.isalnum() else "-" for sign in key.split("(")[0].lower())
        return self.folder / RESULTS_FOLDER / f"{word}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"

    def _read_shards(self, key: str) -> Generator[dict[str, Tensor]]:
        """Yield the intact shards of an attack, and set the damaged ones aside."""
        if self.folder is None:
            return
        for file in sorted(self._attack_folder(key).glob("[0-9]*.safetensors")):
            try:
                yield self._read_shard(file, key)
            except ValueError as error:
                aside = _set_aside(file)
                problem = f"{file}: cannot be read ({error}); moved to {aside.name}"
                warnings.warn(f"{problem}, its results are computed again", stacklevel=2)
            except OSError as error:
                advice = "make it readable, or move it away: its results are computed again"
                raise RunError(f"{file}: cannot be read ({error}); {advice}") from None

    def _read_shard(self, file: Path, key: str) -> dict[str, Tensor]:
        """Read a shard; raise ValueError unless it holds results of this attack and these images."""
        arrays, fields = read_arrays(file)
        if fields.get("attack") != key or not set(SHARD_FIELDS) <= arrays.keys():
            raise ValueError(f"it does not hold results of {key}")
        if not ((arrays["row"] >= 0) & (arrays["row"] < self.num_images)).all():
            raise ValueError(f"it holds rows beyond the {self.num_images} images")
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _set_aside(file: Path) -> Path:
    """Rename a damaged file, so that it is not read again, to a name that is not taken."""
    number = 1
    while (aside := file.with_name(f"{file.name}.damaged{'' if number == 1 else f'-{number}'}")).exists():
        number += 1
    with explain_write_errors(file):
        return file.rename(aside)


def _to_lists(shard: Mapping[str, Tensor]) -> dict[str, list[int | float]]:
    return {name: shard[name].tolist() for name in SHARD_FIELDS}


@contextmanager
def open_folder(folder: Path, plan: Mapping[str, Any]) -> Generator[None]:
    """Create an evaluation folder, or open one with the same plan, and hold its lock.

    A folder that holds anything else is refused and left unchanged.
    """
    file = folder / PLAN_FILE
    new_plan: dict[str, Any] = json.loads(json.dumps({**plan, "format": FORMAT_VERSION}))
    check_location(folder)
    if folder.exists() and not _may_hold_plan(folder):
        raise RunError(f"{folder}: exists and is not an evaluation; {UNCHANGED}")
    make_folder(folder)
    with lock_folder(folder, "evaluating"):
        if file.is_file():
            _check_same_plan(folder, read_json(file, UNCHANGED, FORMAT_VERSION), new_plan)
        else:
            write_json(file, new_plan)
        yield


def _may_hold_plan(folder: Path) -> bool:
    """Whether a folder has a plan, or at most what a process leaves that was killed before it wrote one."""
    leftovers = {LOCK_FILE, temporary_path(Path(PLAN_FILE)).name}
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    return PLAN_FILE in names or names <= leftovers


def _check_same_plan(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            difference = f"with {key} = {old.get(key)}, this one has {new.get(key)}"
            raise RunError(f"{folder}: holds an evaluation {difference}; {UNCHANGED}")
