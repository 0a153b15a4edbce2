"""What an evaluation has settled: for every attack, one line for each image; on disk, so that nothing is done
twice.

A line depends on the network, the image, the attack, the seed, the lane width and the threads of a process,
and on nothing else: not on the other images or attacks, not on the process that wrote it. So a folder serves
any number of images and attacks, and what one call has settled, the next one finds.

    plan.json                           what all lines of the folder have in common
    lines/ATTACK-DIGEST/ROW.safetensors pages: some lines each, named by their first row; written whole or not
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast, final

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from allrounder.errors import RunError
from allrounder.system.files import LOCK, aside, locked, sync, write_text
from allrounder.types import Images, Labels, PerExampleBool

PLAN, LINES = "plan.json", "lines"
Told: TypeAlias = Mapping[str, Mapping[str, Sequence[int | float]]]
"""Lines in plain numbers, by attack: row, predicted, distance."""


@final
@dataclass(frozen=True, eq=False)
class Lines:
    """What is known of one attack, for every image of the split."""

    settled: PerExampleBool
    predicted: Labels
    """What the plain network says of the image that the attack made."""
    distance: Float[Tensor, " n"]
    """How far that image is from the natural one, in the attack's norm; NaN where it is classified right."""

    @classmethod
    def blank(cls, images: int) -> Lines:
        """Nothing is known yet."""
        unknown = torch.full((images,), -1, dtype=torch.int64)
        return cls(unknown >= 0, unknown, torch.full((images,), float("nan"), dtype=torch.float64))

    def enter_(self, page: Mapping[str, Tensor]) -> None:
        """Write down the lines of a page."""
        rows = page["row"]
        self.settled[rows], self.predicted[rows], self.distance[rows] = (
            True,
            page["predicted"],
            page["distance"],
        )


@final
class Ledger:
    """The lines of all attacks; without a folder they are only remembered."""

    def __init__(self, images: int, folder: Path | None = None):
        """Over a split of so many images."""
        self.images, self.folder = images, folder
        self.known: dict[str, Lines] = {}
        self.tell: Callable[[Told], object] = lambda told: None
        """Called with every page that is new."""

    def lines(self, attack: str) -> Lines:
        """All lines of an attack so far."""
        if attack not in self.known:
            lines = self.known[attack] = Lines.blank(self.images)
            for file in self._pages(attack):
                lines.enter_(_read(file))
        return self.known[attack]

    def add(
        self, attack: str, rows: Labels, predicted: Labels, distance: Tensor, x: Images | None = None
    ) -> None:
        """Write a page of the lines that are new; x are the images behind them, where they are to be kept.

        So a row is on one page only, and the page that it comes first on is the only one of its name.
        """
        new = (~self.lines(attack).settled[rows]).nonzero().squeeze(1)
        if len(new) == 0:
            return
        rows = rows[new]
        page = {"row": rows, "predicted": predicted[new], "distance": distance[new]}
        if x is not None:
            # Only of images that are broken is there something to keep.
            broken = (~distance[new].isnan()).nonzero().squeeze(1)
            page |= {"x": x[new][broken], "x_row": rows[broken]}
        if self.folder is not None:
            file = self._of(attack) / f"{int(rows[0]):07d}.safetensors"
            file.parent.mkdir(parents=True, exist_ok=True)
            plain = {name: tensor.detach().cpu().contiguous() for name, tensor in page.items()}
            save_file(plain, aside(file), metadata={"attack": attack})
            sync(aside(file))
            aside(file).replace(file)
        # Last, so that whoever was interrupted in a write can write the same again.
        self.lines(attack).enter_(page)
        self.tell({attack: _plain(page["row"], page["predicted"], page["distance"])})

    def told(self, attacks: Iterable[str] | None = None, among: range | None = None) -> Told:
        """All lines that are remembered, in plain numbers, for another ledger to `hear`; or those of some
        attacks, and of rows in a range."""
        among, found = among or range(self.images), dict[str, dict[str, list[int | float]]]()
        for name in self.known if attacks is None else attacks:
            lines = self.lines(name)
            rows = lines.settled[among.start : among.stop].nonzero().squeeze(1) + among.start
            found[name] = _plain(rows, lines.predicted[rows], lines.distance[rows])
        return found

    def hear(self, told: Told) -> None:
        """Enter the lines of another ledger over the same images."""
        for name, page in told.items():
            rows, predicted = (torch.tensor(page[key], dtype=torch.int64) for key in ("row", "predicted"))
            self.add(name, rows, predicted, torch.tensor(page["distance"], dtype=torch.float64))

    def examples(self, attack: str, wanted: set[int]) -> dict[int, Tensor]:
        """The images that were kept of an attack at these rows."""
        found: dict[int, Tensor] = {}
        for page in map(_read, self._pages(attack)):
            for number, row in enumerate(cast(list[int], page["x_row"].tolist()) if "x" in page else ()):
                if row in wanted:
                    found[row] = page["x"][number].clone()
        return found

    def _of(self, attack: str) -> Path:
        assert self.folder is not None
        word = "".join(sign if sign.isalnum() else "-" for sign in attack.split("(")[0].lower())
        return self.folder / LINES / f"{word}-{hashlib.sha256(attack.encode()).hexdigest()[:12]}"

    def _pages(self, attack: str) -> list[Path]:
        return [] if self.folder is None else sorted(self._of(attack).glob("[0-9]*.safetensors"))


def _plain(rows: Labels, predicted: Labels, distance: Tensor) -> dict[str, list[int | float]]:
    return {"row": rows.tolist(), "predicted": predicted.tolist(), "distance": distance.tolist()}


@contextmanager
def opened(folder: Path, plan: Mapping[str, Any]) -> Generator[None]:
    """Begin a folder, or take up one with the same plan, and keep others out of it; another's is not
    touched."""
    file, facts = folder / PLAN, json.loads(json.dumps(dict(plan)))
    if not file.is_file() and folder.exists() and not _is_empty(folder):
        raise RunError(f"{folder}: exists and is no evaluation; choose another folder, nothing was changed")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "evaluating"):
        if file.is_file():
            _check_same(folder, _plan(file), facts)
        else:
            write_text(file, json.dumps(facts, indent=1, sort_keys=True))
        yield


def _is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing but what is left of a process that was killed before it had a plan."""
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= {LOCK, aside(Path(PLAN)).name}


def _plan(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{file}: cannot be read ({error}); choose another folder") from None


def _check_same(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            raise RunError(
                f"{folder}: holds an evaluation whose {key} is {old.get(key)}, here it is {new.get(key)}; "
                "choose another folder, nothing was changed"
            )


def _read(file: Path) -> dict[str, Tensor]:
    try:
        page = load_file(file)
        if missing := {"row", "predicted", "distance"} - page.keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        return page
    except (OSError, ValueError, SafetensorError) as error:
        raise RunError(f"{file}: cannot be read ({error}); delete it, and its lines are made again") from None
