"""Means over images, and sums that survive a checkpoint."""

from __future__ import annotations

import json

import pytest
import torch

from allrounder.training.metrics import Meter, means, total
from allrounder.types import Loss


def test_means_are_over_images_and_start_anew():
    meter = Meter(["a", "b"])
    weight = torch.ones((), requires_grad=True)
    meter.count("a", Loss(2 * weight, {"accuracy": torch.tensor(0.5)}), 3)
    meter.count("a", Loss(4 * weight, {"accuracy": torch.tensor(1.0)}), 1)
    meter.count("b", Loss(7 * weight), 2)
    assert meter.means("a") == {"loss": 2.5, "accuracy": 0.625}
    assert meter.means("b") == {"loss": 7.0, "accuracy": 0.0}
    meter.count("a", Loss(weight), 1)
    assert meter.means("a")["loss"] == 1.0


def test_a_learner_that_may_stop_itself_tells_whether_it_did():
    meter = Meter(["a"])
    for stopped, images in ((0.0, 3), (1.0, 1)):
        meter.count("a", Loss(torch.ones(()), {"stopped": torch.tensor(stopped)}), images)
    assert meter.means("a") == {"loss": 1.0, "accuracy": 0.0, "stopped": 0.25}
    meter.count("a", Loss(torch.ones(())), 1)
    assert "stopped" not in meter.means("a")


def test_a_number_that_only_some_steps_tell_is_a_mean_over_their_images():
    one, other = Meter(["a"]), Meter(["a"])
    one.count("a", Loss(torch.tensor(1.0), {"accuracy": torch.tensor(0.5)}), 6)
    one.count("a", Loss(torch.tensor(1.0), {"natural": torch.tensor(4.0)}), 2)
    other.count("a", Loss(torch.tensor(4.0), {"natural": torch.tensor(1.0)}), 1)
    other.count("a", Loss(torch.tensor(4.0), {"accuracy": torch.tensor(1.0)}), 3)
    several = [json.loads(json.dumps(meter.taken("a"))) for meter in (one, other)]
    assert means(several[0]) == {"loss": 1.0, "accuracy": 0.5, "natural": 4.0}
    assert means(total(several)) == {"loss": 2.0, "accuracy": pytest.approx(6 / 9), "natural": 3.0}


def test_sums_come_back_from_json_to_the_bit():
    meter, again = Meter(["a"]), Meter(["a"])
    for number in range(1, 8):
        meter.count("a", Loss(torch.tensor(1 / number)), number)
    again.restore(json.loads(json.dumps(meter.sums)))
    for both in (meter, again):
        both.count("a", Loss(torch.tensor(0.1)), 3)
    assert again.means("a") == meter.means("a")


def test_the_watch_tells_the_time_since_it_was_asked(monkeypatch: pytest.MonkeyPatch):
    times = iter([10.0, 12.5, 12.5])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    meter = Meter(["a"])
    assert meter.seconds() == 2.5
    assert meter.seconds() == 0.0
