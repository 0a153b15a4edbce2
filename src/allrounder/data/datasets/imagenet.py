"""ImageNet and Tiny-ImageNet from their unpacked folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

from typing_extensions import override

from allrounder.config.fields import PathField, Workers, frozen_config
from allrounder.config.text import quote
from allrounder.data.base import Data, DataSpec
from allrounder.data.datasets.folder import Side, list_common_classes, resize_for_crop
from allrounder.data.files.cache import dataset_folder
from allrounder.data.files.catalog import PUBLISHED
from allrounder.data.streaming.decode import DecodeSpec
from allrounder.data.streaming.file_index import (
    FileIndex,
    check_same_classes,
    list_class_folders,
    list_images,
    read_lines,
    scan_class_folders,
    select_listed,
)
from allrounder.data.streaming.split import lazy_data
from allrounder.errors import DataError, MissingDataError

CLASS_NAME_FILES = ("LOC_synset_mapping.txt", "words.txt")
"""Files with class names: an id and then words, one class per line."""
ANNOTATIONS = "val_annotations.txt"
TINY_SIZE = 64


@final
@frozen_config
class ImageNet(DataSpec):
    """ImageNet (ILSVRC 2012), unpacked: train/n01440764/x.JPEG and val/n01440764/y.JPEG.

    Images are preprocessed as for published accuracies: the shorter side is resized to 256 pixels (for a size
    of 224), bilinear, and the centre is cropped. Classes are sorted by their ids, which gives the usual
    numbers, and named by LOC_synset_mapping.txt or words.txt if the folder has one.
    """

    folder: PathField = None
    """The folder with train and val; by default `imagenet` in the cache. Its owners must provide it."""
    size: Side = 224
    """Height and width in pixels; the shorter side is first resized to 256/224 of it."""
    subset: str | None = None
    """A file that lists the test images to use, such as a fixed 5,000: one path per line, relative to val."""
    workers: Workers = None
    """Processes that decode images ahead of time; 0 for none, by default one per free core, at most 8. Does
    not change results."""

    @override
    def load(self) -> Data:
        root = unpacked_folder("imagenet", self.folder)
        ids = list_common_classes(root / "train", root / "val")
        return self._data(root, scan_class_folders(root / "train", ids), ids)

    @override
    def load_test(self) -> Data:
        root = unpacked_folder("imagenet", self.folder)
        train, val = root / "train", root / "val"
        return self._data(root, None, list_common_classes(train if train.is_dir() else val, val))

    def _data(self, root: Path, train: FileIndex | None, ids: Sequence[str]) -> Data:
        spec = DecodeSpec(self.size, self.size, resize=resize_for_crop(self.size))
        test = scan_class_folders(root / "val", ids)
        if self.subset is not None:
            test = select_listed(Path(self.subset).expanduser(), test, "val")
        return lazy_data("imagenet", read_class_names(root, ids), train, test, spec, self.workers)


@final
@frozen_config
class TinyImageNet(DataSpec):
    """Tiny-ImageNet, unpacked: 200 classes of 64x64 images; its val folder is the test set.

    The training images are train/n01443537/images/x.JPEG. Those of val are in val/images, with their classes
    in val/val_annotations.txt, or in a folder for each class, in val or val/images, as some tools sort them.
    Classes are sorted by their ids and named by words.txt.
    """

    folder: PathField = None
    """The folder tiny-imagenet-200, or the one that holds it; by default in the cache."""
    workers: Workers = None
    """Processes that decode images ahead of time; 0 for none, by default one per free core, at most 8. Does
    not change results."""

    @override
    def load(self) -> Data:
        root = unpacked_folder("tiny-imagenet", self.folder)
        ids = list_class_folders(root / "train")
        train = scan_class_folders(root / "train", ids, _inner_folder(root / "train", ids))
        return self._data(root, train, ids)

    @override
    def load_test(self) -> Data:
        root = unpacked_folder("tiny-imagenet", self.folder)
        wnids, annotations = root / "wnids.txt", root / "val" / ANNOTATIONS
        if (root / "train").is_dir():
            ids = list_class_folders(root / "train")
        elif wnids.is_file():
            ids = sorted(line.strip() for _, line in read_lines(wnids))
        elif annotations.is_file():
            ids = sorted(set(_read_annotations(annotations).values()))
        else:
            _, ids = _sorted_classes(root / "val")
        return self._data(root, None, ids)

    def _data(self, root: Path, train: FileIndex | None, ids: Sequence[str]) -> Data:
        test = _index_val(root, ids)
        spec = DecodeSpec(TINY_SIZE, TINY_SIZE)
        return lazy_data("tiny-imagenet", read_class_names(root, ids), train, test, spec, self.workers)


def unpacked_folder(kind: str, folder: str | None) -> Path:
    """The folder of a dataset, or the folder inside it that its archive unpacks to."""
    root = dataset_folder(kind, folder)
    entry = PUBLISHED.get(kind)
    if entry is not None and entry.unpacked is not None and (root / entry.unpacked).is_dir():
        return root / entry.unpacked
    if not root.is_dir():
        how = "its owners give it to those who register" if entry is None else f"allrounder data get {kind}"
        raise MissingDataError(
            f"{root}: no such folder; put the unpacked dataset there, or set folder ({how})"
        )
    archives = [] if entry is None else [file.name for file in entry.files if (root / file.name).is_file()]
    if archives and not (root / "val").is_dir():
        source = "" if root == dataset_folder(kind) else f" --from {root}"
        raise MissingDataError(
            f"{root}: has {archives[0]}, but not unpacked; unpack it with: allrounder data get {kind}{source}"
        )
    return root


def read_class_names(root: Path, ids: Sequence[str]) -> tuple[str, ...]:
    """The first word of every class, with its id if another class has the same; the ids without a file."""
    file = next((root / name for name in CLASS_NAME_FILES if (root / name).is_file()), None)
    if file is None:
        return tuple(ids)
    words: dict[str, str] = {}
    for _, line in read_lines(file):
        wnid, *rest = line.split(maxsplit=1)
        if rest:
            words[wnid] = rest[0].partition(",")[0].strip()
    missing = [wnid for wnid in ids if wnid not in words]
    if missing:
        raise DataError(f"{file}: has no line for {missing[0]}, expected one for every class; get it again")
    counts = Counter(words[wnid] for wnid in ids)
    return tuple(words[wnid] if counts[words[wnid]] == 1 else f"{words[wnid]} ({wnid})" for wnid in ids)


def _inner_folder(train: Path, ids: Sequence[str]) -> str:
    """Return "images" if the images of a class are in such a folder, as published; else an empty string."""
    return "images" if (train / ids[0] / "images").is_dir() else ""


def _index_val(root: Path, ids: Sequence[str]) -> FileIndex:
    train, val = root / "train", root / "val"
    annotations, folder = val / ANNOTATIONS, val / "images"
    if not annotations.is_file() or not _contains(folder, Path.is_file):
        folder, val_ids = _sorted_classes(val)
        check_same_classes(train, folder, ids, val_ids)
        return scan_class_folders(folder, ids, _inner_folder(folder, ids))
    class_of = _read_annotations(annotations)
    unknown = sorted(set(class_of.values()) - set(ids))
    if unknown:
        raise DataError(f"{annotations}: has the class {unknown[0]}, which {train} has not; get it again")
    images = list_images(folder)
    for name in sorted(class_of.keys() - set(images)):
        raise DataError(f"{annotations}: lists {name}, which is not in {folder}; get it again")
    for name in images:
        if name not in class_of:
            raise DataError(f"{folder / name}: is not in {ANNOTATIONS}, so its class is not known")
    label_of = {wnid: label for label, wnid in enumerate(ids)}
    return FileIndex.from_files(val, ((f"images/{name}", label_of[class_of[name]]) for name in images))


def _sorted_classes(val: Path) -> tuple[Path, list[str]]:
    """The folder that has one folder for each class, val or val/images, and the classes."""
    folder = val / "images" if _contains(val / "images", Path.is_dir) else val
    return folder, [name for name in list_class_folders(folder) if name != "images"]


def _contains(folder: Path, predicate: Callable[[Path], bool]) -> bool:
    """Whether a folder exists and has an entry that is not hidden and satisfies the predicate."""
    return folder.is_dir() and any(predicate(path) for path in folder.glob("[!.]*"))


def _read_annotations(file: Path) -> dict[str, str]:
    """The class of every image. A line is a file name, its class, and a bounding box that is not used."""
    class_of: dict[str, str] = {}
    for number, line in read_lines(file):
        name, *rest = line.split()[:2]
        if not rest:
            got = f"{file}: line {number}: got {quote(line)}"
            raise DataError(f"{got}, expected a file name and a class; get it again")
        class_of[name] = rest[0]
    return class_of
