"""The image and the label inside of an item of a dataset, or the images and labels of a batch of a loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from allrounder.errors import DataError

IMAGE_KEYS = ("image", "images", "img", "pixel_values")
"""Keys under which items and batches that are mappings hold images, as in datasets of Hugging Face."""
LABEL_KEYS = ("label", "labels", "fine_label")
"""Keys under which they hold labels."""


def split_pair(item: object, what: str) -> tuple[Any, Any]:
    """The first two elements of a tuple or list, or the images and labels of a mapping.

    Raises a DataError that expects `what`, such as "a pair (image, label)".
    """
    if isinstance(item, Mapping):
        mapping = cast(Mapping[Any, Any], item)
        return _choose(mapping, IMAGE_KEYS, what), _choose(mapping, LABEL_KEYS, what)
    if type(item) in (tuple, list) and len(pair := cast(Sequence[Any], item)) >= 2:
        return pair[0], pair[1]
    got = f"got a {type(item).__name__}, expected {what}"
    raise DataError(f"{got}; wrap the data so that it gives such pairs")


def _choose(mapping: Mapping[Any, Any], names: tuple[str, ...], what: str) -> Any:
    present = [name for name in names if name in mapping]
    if len(present) == 1:
        return mapping[present[0]]
    keys = ", ".join(map(str, mapping)) or "none"
    problem = f"got a mapping with the keys {keys}, expected exactly one of {', '.join(names)}"
    raise DataError(f"{problem}; rename the keys, or give {what}")
