from __future__ import annotations

from allrounder.report.curves import (
    ASCII_BARS,
    BARS,
    format_accuracies,
    learner_curves,
    loss_curves,
    sparkline,
    training_image_curves,
    validation_curves,
)

EVENTS = [
    {"event": "epoch", "epoch": 1, "learner": "a", "loss": 2.0, "accuracy": 0.5, "lr": 0.1, "share": 0.25},
    {"event": "epoch", "epoch": 1, "learner": "b", "loss": 3.0, "accuracy": 0.25, "lr": 0.1, "share": 0.75},
    {"event": "epoch", "epoch": 2, "learner": "a", "loss": 1.0, "accuracy": 1.0, "lr": 0.01, "share": 0.5},
    {"event": "validation", "epoch": 2, "natural": 0.9, "robust": {"Linf:0.1": 0.45}, "score": 1.35},
    {"event": "comm_bytes", "t": 5},
]


def test_a_sparkline_rises_with_its_values():
    assert sparkline([float(n) for n in range(8)], 8) == BARS
    assert sparkline([3.0, 2.0, 1.0], 10, ASCII_BARS) == "#=_"
    assert sparkline([5.0, 5.0], 10) == BARS[0] * 2


def test_a_long_sparkline_averages_neighbours():
    assert sparkline([0.0, 2.0, 4.0, 4.0, 8.0, 8.0, 16.0, 14.0], 4) == sparkline([1.0, 4.0, 8.0, 15.0], 4)


def test_curves_are_those_of_the_events():
    loss_a, loss_b = loss_curves(EVENTS, ["a", "b"])
    assert (loss_a.name, dict(loss_a.values), dict(loss_b.values)) == ("a loss", {1: 2.0, 2: 1.0}, {1: 3.0})
    assert [curve.name for curve in learner_curves(EVENTS, ["a"])] == ["a accuracy", "a lr"]
    both = {curve.name: curve for curve in learner_curves(EVENTS, ["a", "b"])}
    assert dict(both["a share"].values) == {1: 0.25, 2: 0.5}
    natural, robust = validation_curves(EVENTS)
    assert (natural.name, robust.name, dict(robust.values)) == (
        "global natural",
        "global Linf:0.1",
        {2: 0.45},
    )
    assert natural.format(0.9) == "90.0" and loss_a.format(1.23456) == "1.235"
    assert validation_curves(EVENTS[:3]) == []


def test_curves_of_training_images_are_those_of_the_validations_that_measured_them():
    train = {"natural": 0.95, "robust": {"Linf:0.1": 0.6}}
    natural, robust = training_image_curves([*EVENTS, {**EVENTS[3], "epoch": 4, "train": train}])
    assert (natural.name, dict(natural.values), dict(robust.values)) == (
        "global natural",
        {4: 0.95},
        {4: 0.6},
    )
    assert training_image_curves(EVENTS) == []


def test_accuracies_are_formatted_in_percent():
    assert format_accuracies(EVENTS[3]) == "natural 90.0%, Linf:0.1 45.0%"
