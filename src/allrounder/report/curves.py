"""Curves of a training over its epochs, from the events that it logs, and sparklines of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
ASCII_BARS = "_.-~=+*#"
"""For output that cannot encode BARS."""


@final
@dataclass(frozen=True)
class Curve:
    """One number over the epochs in which it was logged."""

    name: str
    values: Mapping[int, float]
    """By epoch."""
    percent: bool = False

    def format(self, value: float) -> str:
        """Format a value of this curve: percent with one decimal, or four significant digits."""
        return f"{100 * value:.1f}" if self.percent else f"{value:.4g}"


def loss_curves(events: Sequence[Mapping[str, Any]], learners: Sequence[str]) -> list[Curve]:
    """Return the loss of every learner."""
    return [_learner_curve(events, name, "loss") for name in learners]


def learner_curves(events: Sequence[Mapping[str, Any]], learners: Sequence[str]) -> list[Curve]:
    """Return the accuracy on training batches and the learning rate of every learner, and the shares if there
    are several."""
    curves = [_learner_curve(events, name, "accuracy", percent=True) for name in learners]
    curves += [_learner_curve(events, name, "lr") for name in learners]
    return curves + [_learner_curve(events, name, "share") for name in learners if len(learners) > 1]


def validation_curves(events: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return the natural accuracy of the global weights, and the robust one under every threat."""
    validations = {event["epoch"]: event for event in events if event["event"] == "validation"}
    threats = dict.fromkeys(threat for event in validations.values() for threat in event["robust"])
    curves = {"natural": {epoch: event["natural"] for epoch, event in validations.items()}} | {
        threat: {e: event["robust"][threat] for e, event in validations.items() if threat in event["robust"]}
        for threat in threats
    }
    return [Curve(f"global {name}", values, percent=True) for name, values in curves.items() if values]


def training_image_curves(events: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return the same accuracies on training images, from the validations that measured them."""
    return validation_curves([{**event, **event["train"]} for event in events if "train" in event])


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """Draw values as bars between their smallest and largest value, at most `width` of them: neighbours are
    averaged."""
    if len(values) > width:
        ends = [len(values) * number // width for number in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
    low, high = min(values), max(values)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(bars[round((value - low) * scale)] for value in values)


def format_accuracies(validation: Mapping[str, Any]) -> str:
    """Format the natural and robust accuracies of a validation."""
    accuracies = {"natural": validation["natural"], **validation["robust"]}
    return ", ".join(f"{name} {100 * accuracy:.1f}%" for name, accuracy in accuracies.items())


def _learner_curve(
    events: Sequence[Mapping[str, Any]], learner: str, key: str, percent: bool = False
) -> Curve:
    logged = [event for event in events if event["event"] == "epoch" and event["learner"] == learner]
    return Curve(
        f"{learner} {key}", {event["epoch"]: event[key] for event in logged if key in event}, percent
    )
