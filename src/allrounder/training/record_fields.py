"""The fields that readers of a run folder rely on: a file with other ones is refused as damaged."""

from __future__ import annotations

from allrounder.system.field_checks import (
    NUMBER,
    TABLE,
    TEXT,
    Checks,
    fields_of,
    list_of,
    number,
    optional,
    table_of,
    whole_number,
)

SECONDS = number(0.0, 1e12)
RECIPE_FIELDS: Checks = {"epochs": whole_number(1), "task": list_of(fields_of({"name": TEXT}))}
SESSION_FIELDS: Checks = {"sessions": list_of(TABLE)}
EVENT_FIELDS: Checks = {"event": TEXT}
"""Of any event of a log."""
ACCURACIES: Checks = {"natural": NUMBER, "robust": table_of(NUMBER)}
EVENTS: dict[str, Checks] = {
    "epoch": {
        "t": whole_number(1),
        "epoch": whole_number(1),
        "learner": TEXT,
        "seconds": SECONDS,
        **dict.fromkeys(("loss", "accuracy", "lr", "share"), optional(NUMBER)),
    },
    "validation": {
        **ACCURACIES,
        "t": whole_number(0),
        "epoch": whole_number(0),
        "score": NUMBER,
        "seconds": optional(SECONDS),
        "train": optional(fields_of(ACCURACIES)),
    },
}
"""Of an event, by its kind."""
