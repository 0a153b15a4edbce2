"""Datasets as the command line names them: a kind, a file, a folder, or an inline table."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, final

from allrounder.config.decode import apply_override, decode
from allrounder.config.fields import OneOf, adapter, did_you_mean, frozen_config, kind_of
from allrounder.data import DATASETS, Folder, ImageNet, TinyImageNet
from allrounder.data.base import Data, DataSpec
from allrounder.data.datasets.imagenet import unpacked_folder
from allrounder.data.datasets.npz import REQUIRED_ARRAYS, Npz, load_test_arrays, read_arrays
from allrounder.data.files.cache import match_name, verify
from allrounder.data.files.catalog import PUBLISHED, PublishedDataset
from allrounder.data.streaming.file_index import list_class_folders
from allrounder.errors import DataError, RecipeError, RunError

_READABLE = [kind for kind in PUBLISHED if kind in DATASETS]
"""The published datasets that a recipe can name."""
WNID_PATTERN = r"n\d{8}"
"""The names of ImageNet's class folders."""


def load_eval_data(text: str) -> Data:
    """Load the images to evaluate on: an .npz file, a folder, a dataset by its kind, or KIND:PATH.

    Test images suffice, except in a file with x_train. A folder may contain the files of a published dataset.
    An inline table sets more options, as in a recipe: { kind = "folder", path = "PATH", size = 224 }.
    """
    try:
        source = resolve_dataset(text)
        return load_test_arrays(source) if isinstance(source, Path) else source.load_test()
    except (ValueError, OSError, RuntimeError) as error:
        raise RunError(str(error)) from error


def load_full_data(source: DataSpec | Path) -> Data:
    """Load what `resolve_dataset` returned, with the training images if they exist."""
    match source:
        case Path():
            return load_test_arrays(source)
        case Folder():
            has_train = (Path(source.path).expanduser() / source.train).is_dir()
        case ImageNet() | TinyImageNet():
            root = unpacked_folder(kind_of(source, DATASETS), source.folder)
            has_train = (root / "train").is_dir()
        case _:
            has_train = True
    return source.load() if has_train else source.load_test()


def resolve_dataset(text: str) -> DataSpec | Path:
    """Find the dataset that a text names, without reading it; a file of test images only is a path."""
    prefix, _, place = text.partition(":")
    kind, prefix_kind = match_name(text, DATASETS), match_name(prefix, DATASETS)
    if text.lstrip().startswith("{"):
        return _parse_inline_table(text)
    if kind is not None and not _required_fields(kind):
        return DATASETS[kind]()
    if place and prefix_kind not in (None, "npz"):
        for field in ("path", "folder"):
            if field in _field_defaults(prefix_kind):
                return _spec_at(prefix_kind, field, place)
    path = Path(place if place and prefix_kind == "npz" else text).expanduser()
    if path.is_dir():
        return _resolve_folder(path)
    owners = [k for k in _READABLE if path.name in [file.name for file in PUBLISHED[k].all_files]]
    if path.is_file() and len(owners) == 1:
        return _spec_at(owners[0], "folder", str(path))
    if path.suffix == ".npz" or path.is_file():
        _, available = read_arrays(path, ())
        return Npz(path=str(path)) if set(REQUIRED_ARRAYS) <= set(available) else path
    names = [kind for kind in DATASETS if not _required_fields(kind)]
    with_path = [f"{kind}:PATH" for kind in DATASETS if _required_fields(kind) == ["path"]]
    raise RunError(
        f"{text}: no such dataset (known: {', '.join([*names, *with_path])}){did_you_mean(text, names)}, and "
        "no such file or folder; give one of them, or an .npz file"
    )


def _spec_at(kind: str, field: str, place: str) -> DataSpec:
    return adapter(DATASETS[kind]).validate_python({field: place})


def _parse_inline_table(text: str) -> DataSpec:
    raw: dict[str, Any] = {}
    try:
        apply_override(raw, f"data={text}")
        return decode(_InlineData, raw, "--data").data
    except RecipeError as error:
        raise RunError(str(error).replace("override data=", "--data ", 1)) from None


def _resolve_folder(path: Path) -> DataSpec:
    """Recognise a folder by its contents: a published dataset, ImageNet, or one folder for each class."""
    kind = detect_published(path)
    if kind is not None:
        return _spec_at(kind, "folder", str(path))
    val = path / "val"
    has_wnids = val.is_dir() and all(re.fullmatch(WNID_PATTERN, name) for name in list_class_folders(val))
    return ImageNet(folder=str(path)) if has_wnids else Folder(path=str(path))


def detect_published(folder: Path) -> str | None:
    """The published dataset of a folder, if any; of several, the checksums or the folder's name decide."""
    kinds = [kind for kind in _READABLE if _looks_like(PUBLISHED[kind], folder)]
    if len(kinds) < 2:
        return kinds[0] if kinds else None
    files = {kind: PUBLISHED[kind].all_files for kind in kinds}
    verified = [k for k in kinds if any(verify(folder / file.name, file) is None for file in files[k])]
    kind = verified[0] if len(verified) == 1 else match_name(folder.absolute().name, kinds)
    if kind is None:
        raise DataError(
            f"{folder}: has the files of {' and '.join(kinds)}, expected one of them; "
            f"name the dataset, such as {kinds[0]}:{folder}"
        )
    return kind


def _looks_like(entry: PublishedDataset, folder: Path) -> bool:
    names = [*(file.name for file in entry.all_files), *entry.marker_files]
    return any((folder / name).is_file() for name in names) or (
        entry.unpacked is not None and (folder / entry.unpacked).is_dir()
    )


@final
@frozen_config
class _InlineData:
    data: Annotated[DataSpec, OneOf(lambda: DATASETS)]


def _field_defaults(kind: str) -> dict[str, object]:
    """The fields of a dataset with their defaults, or MISSING."""
    cls: type[Any] = DATASETS[kind]
    return {field.name: field.default for field in fields(cls)}


def _required_fields(kind: str) -> list[str]:
    return [name for name, default in _field_defaults(kind).items() if default is MISSING]
