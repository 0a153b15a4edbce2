"""The state of trainings as plain values for a live page; needs no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, cast, final

from allrounder.report.chart import Axis, Chart, Series
from allrounder.report.curves import Curve, learner_curves, loss_curves, validation_curves
from allrounder.training.eta import Timing
from allrounder.training.record import RunRecord

Phase: TypeAlias = Literal["waiting", "running", "evaluating", "interrupted", "finished", "damaged"]


@final
@dataclass(frozen=True)
class Status:
    """How far one training, or all trainings of a study or a pipeline, are."""

    label: str
    phase: Phase
    message: str = ""
    epoch: int = 0
    """The last finished epoch; of a study, the number of finished trainings."""
    epochs: int = 0
    """Of the whole training; of a study, the number of trainings."""
    progress: float = 0.0
    """From 0 to 1."""
    elapsed: float = 0.0
    """Seconds of training and validation so far."""
    eta: float | None = None
    """Seconds until the end; None if it is unknown, or if nothing is running."""
    epoch_seconds: float | None = None
    steps_per_second: float | None = None
    seed: int | None = None


def describe_training(record: RunRecord, since: float) -> Status:
    """Describe a training whose log or last session changed `since` seconds ago."""
    timing = Timing.measure(record)
    is_running = record.running
    seconds = timing.epoch_seconds
    rate = timing.steps_per_epoch / seconds if timing.steps_per_epoch and seconds else None
    phase: Phase = "running" if is_running else "finished" if record.finished else "interrupted"
    return Status(
        record.name,
        phase,
        f"epoch {record.epoch} of {record.epochs} done",
        record.epoch,
        record.epochs,
        1.0 if phase == "finished" else record.epoch / record.epochs,
        timing.logged_seconds + (since if is_running else 0.0),
        timing.remaining(since) if is_running else None,
        seconds,
        rate,
    )


def combine(label: str, parts: Sequence[Status], work: Sequence[float]) -> Status:
    """Describe several trainings as one; `work` is the cost of each, in any unit. Trainings that have not
    started take as long per work as the others, and as many run at once as now. The time left is that of the
    trainings, without evaluations."""
    counts = Counter(part.phase for part in parts)
    num_trained = counts["finished"] + counts["evaluating"]
    phase: Phase = "interrupted"
    if counts["running"] or counts["evaluating"]:
        phase = "running"
    elif counts["damaged"]:
        phase = "damaged"
    elif num_trained == len(parts):
        phase = "finished"
    elif counts["waiting"] == len(parts):
        phase = "waiting"
    done = math.fsum(w * part.progress for w, part in zip(work, parts, strict=True))
    others = ("running", "evaluating", "interrupted", "damaged")
    facts = [f"{counts[name]} {name}" for name in others if counts[name]]
    return Status(
        label,
        phase,
        ", ".join([f"{num_trained} of {len(parts)} trainings finished", *facts]),
        num_trained,
        len(parts),
        done / (sum(work) or 1.0),
        math.fsum(part.elapsed for part in parts),
        _estimate_all(parts, work, done) if phase == "running" else None,
    )


def _estimate_all(parts: Sequence[Status], work: Sequence[float], done: float) -> float | None:
    """Estimate the seconds until all trainings are finished; None if no epoch is, or if all of them are."""
    if not done or all(part.progress == 1 for part in parts):
        return None
    rate = sum(part.elapsed for part in parts if part.progress) / done
    left = [
        part.eta if part.eta is not None else w * (1 - part.progress) * rate
        for w, part in zip(work, parts, strict=True)
        if part.phase != "damaged"
    ]
    num_running = sum(part.phase == "running" for part in parts)
    return max(sum(left) / max(num_running, 1), *(part.eta or 0.0 for part in parts))


def combine_stages(status: Status, parts: Sequence[Status]) -> Status:
    """Describe a pipeline by the stages that have started: the others are not on disk."""
    epoch = sum(part.epoch for part in parts)
    epochs = sum(part.epochs for part in parts)
    later = "" if status.phase == "finished" else "; later stages are counted when they start"
    return replace(
        status,
        message=f"epoch {epoch} of {epochs} done{later}",
        epoch=epoch,
        epochs=epochs,
        progress=1.0 if status.phase == "finished" else epoch / (epochs or 1),
        elapsed=sum(part.elapsed for part in parts),
        eta=next((part.eta for part in parts if part.phase == "running"), None),
    )


def draw_charts(record: RunRecord) -> list[Chart]:
    """Return the curves of a training by epoch: validation, losses, training accuracies and shares."""
    exchanges = tuple((float(epoch), "exchange") for epoch in sorted(record.count_exchanges()))
    events, learners = record.events, record.learners
    by_key: dict[str, list[Curve]] = {"validation": validation_curves(events)}
    for curve in (*loss_curves(events, learners), *learner_curves(events, learners)):
        by_key.setdefault(curve.name.rpartition(" ")[2], []).append(curve)
    titles = {
        "validation": (
            "Validation accuracy",
            "Of the global weights: natural, and under each threat; robust accuracies are upper bounds.",
        ),
        "loss": ("Training loss", "The mean over each epoch, of every learner."),
        "accuracy": ("Training accuracy", "On the images that each learner trains on."),
        "share": ("Shares", "The weight of every learner in the mix."),
    }
    return [
        Chart(
            key,
            title,
            about,
            Axis("epoch"),
            Axis("%" if curves[0].percent else key, percent=curves[0].percent),
            tuple(_to_series(curve, key) for curve in curves),
            marks=exchanges,
        )
        for key, (title, about) in titles.items()
        if (curves := [curve for curve in by_key.get(key, []) if curve.values])
    ]


def _to_series(curve: Curve, key: str) -> Series:
    name = curve.name.removeprefix("global ") if key == "validation" else curve.name.removesuffix(f" {key}")
    scale = 100 if curve.percent else 1
    return Series(
        name, tuple(map(float, curve.values)), tuple(scale * value for value in curve.values.values())
    )


def to_table(
    kind: str,
    whole: Status,
    parts: Sequence[Status] = (),
    selected: int | None = None,
    record: RunRecord | None = None,
) -> dict[str, Any]:
    """Return a state as values that JSON can hold."""
    charts = [] if record is None else [_to_json(asdict(chart)) for chart in draw_charts(record)]
    state = {"kind": kind, **asdict(whole), "parts": [asdict(part) for part in parts]}
    best = None if record is None else record.best_validation()
    return {
        **state,
        "selected": selected,
        "best_epoch": None if best is None else best["epoch"],
        "charts": charts,
    }


def _to_json(value: Any) -> Any:
    """Return a value with None in the place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in cast(Sequence[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
