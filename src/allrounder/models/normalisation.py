"""The constants that public networks normalise images with, by name or as numbers."""

from __future__ import annotations

import math
from typing import TypeAlias

from allrounder.config.fields import did_you_mean
from allrounder.data.files.cache import match_name
from allrounder.errors import InputError

MeanStd: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""The mean and the standard deviation of every channel."""

NORMALISATION_CONSTANTS: dict[str, MeanStd] = {
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR-100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "MNIST": ((0.1307,), (0.3081,)),
    "Fashion-MNIST": ((0.2860,), (0.3530,)),
}
"""Means and standard deviations that networks are commonly trained with."""


def parse_normalisation(text: str) -> MeanStd:
    """Parse a name, such as imagenet, or MEAN/STD with one number for all channels or one for each, such as
    0.5/0.25 or 0.49,0.48,0.45/0.25,0.24,0.26. Raises InputError for anything else."""
    name = match_name(text, NORMALISATION_CONSTANTS)
    if name is not None:
        return NORMALISATION_CONSTANTS[name]
    mean_text, slash, std_text = text.partition("/")
    try:
        mean, std = (tuple(float(word) for word in part.split(",")) for part in (mean_text, std_text))
    except ValueError:
        names = [name.lower() for name in NORMALISATION_CONSTANTS]
        hint = "" if slash else did_you_mean(text.lower(), names)
        expected = f"expected {', '.join(names)}, or MEAN/STD such as 0.5/0.25{hint}"
        raise InputError(f"normalisation: got {text!r}, {expected}; write one number per channel") from None
    check_mean_std(mean, std)
    return mean, std


def check_mean_std(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Raise InputError unless both have equally many finite numbers and all deviations are positive."""
    if len(mean) != len(std) or not mean:
        expected = "expected as many of one as of the other, one for all channels or one for each"
        raise InputError(f"normalisation: got {len(mean)} means and {len(std)} deviations, {expected}")
    if not all(map(math.isfinite, (*mean, *std))) or min(std) <= 0:
        raise InputError(
            f"normalisation: got mean {mean} and std {std}, expected finite means and positive deviations; "
            "give those that the network was trained with"
        )
