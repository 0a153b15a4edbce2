"""Images of your own in folders, one for each class; they are never held in memory together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from allrounder.config.fields import Count, Flag, Workers, refuse, value
from allrounder.data.base import Data, DataSpec
from allrounder.data.streaming.decode import MODES, Reading, opened
from allrounder.data.streaming.decoder_pool import Crew, suitable
from allrounder.data.streaming.file_index import Listing, check_same, class_folders, listed, scan
from allrounder.data.streaming.split import Streamed

TESTS = ("val", "test", "valid", "validation")
"""What people call the folder of their test images."""


@final
@value
class Folder(DataSpec):
    """Your own images in folders, one for each class: path/train/cat/1.jpg and path/val/cat/2.jpg.

    Classes are the names of the folders, sorted, and the same in both splits. All images come out in one
    size and with the same channels: grey, palette, CMYK and 16-bit ones are converted, transparency is
    dropped, and of several frames the first is taken. Hidden files are ignored; an image that cannot be read
    is an error and never skipped. Images are decoded when they are needed.
    """

    path: str
    """The folder; relative to the working directory."""
    train: str = "train"
    """The folder inside it with the training images."""
    test: str = "auto"
    """The folder inside it with the test images; auto takes val, test, valid or validation."""
    size: Count | None = None
    """Pixels of a side that all images are brought to; without it they must be of one size already."""
    resize: Count | None = None
    """Pixels of the shorter side before the middle is cut out; without it, 256/224 of the size, rounded."""
    channels: Count = 3
    """3 for colour, 1 for grey."""
    upright: Flag = False
    """Turn photos as their EXIF tag says; most published networks were trained without."""
    subset: str | None = None
    """A file that lists the test images to use: one path a line, below the folder of test images."""
    workers: Workers = None
    """Processes that decode ahead, 0 for none; without it as many as suit. Results are the same for all."""

    def __post_init__(self) -> None:
        problems = list[tuple[tuple[str | int, ...], str]]()
        if self.resize is not None and self.size is None:
            problems.append((("resize",), f"got {self.resize} without a size, expected both; set size too"))
        if self.resize is not None and self.size is not None and self.resize < self.size:
            said = f"got {self.resize}, expected at least the size of {self.size}, which is cut out of it"
            problems.append((("resize",), said))
        if self.channels not in MODES:
            problems.append((("channels",), f"got {self.channels}, expected 3 for colour or 1 for grey"))
        refuse(self, problems)

    def load(self) -> Data:
        """List both folders; images are decoded later."""
        root = Path(self.path).expanduser().absolute()
        train, test = root / self.train, root / self._test(root)
        names, others = class_folders(train), class_folders(test)
        check_same(train, test, names, others)
        return self._data(root, scan(train, names), scan(test, names), names)

    def load_test(self) -> Data:
        """List the test images alone, to evaluate on; a folder without splits has test images only."""
        root = Path(self.path).expanduser().absolute()
        train, found = root / self.train, [name for name in TESTS if (root / name).is_dir()]
        split = train.is_dir() or found or self.test != "auto"
        test = root / self._test(root) if split else root
        names = class_folders(test)
        if train.is_dir():
            check_same(train, test, class_folders(train), names)
        return self._data(root, None, scan(test, names), names)

    def _test(self, root: Path) -> str:
        if self.test != "auto":
            return self.test
        found = [name for name in TESTS if (root / name).is_dir()]
        if len(found) != 1:
            got = " and ".join(found) or "none of them"
            raise ValueError(
                f"{root}: got {got} of the folders {', '.join(TESTS)}, expected one with the test images "
                f"(looked from {Path.cwd()}); set test to its name"
            )
        return found[0]

    def _data(self, root: Path, train: Listing | None, test: Listing, names: list[str]) -> Data:
        if self.size is None:
            height, width = _size(test if train is None else train, self.upright)
            reading = Reading(height, width, self.channels, upright=self.upright)
        else:
            resize = self.resize or enlarged(self.size)
            reading = Reading(self.size, self.size, self.channels, resize, self.upright)
        if self.subset is not None:
            test = listed(Path(self.subset).expanduser(), test, Path(test.root).name)
        return Opened(root.resolve().name, tuple(names), reading, self.workers).data(train, test)


@final
@dataclass(frozen=True)
class Opened:
    """What two lists of files need to become a dataset; one crew decodes for both."""

    name: str
    classes: tuple[str, ...]
    reading: Reading
    workers: int | None

    def data(self, train: Listing | None, test: Listing) -> Data:
        """The dataset; without training images, the test images stand in for them."""
        workers = suitable() if self.workers is None else self.workers
        crew = Crew(workers) if workers else None
        tested = Streamed(test, self.reading, crew)
        trained = tested if train is None else Streamed(train, self.reading, crew)
        return Data(self.name, trained, tested, self.classes)


def enlarged(size: int) -> int:
    """The shorter side from whose middle a square of a size is cut: 256 for 224."""
    return round(size * 256 / 224)


def _size(listing: Listing, upright: bool) -> tuple[int, int]:
    """Height and width of the first image, which are those of all."""
    path = listing.path(0)
    try:
        with opened(path) as image:
            width, height = image.size
            turned = upright and image.getexif().get(0x0112, 1) >= 5
    except Exception as error:  # Pillow's readers have errors of their own for damaged images.
        raise ValueError(
            f"{path}: cannot be read as an image ({error}); get the file again, or take it out"
        ) from None
    return (width, height) if turned else (height, width)
