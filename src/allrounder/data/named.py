"""Datasets as a command line names them."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, final

from allrounder.data import DATASETS, Folder, ImageNet, TinyImageNet
from allrounder.data.base import Data, DataSpec
from allrounder.data.imagenet import ANNOTATIONS
from allrounder.data.listing import class_folders
from allrounder.data.npz import NEEDED, Npz, read_arrays
from allrounder.data.packed import read_test
from allrounder.data.store import same_name
from allrounder.decoding import decode, override
from allrounder.errors import RecipeError, RunError
from allrounder.values import Kind, adapter, nearest, value

WNID = r"n\d{8}"
"""What the folders of ImageNet's classes are called."""


def data_of(text: str) -> Data:
    """The images to evaluate on: an .npz file, a folder, or a dataset by its kind.

    A file with x_train, y_train, x_test and y_test is read whole; of others, the test images are enough, as
    they are of a folder. A kind may be told where it is as KIND:PATH, and more as in a recipe:
    { kind = "folder", path = "PATH", size = 224 }.
    """
    path = Path(text).expanduser()
    kind, _, place = text.partition(":")
    named, sort = same_name(text, DATASETS), same_name(kind, DATASETS)
    try:
        if text.lstrip().startswith("{"):
            return _asked(text).load_test()
        if named is not None and not _needs(DATASETS[named]):
            return DATASETS[named]().load_test()
        if place and sort is not None and (field := _placed(DATASETS[sort])):
            return adapter(DATASETS[sort]).validate_python({field: place}).load_test()
        if path.is_dir():
            return _of_folder(path)
        if path.suffix == ".npz" or path.is_file():
            _, found = read_arrays(path, ())
            return Npz(path=str(path)).load() if set(NEEDED) <= set(found) else read_test(path)
    except (ValueError, OSError, RuntimeError) as error:
        raise RunError(str(error)) from error
    names = [name for name, cls in DATASETS.items() if not _needs(cls)]
    placed = [f"{name}:PATH" for name, cls in DATASETS.items() if _needs(cls) == ["path"]]
    raise RunError(
        f"{text}: no such dataset (known: {', '.join([*names, *placed])}){nearest(text, names)}, and no such "
        "file or folder; give one of them, or an .npz file"
    )


def _asked(text: str) -> DataSpec:
    raw: dict[str, Any] = {}
    try:
        override(raw, f"data={text}")
        return decode(_Asked, raw, "--data").data
    except RecipeError as error:
        raise RunError(str(error).replace("--set data=", "--data ", 1)) from None


def _of_folder(path: Path) -> Data:
    """The test images of a folder, as what it looks like."""
    val = path / "val"
    if (path / "wnids.txt").is_file() or (val / ANNOTATIONS).is_file():
        return TinyImageNet(folder=str(path)).load_test()
    ids = val.is_dir() and all(re.fullmatch(WNID, name) for name in class_folders(val))
    return (ImageNet(folder=str(path)) if ids else Folder(path=str(path))).load_test()


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
