"""Custom images in folders, one for each class; they are decoded when they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, final

from pydantic import Field
from typing_extensions import override

from allrounder.config.fields import Flag, PositiveInt, Workers, frozen_config, raise_field_errors
from allrounder.data.base import Data, DataSpec
from allrounder.data.streaming.decode import PIL_MODES, DecodeSpec, open_image
from allrounder.data.streaming.file_index import (
    FileIndex,
    check_same_classes,
    list_class_folders,
    scan_class_folders,
    select_listed,
)
from allrounder.data.streaming.split import lazy_data
from allrounder.errors import DataError

MAX_SIDE = 4096
"""Pixels of a side of an image after resizing."""
Side = Annotated[PositiveInt, Field(le=MAX_SIDE)]
TEST_FOLDERS = ("val", "test", "valid", "validation")
"""Usual names of the folder with the test images."""


@final
@frozen_config
class Folder(DataSpec):
    """Your own images in folders, one for each class: path/train/cat/1.jpg and path/val/cat/2.jpg.

    The classes are the sorted folder names and must be the same in both splits. All images get one size and
    number of channels: greyscale, palette, CMYK and 16-bit images are converted, transparency is dropped, and
    of several frames the first is used. Hidden files are ignored; an unreadable image is an error and never
    skipped. Images are decoded when they are needed.
    """

    path: str
    """The folder; relative to the working directory."""
    train: str = "train"
    """The folder inside it with the training images."""
    test: str = "auto"
    """The folder inside it with the test images; auto takes val, test, valid or validation."""
    size: Side | None = None
    """Height and width in pixels to which images are resized and cropped; by default all must be equal."""
    resize: Side | None = None
    """Length of the shorter side in pixels before the centre crop; by default 256/224 of the size."""
    channels: PositiveInt = 3
    """3 for colour, 1 for greyscale."""
    upright: Flag = False
    """Rotate photos by their EXIF orientation; most published networks were trained without."""
    subset: str | None = None
    """A file that lists the test images to use: one path per line, relative to the folder of test images."""
    workers: Workers = None
    """Processes that decode images ahead of time; 0 for none, by default one per free core, at most 8. Does
    not change results."""

    def __post_init__(self) -> None:
        problems: list[tuple[tuple[str], str]] = []
        got = f"got {self.resize}"
        if self.resize is not None and self.size is None:
            problems.append((("resize",), f"{got} without a size, expected both; set size too"))
        elif self.resize is not None and self.size is not None and self.resize < self.size:
            message = f"{got}, expected at least the size of {self.size}, which is cropped from it"
            problems.append((("resize",), message))
        if self.channels not in PIL_MODES:
            problems.append((("channels",), f"got {self.channels}, expected 3 for colour or 1 for greyscale"))
        raise_field_errors(self, problems)

    @override
    def load(self) -> Data:
        root = Path(self.path).expanduser().absolute()
        train, test = root / self.train, root / self._test_folder(root)
        classes = list_common_classes(train, test)
        return self._data(
            root, scan_class_folders(train, classes), scan_class_folders(test, classes), classes
        )

    @override
    def load_test(self) -> Data:
        """List the test images only; a folder without a train or test folder holds test images itself."""
        root = Path(self.path).expanduser().absolute()
        train = root / self.train
        has_test_folder = any((root / name).is_dir() for name in TEST_FOLDERS)
        has_splits = train.is_dir() or has_test_folder or self.test != "auto"
        test = root / self._test_folder(root) if has_splits else root
        classes = list_common_classes(train if train.is_dir() else test, test)
        return self._data(root, None, scan_class_folders(test, classes), classes)

    def _test_folder(self, root: Path) -> str:
        if self.test != "auto":
            return self.test
        present = [name for name in TEST_FOLDERS if (root / name).is_dir()]
        if len(present) != 1:
            got = " and ".join(present) or "none of them"
            raise DataError(
                f"{root}: got {got} of the folders {', '.join(TEST_FOLDERS)}, expected one with the test "
                f"images (looked from {Path.cwd()}); set test to its name"
            )
        return present[0]

    def _data(self, root: Path, train: FileIndex | None, test: FileIndex, classes: list[str]) -> Data:
        if self.size is None:
            height, width = _first_image_size(test if train is None else train, self.upright)
            spec = DecodeSpec(height, width, self.channels, upright=self.upright)
        else:
            resize = self.resize or resize_for_crop(self.size)
            spec = DecodeSpec(self.size, self.size, self.channels, resize, self.upright)
        if self.subset is not None:
            test = select_listed(Path(self.subset).expanduser(), test, Path(test.root).name)
        return lazy_data(root.resolve().name, tuple(classes), train, test, spec, self.workers)


def list_common_classes(train: Path, test: Path) -> list[str]:
    """List the classes of two folders. Raises ValueError unless both have the same."""
    classes = list_class_folders(train)
    check_same_classes(train, test, classes, list_class_folders(test))
    return classes


def resize_for_crop(size: int) -> int:
    """The usual length of the shorter side before a centre crop of `size`: 256 for 224."""
    return round(size * 256 / 224)


def _first_image_size(files: FileIndex, upright: bool) -> tuple[int, int]:
    """Height and width of the first image, which all images must have."""
    path = files.path(0)
    try:
        with open_image(path) as image:
            width, height = image.size
            is_rotated = upright and image.getexif().get(0x0112, 1) >= 5
    except Exception as error:  # Pillow's decoders raise many kinds of errors for damaged images.
        raise DataError(
            f"{path}: cannot be read as an image ({error}); get the file again, or take it out"
        ) from None
    return (width, height) if is_rotated else (height, width)
