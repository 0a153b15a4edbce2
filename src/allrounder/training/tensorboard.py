"""The log of a run as events for TensorBoard, in the folder `tensorboard` of the run.

Every session writes one new file: first the events that are already in metrics.jsonl, then each event when it
is logged. Files of earlier sessions are deleted, so after a kill no event is missing and none appears twice.
The stages of a pipeline write events in their own run folders; the pipeline's own log has none.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from allrounder.config.time import Clock
from allrounder.errors import RecipeError
from allrounder.system.files import make_folder
from allrounder.training.run import Run

EVENTS_FOLDER = "tensorboard"
NOT_SCALARS = ("event", "t", "epoch", "learner")
"""Fields of an epoch that are no curves."""


def check_tensorboard() -> None:
    """Raise RecipeError unless events can be written."""
    try:
        _import_tensorboard()
    except ImportError as error:
        reason = f"got true, but the package tensorboard cannot be imported ({error})"
        advice = 'install it with: pip install "allrounder[tensorboard]", or remove the key'
        raise RecipeError(f"tensorboard: {reason}; {advice}") from None


def _import_tensorboard() -> tuple[Any, Any, Any]:
    """Return the messages for events and for summaries, and the class that writes records to a file."""
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    return event_pb2, summary_pb2, RecordWriter


@contextmanager
def write_events(run: Run, clock: Clock, warn: Callable[[str], None]) -> Generator[None]:
    """Within the context, write what the run logged and logs. A failure ends the events and is reported to
    `warn`, but does not end the training."""
    mix = run.recipe.effective_mix
    exchanges = Counter[int]() if mix.exchange is None else mix.exchange.count_by_epoch(clock)
    writer = EventWriter(run.folder / EVENTS_FOLDER, run.recipe.names[0], exchanges)
    failed = False

    def attempt(write: Callable[[], None]) -> None:
        nonlocal failed
        try:
            if not failed:
                write()
        except Exception as error:  # a training of days is worth more than its curves
            failed = True
            problem = f"{writer.folder}: events for TensorBoard cannot be written ({error})"
            warn(f"{problem}; the training continues without them, and its log is complete")

    attempt(lambda: writer.open(run.metrics()))
    run.log_listener = lambda event: attempt(lambda: writer.write(event, time.time()))
    try:
        yield
    finally:
        run.log_listener = None
        with suppress(Exception):  # what was written is flushed
            writer.close()


@final
class EventWriter:
    """Writes the events of a log to one file in a folder."""

    def __init__(self, folder: Path, first_learner: str, exchanges: Mapping[int, int]):
        """Nothing is written yet. `exchanges` are the numbers of exchanges by epoch."""
        self.folder = folder
        self.first_learner = first_learner
        self.exchanges = exchanges
        self.records: Any = None

    def open(self, logged: list[dict[str, Any]]) -> None:
        """Replace the files in the folder by a new one with the events that are logged already. The log has
        no times; they are computed from the seconds that it has."""
        events, _, record_writer = _import_tensorboard()
        make_folder(self.folder)
        now = time.time()
        for path in self.folder.glob("events.out.tfevents.*"):
            path.unlink()
        self.records = record_writer((self.folder / f"events.out.tfevents.{now:.6f}").open("wb"))
        start = events.SessionLog(status=events.SessionLog.START)
        header = events.Event(wall_time=now, file_version="brain.Event:2")
        # Lets an open TensorBoard forget what it read from the deleted files.
        restart = events.Event(wall_time=now, step=0, session_log=start)
        for event in (header, restart):
            self.records.write(event.SerializeToString())
        age = sum(_duration(event, self.first_learner) for event in logged)
        for event in logged:
            age -= _duration(event, self.first_learner)
            self.write(event, now - age)

    def write(self, event: Mapping[str, Any], wall_time: float) -> None:
        """Write the numbers of one event of the log."""
        events, summaries, _ = _import_tensorboard()
        scalars = self._scalars(event)
        values = [summaries.Summary.Value(tag=tag, simple_value=number) for tag, number in scalars]
        if values:
            summary = summaries.Summary(value=values)
            record = events.Event(wall_time=wall_time, step=event["t"], summary=summary)
            self.records.write(record.SerializeToString())
            self.records.flush()

    def close(self) -> None:
        """Close the file, if it is open."""
        if self.records is not None:
            self.records.close()

    def _scalars(self, event: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        """Yield the name and value of every curve that an event continues."""
        if event["event"] == "epoch":
            for key, number in event.items():
                if key not in NOT_SCALARS:
                    yield f"{key}/{event['learner']}", number
            if self.exchanges and event["learner"] == self.first_learner:
                yield "exchanges", self.exchanges[event["epoch"]]
        elif event["event"] == "validation":
            for group, facts in (("validation", event), ("train", event.get("train"))):
                if facts is not None:
                    yield f"{group}/natural", facts["natural"]
                    for threat, accuracy in facts["robust"].items():
                        yield f"{group}/{threat}", accuracy
            yield "validation/score", event["score"]
        elif event["event"] == "exchange":
            yield "drift", event["drift"]
            for learner, distance in event["distances"].items():
                yield f"distance/{learner}", distance


def _duration(event: Mapping[str, Any], first_learner: str) -> float:
    """Return the seconds before an event; all learners log the same epoch."""
    return event.get("seconds", 0.0) if event.get("learner", first_learner) == first_learner else 0.0
