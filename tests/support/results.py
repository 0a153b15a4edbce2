"""Results of a report, made by hand: every field is filled, and nothing is trained or evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allrounder.report.dial import DialPoint
from allrounder.report.entry import Entry, Results, TrainingFacts
from allrounder.report.outcome import Outcome
from allrounder.report.study import StudyResults

CLASSES = ("bag", "boot", "coat", "shirt")
THREATS = ("Linf:8/255", "L2:1/2", "L1:12")
STAGES = ("apgd-ce", "apgd-t", "fab-t", "square")
EPSILONS = ("Linf:2/255", "Linf:4/255", "Linf:8/255")
CORRUPTIONS = ("fog", "snow")


def make_outcome(
    images: int = 60, accuracy: float = 0.8, seed: int = 0, threats: Sequence[str] = THREATS
) -> Outcome:
    """An outcome of AutoAttack and PGD-20, corruptions and perturbations, with draws of a seed."""
    draws = np.random.default_rng(seed)
    label = np.arange(images) % len(CLASSES)
    natural = _fool(label, draws.random(images) < 1 - accuracy, draws)
    predicted, distance, stage = {"natural": natural}, {}, {}
    for threat in (f"aa@{threat}" for threat in threats):
        fooled = (natural == label) & (draws.random(images) < 0.4)
        predicted[threat] = np.where(natural == label, _fool(label, fooled, draws), natural)
        reach = draws.uniform(0.2, 1.0, images) * 8 / 255
        distance[threat] = np.where(fooled, reach, np.where(natural == label, np.nan, 0.0))
        stage[threat] = np.where(fooled, draws.integers(1, 4, images), np.where(natural == label, -1, 0))
    weak = natural
    for threat in EPSILONS:
        weak = np.where(weak == label, _fool(label, draws.random(images) < 0.2, draws), weak)
        predicted[f"pgd-20@{threat}"] = weak
    changes = [f"{name}@c-official:{severity}" for name in CORRUPTIONS for severity in range(1, 6)]
    changes += [f"{name}@p-generated:{frame}" for name in ("rotate", "shot_noise") for frame in range(3)]
    predicted |= {change: _fool(label, draws.random(images) < 0.3, draws) for change in changes}
    facts = {"seed": seed, "classes": len(CLASSES), "stages": {name: list(STAGES) for name in stage}}
    confidence = draws.uniform(0.25, 1.0, images)
    return Outcome(label, predicted, facts, distance, stage, confidence)


def _fool(label: NDArray[np.int64], fooled: NDArray[np.bool_], draws: np.random.Generator) -> NDArray[Any]:
    return np.where(fooled, (label + draws.integers(1, len(CLASSES), len(label))) % len(CLASSES), label)


def make_training(
    epochs: int = 6, exchanges: Sequence[int] = (2, 4), folder: str = "runs/demo"
) -> TrainingFacts:
    """A training of two learners that is validated every second epoch, also on training images."""
    events: list[Mapping[str, Any]] = []
    for epoch in range(1, epochs + 1):
        for learner, share in (("natural", 0.25), ("linf", 0.75)):
            facts = {"event": "epoch", "t": 10 * epoch, "epoch": epoch, "learner": learner, "share": share}
            events.append(facts | {"loss": 2 / epoch, "accuracy": 0.1 * epoch, "lr": 0.1 / epoch})
        if epoch % 2 == 0:
            robust = {"Linf:8/255": 0.05 * epoch, "L2:1/2": 0.04 * epoch}
            train = {"natural": 0.12 * epoch, "robust": {name: 2 * share for name, share in robust.items()}}
            accuracies = {"natural": 0.1 * epoch, "robust": robust, "train": train}
            events.append({"event": "validation", "t": 10 * epoch, "epoch": epoch, **accuracies})
    for epoch in exchanges:
        facts = {"drift": 0.1 * epoch, "distances": {"natural": 2.0, "linf": 1.0}}
        shares = {"natural": 0.25, "linf": 0.75}
        events.append({"event": "exchange", "t": 10 * epoch, "epoch": epoch, **facts, "shares": shares})
    points = (
        DialPoint({"natural": 1.0}, 0.9, {"Linf:8/255": 0.1, "L2:1/2": 0.2}, 0.1, 0.15),
        DialPoint({"natural": 0.5, "linf": 0.5}, 0.7, {"Linf:8/255": 0.5, "L2:1/2": 0.5}, 0.4, 0.5),
        DialPoint({"linf": 1.0}, 0.6, {"Linf:8/255": 0.4, "L2:1/2": 0.4}, 0.3, 0.4),
    )
    return TrainingFacts(
        folder,
        "finished",
        "epochs = 6\n",
        ("natural", "linf"),
        epochs,
        tuple(events),
        tuple(exchanges),
        mixtures=points,
    )


def make_results(rows: int = 3, seeds: int = 2, images: int = 60) -> Results:
    """A study of rows with outcomes and trainings, with numbers of a paper; then a row that was only
    trained, and one that was only evaluated."""
    outcomes = {
        f"Row {number}": {
            seed: make_outcome(images, 0.95 - 0.5 * number / rows, 100 * number + seed)
            for seed in range(seeds)
        }
        for number in range(rows)
    }
    entries = [
        Entry(
            name,
            by_seed,
            {seed: make_training(folder=f"runs/{number}/{seed}") for seed in by_seed},
            "demo",
            f"{10 + number}/{12 + number}",
            tuple(2.0 + number + seed for seed in by_seed),
            CLASSES,
        )
        for number, (name, by_seed) in enumerate(outcomes.items())
    ]
    entries.append(Entry("Training", trainings={0: make_training()}, problems=("Not evaluated.",)))
    entries.append(Entry("External", {0: make_outcome(images, seed=1)}))
    paper = {"Row 0": {"natural": 90.0, "aa@Linf:8/255": 45.5}}
    return Results(tuple(entries), {"demo": StudyResults(outcomes, paper, source="Table 1")})
