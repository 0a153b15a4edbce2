"""Mix the weights of trained networks after training, and choose one of the mixtures on held-out images.

The networks are the learners of one run and its global weights, or the global weights of several runs: the
soups of Croce, Rebuffi, Shelhamer and Gowal, 2023, Seasoning model soups for robustness to adversarial and
natural distribution shifts. Results are in RUN/dial, or, for several runs, in a folder below it:

    points/DIGEST.json  every point that was measured with the same weights, images, statistics and attack
    dial.json           the points of the last call, with their front
    table.md            the same as a table
    dial.svg            the front, if the command line drew it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from allrounder.data.base import Data
from allrounder.errors import InputError
from allrounder.experiments.combined_run import save_combined_run
from allrounder.experiments.mixtures import Mixtures, Shares, evaluate_mixtures, unique_shares
from allrounder.models.factory import ModelLike
from allrounder.nn.mixture import check_shares
from allrounder.report.dial import (
    DIAL_FILE,
    FORMAT_VERSION,
    Criterion,
    DialPoint,
    describe_shares,
    dial_table,
    find_front,
)
from allrounder.report.tables import ResultTable, to_markdown
from allrounder.system.checked_files import write_json
from allrounder.system.files import write_text
from allrounder.system.processes import use_threads
from allrounder.system.progress import NullProgress, Progress
from allrounder.threats.threat import Threat
from allrounder.training.recalibration import Statistics
from allrounder.training.run import Run


@final
@dataclass(frozen=True, eq=False)
class Dial:
    """Measured mixtures of trained networks."""

    mixtures: Mixtures
    points: tuple[DialPoint, ...]

    def front(self, by: Criterion = "worst") -> list[DialPoint]:
        """Return the points that no other point beats in natural and in robust accuracy."""
        return find_front(self.points, by)

    def table(self, by: Criterion = "worst") -> ResultTable:
        """Return the table of all points."""
        return dial_table(self.points, by, _describe(self.mixtures))

    def point_at(self, shares: Shares) -> DialPoint:
        """Return the point with these shares."""
        (wanted,) = unique_shares([shares])
        for point in self.points:
            if point.shares == wanted:
                return point
        raise InputError(f"shares: {describe_shares(wanted)} was not measured; measure it with also=[shares]")

    def export(self, point: DialPoint, out: str | Path) -> Run:
        """Save the network of a point as a finished run in the folder `out`."""
        mixtures, runs = self.mixtures, self.mixtures.runs
        sources = ", ".join(run.recipe.name or label for label, run in runs.runs.items())
        recipe = replace(
            runs.recipe,
            name=f"{runs.recipe.name}, mixed: {point.name}".strip(" ,"),
            about=f"Weights of {sources} mixed after training by allrounder dial: {point.name}",
        )
        facts = {
            "mixture": dict(point.shares),
            "sources": runs.describe(),
            **{key: mixtures.plan[key] for key in ("recalibrated_on", "statistics", "crafted_by")},
        }
        with use_threads(1):
            weights = mixtures.weights_at(point.shares)
        measured = {**asdict(point), "score": point.score, "images": mixtures.plan["images"]}
        t = max(facts["t"] for facts in runs.facts.values())
        return save_combined_run(Path(out), recipe, weights, runs.data.dataset, measured, facts, t)


def dial(
    *runs: str | Path,
    points: int = 5,
    also: Sequence[Shares] = (),
    by: Criterion = "worst",
    attack: str | None = None,
    threats: Sequence[Threat | str] = (),
    n: int | None = None,
    statistics: Statistics = "adversarial",
    workers: int = 1,
    model: ModelLike | None = None,
    data: Data | None = None,
    progress: Progress | None = None,
) -> Dial:
    """Measure mixtures of the learners of a finished run, or of the global weights of several runs.

    `points` is the number of mixtures of every two networks, `also` are more mixtures. `statistics` are the
    training images that batch-norm statistics of every mixture are re-estimated on: "adversarial", "natural",
    or "both", half of each. Points that an earlier call measured with the same weights, images, statistics
    and attack are reused, so an interrupted call continues. `model` and `data` replace those of the recipes,
    as in `train`.
    """
    mixtures = Mixtures.open(
        runs,
        attack=attack,
        threats=threats,
        n=n,
        statistics=statistics,
        workers=workers,
        model=model,
        data=data,
    )
    for shares in also:
        check_shares(shares, tuple(mixtures.weights))
    wanted = unique_shares([*mixtures.grid(points), *also])
    result = Dial(mixtures, tuple(evaluate_mixtures(mixtures, wanted, progress or NullProgress())))
    _write_results(result, by)
    return result


def _write_results(result: Dial, by: Criterion) -> None:
    """Write dial.json and table.md."""
    folder = result.mixtures.folder
    front = result.front(by)
    points = [
        {"name": point.name, **asdict(point), "score": point.score, "front": point in front}
        for point in result.points
    ]
    plan = {"sources": result.mixtures.runs.describe(), **result.mixtures.plan}
    write_json(folder / DIAL_FILE, {"format": FORMAT_VERSION, **plan, "by": by, "points": points})
    write_text(folder / "table.md", to_markdown(result.table(by)))


def _describe(mixtures: Mixtures) -> tuple[str, ...]:
    """Return notes on how the points were measured."""
    plan = mixtures.plan
    attack = plan["attack"].removeprefix("validation: ")
    images = f"{plan['images']} held-out training images, never test images; seed {plan['seed']}"
    return (
        f"Percent of images classified correctly: {images}.",
        f"Attack: {attack}; accuracies under it are upper bounds.",
        _describe_statistics(plan),
        "Worst: correct under every threat at once; mean: over the threats; score: natural plus mean.",
    )


def _describe_statistics(plan: Mapping[str, Any]) -> str:
    """Return a note on the training images that statistics were measured on; it names the attack that
    crafted them if it is not the one that the points were measured with."""
    count, kind, attack = f"{plan['recalibrated_on']:,}", plan["statistics"], plan["crafted_by"]
    halves = "training images, half of them adversarial,"
    images = f"{count} {halves}" if kind == "both" else f"{count} {kind} training images"
    is_other = attack is not None and not plan["attack"].endswith(f": {attack}")
    crafted = f"; {attack} crafts them" if is_other else ""
    return f"Batch-norm statistics are re-estimated on {images} at every point{crafted}."
