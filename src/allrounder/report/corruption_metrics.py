"""What is derived from predictions on images that were changed without an adversary.

Their probes are called "fog@c-official:5", a corruption at a severity, or "rotate@p-generated:12", a frame of
a perturbation, so that what was published and what was generated never meet in one column. The averages:

corruptions severity 5       over the fifteen standard corruptions (Generalist++)
corruptions severities 1-5   over these and all severities (RobustBench)
perturbations all frames     over the frames of each of the ten perturbations, then over these (Generalist++)

What is in neither of the first two has a column too: "corruptions severity 3" of the fifteen at this
severity, and "spatter severity 3" of another corruption.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = tuple[str, str]
FloatArray: TypeAlias = NDArray[np.float64]

AVERAGED: dict[str, tuple[str, ...]] = {
    "c": (
        *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur"),
        *("zoom_blur", "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate"),
        "jpeg_compression",
    ),
    "p": (
        *("gaussian_noise", "shot_noise", "motion_blur", "zoom_blur", "snow", "brightness", "translate"),
        *("rotate", "tilt", "scale"),
    ),
}
"""The corruptions, and the perturbations, over which papers average."""
WORST, ALL = 5, range(1, 6)
"""The severity of the papers, and those of RobustBench."""
NAMED = re.compile(r"(\w+)@([cp])-(official|generated):(\d+)")


@final
@dataclass(frozen=True)
class View:
    """One change of every image: a severity of a corruption, or a frame of a perturbation."""

    name: str
    kind: str
    source: str
    number: int

    @property
    def origin(self) -> str:
        """Which set it is of, "c-official" for one."""
        return f"{self.kind}-{self.source}"

    def __str__(self) -> str:
        return f"{self.name}@{self.origin}:{self.number}"


@lru_cache(maxsize=4096)  # a table asks for every name once a cell
def view_of(probe: str) -> View | None:
    """What a probe shows; none for natural images and attacks."""
    named = NAMED.fullmatch(probe)
    return None if named is None else View(named[1], named[2], named[3], int(named[4]))


def views(probes: Iterable[str], kind: str) -> list[View]:
    """Those of one kind."""
    return [view for view in map(view_of, probes) if view is not None and view.kind == kind]


def sources(probes: Iterable[str], kind: str) -> list[str]:
    """Whether probes of a kind are official, generated, or both."""
    return sorted({view.source for view in views(probes, kind)}, reverse=True)


def groups(probes: Iterable[str]) -> dict[Column, list[list[str]]]:
    """The averages that can be taken: for each its corruptions or perturbations, and the probes of each.

    One over fewer than all says over how many. What would be in none is a group by itself.
    """
    return {name: [*map(list, parts)] for name, parts in _groups(tuple(probes)).items()}


@lru_cache(maxsize=64)  # a table asks for the same once a cell
def _groups(probes: tuple[str, ...]) -> dict[Column, list[list[str]]]:
    found = dict[Column, list[list[str]]]()
    for source in sources(probes, "c"):
        some = [view for view in views(probes, "c") if view.source == source]
        found |= _of_corruptions(some, source)
    for source in sources(probes, "p"):
        some = [view for view in views(probes, "p") if view.source == source]
        if parts := _parts(some, AVERAGED["p"], set()):
            found["perturbations", _titled("all frames", source, len(parts), "p")] = parts
    return found


def _of_corruptions(some: Sequence[View], source: str) -> dict[Column, list[list[str]]]:
    found = dict[Column, list[list[str]]]()
    shown = set[str]()
    for title, wanted in (("severity 5", {WORST}), ("severities 1-5", set(ALL))):
        if parts := _parts(some, AVERAGED["c"], wanted):
            found["corruptions", _titled(title, source, len(parts), "c")] = parts
            shown |= {probe for part in parts for probe in part}
    left = [view for view in some if str(view) not in shown]
    for severity in sorted({view.number for view in left if view.name in AVERAGED["c"]}):
        parts = _parts(some, AVERAGED["c"], {severity})
        found["corruptions", _titled(f"severity {severity}", source, len(parts), "c")] = parts
    for view in left:
        if view.name not in AVERAGED["c"]:
            found[view.name, f"severity {view.number} ({source})"] = [[str(view)]]
    return found


def _parts(some: Sequence[View], names: Sequence[str], wanted: set[int]) -> list[list[str]]:
    """The probes of every name that has all of the numbers that are wanted."""
    numbered = {name: {view.number: str(view) for view in some if view.name == name} for name in names}
    return [
        [probe for number, probe in sorted(of.items()) if not wanted or number in wanted]
        for of in numbered.values()
        if of and wanted <= of.keys()
    ]


def _titled(title: str, source: str, count: int, kind: str) -> str:
    of = len(AVERAGED[kind])
    return f"{title} ({source})" if count == of else f"{title} ({source}, {count} of {of})"


def group_scores(
    predicted: Mapping[str, NDArray[Any]], label: NDArray[Any], parts: list[list[str]]
) -> FloatArray:
    """One number in [0, 1] for every image: the mean over parts of the mean over the probes of each."""
    total = np.zeros(label.shape)
    for probes in parts:
        right = np.zeros(label.shape)
        for probe in probes:
            right += predicted[probe] == label
        total += right / len(probes)
    return total / len(parts)


def by_corruption(predicted: Mapping[str, NDArray[Any]], label: NDArray[Any]) -> dict[str, dict[int, float]]:
    """Accuracy under every corruption at every severity."""
    found: dict[str, dict[int, float]] = {}
    named = _names(predicted, "c")
    for view in views(predicted, "c"):
        found.setdefault(named(view), {})[view.number] = float((predicted[str(view)] == label).mean())
    return found


def by_perturbation(
    predicted: Mapping[str, NDArray[Any]], label: NDArray[Any]
) -> dict[str, tuple[float, float]]:
    """Accuracy over the frames of every perturbation, and its flip rate.

    The flip rate is the share of frames whose class differs from that of the frame before, or under noise,
    where frames have no order, from that of the first; averaged over images.
    """
    frames: dict[str, list[View]] = {}
    named = _names(predicted, "p")
    for view in views(predicted, "p"):
        frames.setdefault(named(view), []).append(view)
    found: dict[str, tuple[float, float]] = {}
    for name, some in frames.items():
        shown = np.stack([predicted[str(view)] for view in sorted(some, key=lambda view: view.number)])
        before = shown[:1] if some[0].name.endswith("noise") else shown[:-1]
        flips = float((shown[1:] != before).mean()) if len(shown) > 1 else 0.0
        found[name] = float((shown == label).mean()), flips
    return found


def _names(probes: Iterable[str], kind: str) -> Callable[[View], str]:
    """What changes are called: where there are several sources, with the source."""
    several = len(sources(probes, kind)) > 1
    return lambda view: f"{view.name} ({view.source})" if several else view.name


def compact(array: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers in as few bytes as hold them; there are hundreds of such arrays."""
    fits = array.size and array.min() >= 0 and array.max() < 256
    return array.astype(np.uint8) if fits else array
