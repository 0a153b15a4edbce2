"""Datasets as a command line names them."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, final

from allrounder.config.decode import decode, override
from allrounder.config.fields import Kind, adapter, kind_of, nearest, value
from allrounder.data import DATASETS, Folder, ImageNet, TinyImageNet
from allrounder.data.base import Data, DataSpec
from allrounder.data.datasets.imagenet import unpacked_folder
from allrounder.data.datasets.npz import NEEDED, Npz, read_arrays
from allrounder.data.files.cache import same_name, wrong
from allrounder.data.files.catalog import PUBLISHED, Published
from allrounder.data.inputs.packed import read_test
from allrounder.data.streaming.file_index import class_folders
from allrounder.errors import RecipeError, RunError

_READ = [kind for kind in PUBLISHED if kind in DATASETS]
"""The published sets that are read whole."""
WNID = r"n\d{8}"
"""What the folders of ImageNet's classes are called."""


def data_of(text: str) -> Data:
    """The images to evaluate on: an .npz file, a folder, or a dataset by its kind.

    A file with x_train, y_train, x_test and y_test is read whole; of others, the test images are enough, as
    they are of a folder, which may also have the files of a published set. A kind may be told where it is as
    KIND:PATH, and more as in a recipe: { kind = "folder", path = "PATH", size = 224 }.
    """
    try:
        found = named_data(text)
        return read_test(found) if isinstance(found, Path) else found.load_test()
    except (ValueError, OSError, RuntimeError) as error:
        raise RunError(str(error)) from error


def whole_data(found: DataSpec | Path) -> Data:
    """What `named_data` found, with the training images where they are there."""
    match found:
        case Path():
            return read_test(found)
        case Folder():
            trained = (Path(found.path).expanduser() / found.train).is_dir()
        case ImageNet() | TinyImageNet():
            root = unpacked_folder(kind_of(found, DATASETS), found.folder)
            trained = (root / "train").is_dir()
        case _:
            trained = True
    return found.load() if trained else found.load_test()


def named_data(text: str) -> DataSpec | Path:
    """Which dataset a text names, not read yet; a file with test images alone is a path."""
    kind, _, place = text.partition(":")
    named, sort = same_name(text, DATASETS), same_name(kind, DATASETS)
    if text.lstrip().startswith("{"):
        return _asked(text)
    if named is not None and not _needs(DATASETS[named]):
        return DATASETS[named]()
    if place and sort not in (None, "npz") and (field := _placed(DATASETS[sort])):
        return _told(sort, field, place)
    path = Path(place if place and sort == "npz" else text).expanduser()
    if path.is_dir():
        return _of_folder(path)
    whose = [k for k in _READ if path.name in [file.name for file in PUBLISHED[k].known]]
    if path.is_file() and len(whose) == 1:
        return _told(whose[0], "folder", str(path))
    if path.suffix == ".npz" or path.is_file():
        _, found = read_arrays(path, ())
        return Npz(path=str(path)) if set(NEEDED) <= set(found) else path
    names = [name for name, cls in DATASETS.items() if not _needs(cls)]
    placed = [f"{name}:PATH" for name, cls in DATASETS.items() if _needs(cls) == ["path"]]
    raise RunError(
        f"{text}: no such dataset (known: {', '.join([*names, *placed])}){nearest(text, names)}, and no such "
        "file or folder; give one of them, or an .npz file"
    )


def _told(kind: str, field: str, place: str) -> DataSpec:
    return adapter(DATASETS[kind]).validate_python({field: place})


def _asked(text: str) -> DataSpec:
    raw: dict[str, Any] = {}
    try:
        override(raw, f"data={text}")
        return decode(_Asked, raw, "--data").data
    except RecipeError as error:
        raise RunError(str(error).replace("--set data=", "--data ", 1)) from None


def _of_folder(path: Path) -> DataSpec:
    """A folder, as what it looks like."""
    kind = published_in(path)
    if kind is not None:
        return _told(kind, "folder", str(path))
    val = path / "val"
    ids = val.is_dir() and all(re.fullmatch(WNID, name) for name in class_folders(val))
    return ImageNet(folder=str(path)) if ids else Folder(path=str(path))


def published_in(folder: Path) -> str | None:
    """Which published dataset a folder holds, by the names of its files; or none.

    Two sets have files of the same names; then checksums tell which it is, or the name of the folder.
    """
    found = [kind for kind in _READ if _shows(PUBLISHED[kind], folder)]
    if len(found) < 2:
        return found[0] if found else None
    right = [k for k in found if any(wrong(folder / file.name, file) is None for file in PUBLISHED[k].known)]
    kind = right[0] if len(right) == 1 else same_name(folder.absolute().name, found)
    if kind is None:
        raise ValueError(
            f"{folder}: has the files of {' and '.join(found)}, expected one of them; "
            f"say which, such as {found[0]}:{folder}"
        )
    return kind


def _shows(entry: Published, folder: Path) -> bool:
    files = [*(file.name for file in entry.known), *entry.signs]
    return any((folder / name).is_file() for name in files) or (
        entry.unpacked is not None and (folder / entry.unpacked).is_dir()
    )


@final
@value
class _Asked:
    data: Annotated[DataSpec, Kind(lambda: DATASETS)]


def _needs(cls: type[Any]) -> list[str]:
    """The fields of a value class that must be given."""
    told = fields(cls) if is_dataclass(cls) else ()
    return [f.name for f in told if f.default is MISSING and f.default_factory is MISSING]


def _placed(cls: type[Any]) -> str | None:
    """The field that says where a dataset is, if that is all it has to be told."""
    told, needed = [field.name for field in fields(cls)] if is_dataclass(cls) else [], _needs(cls)
    return next((name for name in ("path", "folder") if name in told and needed in ([], [name])), None)
