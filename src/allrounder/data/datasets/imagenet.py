"""ImageNet and Tiny-ImageNet, from the folders they are unpacked to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import final

from allrounder.config.fields import Count, Place, Workers, value
from allrounder.data.base import Data, DataSpec
from allrounder.data.datasets.folder import Opened, enlarged
from allrounder.data.files.cache import folder_of
from allrounder.data.files.catalog import PUBLISHED
from allrounder.data.streaming.decode import Reading
from allrounder.data.streaming.file_index import (
    Listing,
    check_same,
    class_folders,
    images_in,
    lines_of,
    listed,
    scan,
)

WORDS = ("LOC_synset_mapping.txt", "words.txt")
"""Files that give the classes their names: an id and then words, one class a line."""
ANNOTATIONS = "val_annotations.txt"
TINY = 64


@final
@value
class ImageNet(DataSpec):
    """ImageNet (ILSVRC 2012) as unpacked: train/n01440764/x.JPEG and val/n01440764/y.JPEG.

    Images are read as published networks are measured: the shorter side becomes 256 pixels (for a size of
    224), bilinear, and the middle is cut out. Classes are sorted by their ids, which gives the usual numbers;
    they are named by LOC_synset_mapping.txt or words.txt where the folder has one.
    """

    folder: Place = None
    """The folder with train and val; by default `imagenet` in the cache. It has to be got from its owners."""
    size: Count = 224
    """Pixels of a side; the shorter side is first brought to 256/224 of it."""
    subset: str | None = None
    """A file that lists the test images to use, such as a fixed 5,000: one path a line, below val."""
    workers: Workers = None
    """Processes that decode ahead, 0 for none; without it as many as suit. Results are the same for all."""

    def load(self) -> Data:
        """List both folders; images are decoded later."""
        root = unpacked_folder("imagenet", self.folder)
        names, others = class_folders(root / "train"), class_folders(root / "val")
        check_same(root / "train", root / "val", names, others)
        return self._data(root, scan(root / "train", names), names)

    def load_test(self) -> Data:
        """List the test images alone, to evaluate on; the training images need not be there."""
        root = unpacked_folder("imagenet", self.folder)
        names = class_folders(root / "val")
        if (root / "train").is_dir():
            check_same(root / "train", root / "val", class_folders(root / "train"), names)
        return self._data(root, None, names)

    def _data(self, root: Path, train: Listing | None, ids: Sequence[str]) -> Data:
        reading = Reading(self.size, self.size, resize=enlarged(self.size))
        test = scan(root / "val", ids)
        if self.subset is not None:
            test = listed(Path(self.subset).expanduser(), test, "val")
        return Opened("imagenet", named_classes(root, ids), reading, self.workers).data(train, test)


@final
@value
class TinyImageNet(DataSpec):
    """Tiny-ImageNet as unpacked: 200 classes of 64x64 images; its val folder is the test set.

    The training images are train/n01443537/images/x.JPEG. Those of val lie in val/images, with their classes
    in val/val_annotations.txt, or are sorted into a folder for each class, in val or val/images, as some
    tools do. Classes are sorted by their ids and named by words.txt.
    """

    folder: Place = None
    """The folder tiny-imagenet-200, or the one that holds it; by default in the cache."""
    workers: Workers = None
    """Processes that decode ahead, 0 for none; without it as many as suit. Results are the same for all."""

    def load(self) -> Data:
        """List both folders; images are decoded later."""
        root = unpacked_folder("tiny-imagenet", self.folder)
        ids = class_folders(root / "train")
        train = scan(root / "train", ids, _inner(root / "train", ids))
        return self._data(root, train, ids)

    def load_test(self) -> Data:
        """List the test images alone, to evaluate on; the training images need not be there."""
        root = unpacked_folder("tiny-imagenet", self.folder)
        if (root / "train").is_dir():
            return self._data(root, None, class_folders(root / "train"))
        wnids = root / "wnids.txt"
        if wnids.is_file():
            return self._data(root, None, sorted(line.strip() for _, line in lines_of(wnids)))
        if (root / "val" / ANNOTATIONS).is_file():
            return self._data(root, None, sorted(set(_annotations(root / "val" / ANNOTATIONS).values())))
        return self._data(root, None, _sorted_classes(root / "val")[1])

    def _data(self, root: Path, train: Listing | None, ids: Sequence[str]) -> Data:
        test, reading = _val(root, ids), Reading(TINY, TINY)
        return Opened("tiny-imagenet", named_classes(root, ids), reading, self.workers).data(train, test)


def unpacked_folder(kind: str, folder: str | None) -> Path:
    """The folder of a dataset, or the one that its archive makes in it."""
    root, entry = folder_of(kind, folder), PUBLISHED.get(kind)
    if entry is not None and entry.unpacked is not None and (root / entry.unpacked).is_dir():
        return root / entry.unpacked
    if not root.is_dir():
        how = "its owners give it to those who register" if entry is None else f"allrounder data get {kind}"
        raise FileNotFoundError(f"{root}: no such folder; put the unpacked dataset there, or name it ({how})")
    packed = [] if entry is None else [file.name for file in entry.files if (root / file.name).is_file()]
    if packed and not (root / "val").is_dir():
        source = "" if root == folder_of(kind) else f" --from {root}"
        raise FileNotFoundError(
            f"{root}: has {packed[0]}, but not unpacked; unpack it with: allrounder data get {kind}{source}"
        )
    return root


def named_classes(root: Path, ids: Sequence[str]) -> tuple[str, ...]:
    """The first word of every class, with its id where others have the same; the ids, where none are told."""
    file = next((root / name for name in WORDS if (root / name).is_file()), None)
    if file is None:
        return tuple(ids)
    told: dict[str, str] = {}
    for _, line in lines_of(file):
        identity, *words = line.split(maxsplit=1)
        if words:
            told[identity] = words[0].partition(",")[0].strip()
    missing = [name for name in ids if name not in told]
    if missing:
        raise ValueError(f"{file}: has no line for {missing[0]}, expected one for every class; get it again")
    often = Counter(told[name] for name in ids)
    return tuple(told[name] if often[told[name]] == 1 else f"{told[name]} ({name})" for name in ids)


def _inner(train: Path, ids: Sequence[str]) -> str:
    """Whether the images of a class are in a folder of their own, as they were published."""
    return "images" if (train / ids[0] / "images").is_dir() else ""


def _val(root: Path, ids: Sequence[str]) -> Listing:
    val = root / "val"
    notes = val / ANNOTATIONS
    if not notes.is_file() or not _holds(val / "images", Path.is_file):
        place, others = _sorted_classes(val)
        check_same(root / "train", place, ids, others)
        return scan(place, ids, _inner(place, ids))
    number = {name: label for label, name in enumerate(ids)}
    told = _annotations(notes)
    unknown = sorted(set(told.values()) - set(ids))
    if unknown:
        raise ValueError(
            f"{notes}: has the class {unknown[0]}, which {root / 'train'} has not; get the folder again"
        )
    return Listing.of(val, _annotated(val, told, number))


def _sorted_classes(val: Path) -> tuple[Path, list[str]]:
    """The folder with a folder for each class, val itself or its images, and the classes."""
    place = val / "images" if _holds(val / "images", Path.is_dir) else val
    return place, [name for name in class_folders(place) if name != "images"]


def _holds(folder: Path, sort: Callable[[Path], bool]) -> bool:
    """Whether a folder is there and has something of a sort that is not hidden."""
    return folder.is_dir() and any(sort(path) for path in folder.iterdir() if not path.name.startswith("."))


def _annotated(val: Path, told: Mapping[str, str], number: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    images = images_in(val / "images")
    absent = sorted(told.keys() - set(images))
    if absent:
        raise ValueError(
            f"{val / ANNOTATIONS}: lists {absent[0]}, which is not in {val / 'images'}; get it again"
        )
    for name in images:
        if name not in told:
            raise ValueError(f"{val / 'images' / name}: is not in {ANNOTATIONS}, so its class is not known")
        yield f"images/{name}", number[told[name]]


def _annotations(file: Path) -> dict[str, str]:
    """The class of every image: a name, its class, and a box that is not used, one image a line."""
    found: dict[str, str] = {}
    for number, line in lines_of(file):
        name, *more = line.split()[:2]
        if not more:
            raise ValueError(
                f"{file}: line {number}: got {line!r}, expected a file name and a class; get it again"
            )
        found[name] = more[0]
    return found
