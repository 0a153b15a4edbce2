"""Means over images, and sums that survive a checkpoint."""

from __future__ import annotations

import json

import pytest
import torch

from allrounder.training.checkpoint import EpochMetrics, add_sums, means
from allrounder.types import Loss


def test_means_are_over_images_and_restart_after_pop():
    metrics = EpochMetrics(["a", "b"])
    weight = torch.ones((), requires_grad=True)
    metrics.add("a", Loss(2 * weight, {"accuracy": torch.tensor(0.5)}), 3)
    metrics.add("a", Loss(4 * weight, {"accuracy": torch.tensor(1.0)}), 1)
    metrics.add("b", Loss(7 * weight), 2)
    assert means(metrics.pop_sums("a")) == {"loss": 2.5, "accuracy": 0.625}
    assert means(metrics.pop_sums("b")) == {"loss": 7.0, "accuracy": 0.0}
    metrics.add("a", Loss(weight), 1)
    assert means(metrics.pop_sums("a"))["loss"] == 1.0


def test_the_metric_stopped_is_averaged_over_images():
    metrics = EpochMetrics(["a"])
    for stopped, images in ((0.0, 3), (1.0, 1)):
        metrics.add("a", Loss(torch.ones(()), {"stopped": torch.tensor(stopped)}), images)
    assert means(metrics.pop_sums("a")) == {"loss": 1.0, "accuracy": 0.0, "stopped": 0.25}
    metrics.add("a", Loss(torch.ones(())), 1)
    assert "stopped" not in means(metrics.pop_sums("a"))


def test_a_metric_of_some_steps_is_a_mean_over_the_images_of_these_steps():
    one, other = EpochMetrics(["a"]), EpochMetrics(["a"])
    one.add("a", Loss(torch.tensor(1.0), {"accuracy": torch.tensor(0.5)}), 6)
    one.add("a", Loss(torch.tensor(1.0), {"natural": torch.tensor(4.0)}), 2)
    other.add("a", Loss(torch.tensor(4.0), {"natural": torch.tensor(1.0)}), 1)
    other.add("a", Loss(torch.tensor(4.0), {"accuracy": torch.tensor(1.0)}), 3)
    several = [json.loads(json.dumps(metrics.pop_sums("a"))) for metrics in (one, other)]
    assert means(several[0]) == {"loss": 1.0, "accuracy": 0.5, "natural": 4.0}
    assert means(add_sums(several)) == {"loss": 2.0, "accuracy": pytest.approx(6 / 9), "natural": 3.0}


def test_sums_survive_json_exactly():
    metrics, again = EpochMetrics(["a"]), EpochMetrics(["a"])
    for number in range(1, 8):
        metrics.add("a", Loss(torch.tensor(1 / number)), number)
    again.load_sums(json.loads(json.dumps(metrics.sums)))
    for both in (metrics, again):
        both.add("a", Loss(torch.tensor(0.1)), 3)
    assert means(again.pop_sums("a")) == means(metrics.pop_sums("a"))


def test_lap_seconds_measures_the_time_since_the_last_call(monkeypatch: pytest.MonkeyPatch):
    times = iter([10.0, 12.5, 12.5])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    metrics = EpochMetrics(["a"])
    assert metrics.lap_seconds() == 2.5
    assert metrics.lap_seconds() == 0.0
