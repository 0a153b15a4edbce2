"""Metrics of predictions on images that were changed without an adversary.

A probe is named "fog@c-official:5", a corruption at a severity, or "rotate@p-generated:12", a frame of a
perturbation, so published and generated images never share a column. Tables show these averages:

corruptions severity 5       over the fifteen standard corruptions (Generalist++)
corruptions severities 1-5   over these and all severities (RobustBench)
perturbations all frames     over the frames of each of ten perturbations, then over these (Generalist++)

The ten are those of the authors' program for CIFAR-10-P, with spatter; Generalist++ does not list its own.
What is in none of these averages has its own column: "corruptions severity 3" for the fifteen at another
severity, "spatter severity 3" for another corruption, "snow all frames" for another perturbation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

ShiftColumn: TypeAlias = tuple[str, str]
"""A column of changed images: ("corruptions", "severity 5 (official)")."""
Groups: TypeAlias = tuple[tuple[str, ...], ...]
"""The corruptions or perturbations of an average, each as its probes."""
FloatArray: TypeAlias = NDArray[np.float64]
Predictions: TypeAlias = Mapping[str, NDArray[Any]]
"""The predicted classes by probe."""

Metric = TypeVar("Metric")

STANDARD_SHIFTS: dict[str, tuple[str, ...]] = {
    "c": (
        *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur"),
        *("zoom_blur", "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate"),
        "jpeg_compression",
    ),
    "p": (
        *("gaussian_noise", "shot_noise", "motion_blur", "zoom_blur", "spatter", "brightness", "translate"),
        *("rotate", "tilt", "scale"),
    ),
}
"""The corruptions (c) and perturbations (p) over which papers average."""
AVERAGES = {"c": "corruptions", "p": "perturbations"}
PAPER_SEVERITY, ALL_SEVERITIES = 5, range(1, 6)
"""The severity that Generalist++ reports, and those that RobustBench averages over."""
PROBE_PATTERN = re.compile(r"(\w+)@([cp])-(official|generated):(\d+)")


@final
@dataclass(frozen=True)
class ShiftId:
    """One change of every image: a severity of a corruption, or a frame of a perturbation."""

    name: str
    kind: str
    """c for corruptions, p for perturbations."""
    source: str
    """official or generated."""
    number: int
    """The severity, or the frame."""

    @property
    def set_name(self) -> str:
        """The image set that it belongs to, such as "c-official"."""
        return f"{self.kind}-{self.source}"

    def __str__(self) -> str:
        return f"{self.name}@{self.set_name}:{self.number}"


@lru_cache(maxsize=4096)  # a table parses every name once per cell
def parse_shift_id(probe: str) -> ShiftId | None:
    """Parse the name of a probe; None for natural images and attacks."""
    match = PROBE_PATTERN.fullmatch(probe)
    return None if match is None else ShiftId(match[1], match[2], match[3], int(match[4]))


def shift_ids(probes: Iterable[str], kind: str) -> list[ShiftId]:
    """The changes of one kind among some probes."""
    return [shift for shift in map(parse_shift_id, probes) if shift is not None and shift.kind == kind]


def sources(probes: Iterable[str], kind: str) -> list[str]:
    """Where the images of a kind come from: official, generated, or both."""
    return sorted({shift.source for shift in shift_ids(probes, kind)}, reverse=True)


def average_columns(probes: Iterable[str]) -> Mapping[ShiftColumn, Groups]:
    """The columns that a table shows: for each its corruptions or perturbations, and the probes of each.

    The title of an average over fewer than all says over how many. A probe that is in no average has its own
    column.
    """
    return _average_columns(tuple(probes))


@lru_cache(maxsize=64)  # a table asks for the same once per cell
def _average_columns(probes: tuple[str, ...]) -> Mapping[ShiftColumn, Groups]:
    columns: dict[ShiftColumn, Groups] = {}
    for kind in "cp":
        for source in sources(probes, kind):
            shifts = [shift for shift in shift_ids(probes, kind) if shift.source == source]
            columns |= _corruption_columns(shifts) if kind == "c" else _perturbation_columns(shifts)
    return columns


def _corruption_columns(shifts: Sequence[ShiftId]) -> dict[ShiftColumn, Groups]:
    columns = _average(shifts, "severity 5", {PAPER_SEVERITY})
    columns |= _average(shifts, "severities 1-5", set(ALL_SEVERITIES))
    averaged = {probe for groups in columns.values() for group in groups for probe in group}
    others = [shift for shift in shifts if str(shift) not in averaged]
    for severity in sorted({shift.number for shift in others if shift.name in STANDARD_SHIFTS["c"]}):
        columns |= _average(shifts, f"severity {severity}", {severity})
    single = [shift for shift in others if shift.name not in STANDARD_SHIFTS["c"]]
    return columns | {(s.name, f"severity {s.number} ({s.source})"): ((str(s),),) for s in single}


def _perturbation_columns(shifts: Sequence[ShiftId]) -> dict[ShiftColumn, Groups]:
    columns = _average(shifts, "all frames", set())
    for name in dict.fromkeys(shift.name for shift in shifts if shift.name not in STANDARD_SHIFTS["p"]):
        frames = sorted((shift for shift in shifts if shift.name == name), key=lambda shift: shift.number)
        columns[name, f"all frames ({frames[0].source})"] = (tuple(map(str, frames)),)
    return columns


def _average(shifts: Sequence[ShiftId], title: str, numbers: set[int]) -> dict[ShiftColumn, Groups]:
    """The average over the standard shifts that have all `numbers`; an empty set accepts any numbers."""
    kind, source = shifts[0].kind, shifts[0].source
    groups: list[tuple[str, ...]] = []
    for name in STANDARD_SHIFTS[kind]:
        probes = {shift.number: str(shift) for shift in shifts if shift.name == name}
        if probes and numbers <= probes.keys():
            groups.append(tuple(probes[number] for number in sorted(numbers or probes)))
    count, total = len(groups), len(STANDARD_SHIFTS[kind])
    images = source if count == total else f"{source}, {count} of {total}"
    return {(AVERAGES[kind], f"{title} ({images})"): tuple(groups)} if groups else {}


def mean_per_image_accuracy(predicted: Predictions, label: NDArray[Any], groups: Groups) -> FloatArray:
    """One number in [0, 1] for every image: the mean over groups of the mean over the probes of each."""
    total = np.zeros(label.shape)
    for probes in groups:
        correct = np.zeros(label.shape)
        for probe in probes:
            correct += predicted[probe] == label
        total += correct / len(probes)
    return total / len(groups)


def accuracy_by_corruption(predicted: Predictions, label: NDArray[Any]) -> dict[str, dict[int, float]]:
    """Accuracy under every corruption at every severity."""
    return {
        name: {shift.number: float((predicted[str(shift)] == label).mean()) for shift in shifts}
        for name, shifts in _group_by_name(predicted, "c").items()
    }


def metrics_by_perturbation(predicted: Predictions, label: NDArray[Any]) -> dict[str, tuple[float, float]]:
    """Accuracy over the frames of every perturbation, and its flip rate.

    The flip rate is the share of frames whose class differs from that of the previous frame, averaged over
    images. Frames of noise have no order, so there each frame is compared with the first.
    """
    metrics: dict[str, tuple[float, float]] = {}
    for name, shifts in _group_by_name(predicted, "p").items():
        shifts.sort(key=lambda shift: shift.number)
        classes = np.stack([predicted[str(shift)] for shift in shifts])
        previous = classes[:1] if shifts[0].name.endswith("noise") else classes[:-1]
        flips = float((classes[1:] != previous).mean()) if len(classes) > 1 else 0.0
        metrics[name] = float((classes == label).mean()), flips
    return metrics


def standard_perturbations(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The perturbations by name that averages are over."""
    return {name: metrics[name] for name in STANDARD_SHIFTS["p"] if name in metrics}


def _group_by_name(probes: Iterable[str], kind: str) -> dict[str, list[ShiftId]]:
    """The changes of one kind by name; with the source in the name if there are several sources."""
    several = len(sources(probes, kind)) > 1
    groups: dict[str, list[ShiftId]] = {}
    for shift in shift_ids(probes, kind):
        groups.setdefault(f"{shift.name} ({shift.source})" if several else shift.name, []).append(shift)
    return groups


def to_smallest_dtype(array: NDArray[Any]) -> NDArray[Any]:
    """Integers as bytes if they fit: there are hundreds of such arrays in a file."""
    fits = array.size and array.min() >= 0 and array.max() < 256
    return array.astype(np.uint8) if fits else array
