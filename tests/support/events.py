"""The events for TensorBoard of a run, as TensorBoard reads them and as the log defines them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from allrounder.training.record import RunRecord

Curves = dict[str, list[tuple[int, float]]]
"""The steps and values of every curve."""


def read_events(run: Path) -> Curves:
    """The curves that TensorBoard reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    tags: Any = events.Tags()["scalars"]
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in tags}


def expect_events(run: Path) -> Curves:
    """The curves that the log of a run defines, written down independently of the package."""
    record = RunRecord.read(run)
    curves: Curves = {}
    exchanges = record.count_exchanges()

    def add(tag: str, event: dict[str, Any], number: float) -> None:
        curves.setdefault(tag, []).append((event["t"], float(np.float32(number))))

    for event in record.events:
        if event["event"] == "epoch":
            for key in event.keys() - {"event", "t", "epoch", "learner"}:
                add(f"{key}/{event['learner']}", event, event[key])
            if exchanges and event["learner"] == record.learners[0]:
                add("exchanges", event, exchanges[event["epoch"]])
        if event["event"] == "validation":
            add("validation/score", event, event["score"])
            for group, facts in (("validation", event), ("train", event["train"])):
                for name, accuracy in {"natural": facts["natural"], **facts["robust"]}.items():
                    add(f"{group}/{name}", event, accuracy)
        if event["event"] == "exchange":
            add("drift", event, event["drift"])
            for name, distance in event["distances"].items():
                add(f"distance/{name}", event, distance)
    return curves
