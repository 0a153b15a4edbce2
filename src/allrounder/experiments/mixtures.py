"""Mixtures of trained networks' weights, measured on held-out images. Each is stored when it is measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final, get_args

from torch import nn

from allrounder.attacks import ATTACKS
from allrounder.config.fields import did_you_mean
from allrounder.data.base import Data
from allrounder.data.fingerprint import fingerprint_data
from allrounder.errors import InputError, Interrupted, RunError
from allrounder.evaluation.evaluate import EvalOptions, default_batch_size, evaluate
from allrounder.evaluation.probes import Probe
from allrounder.experiments.finished_runs import FinishedRuns
from allrounder.experiments.manifest import slug
from allrounder.models.factory import ModelFactory, ModelLike, as_factory
from allrounder.nn.mixture import mix_weights, simplex_grid
from allrounder.nn.state import copy_, first_mismatch, weights_of
from allrounder.report.dial import DIAL_FIELDS, GLOBAL, DialPoint, describe_shares
from allrounder.system.checked_files import read_json, write_json
from allrounder.system.files import lock_folder, make_folder
from allrounder.system.processes import use_threads
from allrounder.system.progress import NullProgress, Progress
from allrounder.system.signals import stop_on_signals
from allrounder.threats.threat import Threat
from allrounder.training.mixer import NUM_IMAGES
from allrounder.training.recalibration import Crafting, Statistics, measure_statistics
from allrounder.training.setup import build_initial_model
from allrounder.types import Weights

FORMAT_VERSION = 1
"""Of stored points."""
Shares = Mapping[str, float]


@final
@dataclass(frozen=True, eq=False)
class Mixtures:
    """The networks that are mixed, and how mixtures are measured."""

    runs: FinishedRuns
    names: tuple[str, ...]
    """The corners of the simplex: the learners of a run, or the labels of several runs."""
    weights: Mapping[str, Weights]
    """Those of `names`, and the global weights of a single run."""
    probes: tuple[Probe, ...]
    n: int | None
    """Held-out images to measure on; None for all."""
    statistics: Statistics
    """The training images that batch-norm statistics of every mixture are measured on."""
    crafting: Crafting
    """How these images are attacked, unless they are natural."""
    factory: ModelFactory | None = None
    workers: int = 1

    @classmethod
    def open(
        cls,
        folders: Sequence[str | Path],
        *,
        attack: str | None = None,
        threats: Sequence[Threat | str] = (),
        n: int | None = None,
        statistics: Statistics = "adversarial",
        workers: int = 1,
        model: ModelLike | None = None,
        data: Data | None = None,
    ) -> Mixtures:
        """Open finished runs. By default, the attack is that of the validation of the first run, and the
        threats are those that the runs select their best weights by."""
        if statistics not in (choices := get_args(Statistics)):
            expected = f"{', '.join(choices)}{did_you_mean(statistics, choices)}"
            raise InputError(f"statistics: got {statistics!r}, expected one of {expected}")
        runs = FinishedRuns.open(folders, data)
        names, weights = _load_weights(runs)
        probes = select_validation_probes(runs, attack, threats)
        crafting = _select_crafting(runs, probes, statistics)
        return cls(runs, names, weights, probes, n, statistics, crafting, as_factory(model), workers)

    @cached_property
    def network(self) -> nn.Module:
        """A network whose weights are overwritten."""
        return build_initial_model(self.runs.recipe, self.factory, self.runs.data.dataset, [])

    @property
    def folder(self) -> Path:
        """The folder of the results."""
        first = next(iter(self.runs.runs.values())).folder / "dial"
        return first if len(self.runs.runs) == 1 else first / slug("-".join(self.names))

    def grid(self, points: int) -> list[dict[str, float]]:
        """Return the global weights, if it is one run, then the grid with `points` mixtures on every edge."""
        alone = [{GLOBAL: 1.0}] if GLOBAL in self.weights else []
        return [*alone, *map(_without_zeros, simplex_grid(self.names, points))]

    def weights_at(self, shares: Shares, heartbeat: Callable[[], None] = lambda: None) -> Weights:
        """Return a mixture, with batch-norm statistics that are re-estimated on training images. `heartbeat`
        is called for every batch of them."""
        theta, train = mix_weights(self.weights, shares), self.runs.data.train
        return measure_statistics(theta, self.network, train, self.statistics, self.crafting, heartbeat)

    def measure(self, shares: Shares, heartbeat: Callable[[], None] = lambda: None) -> DialPoint:
        """Measure one mixture on the held-out images."""
        copy_(weights_of(self.network), self.weights_at(shares, heartbeat))
        seed = self.runs.recipe.seed
        options = EvalOptions(check="skip")
        split, n, workers = self.runs.held_out, self.n, self.workers
        outcome = evaluate(
            self.network, split, probes=self.probes, n=n, seed=seed, workers=workers, options=options
        )
        name = self.probes[0].name
        robust = {str(probe.threat): outcome.accuracy(str(probe)) for probe in self.probes}
        worst, mean = outcome.worst(name), outcome.mean(name)
        return DialPoint(_without_zeros(shares), outcome.accuracy(), robust, worst, mean)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """Return everything that decides the numbers of a point, for JSON."""
        recipe, data = self.runs.recipe, self.runs.data
        return {
            "weights": {name: self._digest(name) for name in self.weights},
            "data": data.dataset.name,
            "trained_on": fingerprint_data(data.train)["data_digests"][0],
            "held_out": fingerprint_data(self.runs.held_out)["data_digests"][0],
            "images": min(self.n or len(self.runs.held_out), len(self.runs.held_out)),
            "recalibrated_on": min(NUM_IMAGES, len(data.train)),
            "recalibration_batch": self.crafting.batch_size,
            "statistics": self.statistics,
            "crafted_by": None if self.statistics == "natural" else str(self.crafting.attack),
            "attack": f"{self.probes[0].name}: {self.probes[0].attack}",
            "threats": [str(probe.threat) for probe in self.probes],
            "seed": recipe.seed,
            "batch_size": default_batch_size(self.network, self.runs.held_out),
        }

    def _digest(self, name: str) -> str:
        """Return the digest of the file of some weights: of a learner of the run, or of one of the runs."""
        (_, first), *others = self.runs.facts.items()
        files = self.runs.facts[name]["files"] if others else first["files"]
        return files[f"{GLOBAL if others else name}.safetensors"][:16]


def evaluate_mixtures(
    mixtures: Mixtures, shares: Sequence[Shares], progress: Progress = NullProgress()
) -> list[DialPoint]:
    """Measure mixtures, except those that an earlier call measured, and store each when it is measured."""
    plan = {"format": FORMAT_VERSION, "plan": mixtures.plan}
    digest = hashlib.sha256(json.dumps(plan).encode()).hexdigest()[:16]
    file = mixtures.folder / "points" / f"{digest}.json"
    make_folder(file.parent)
    with lock_folder(mixtures.folder, "measuring"), stop_on_signals() as stop, use_threads(1):

        def check_signal() -> None:
            if stop.signal is not None:
                raise Interrupted(f"{stop.signal}: stopped between two batches")

        stored = {_key(point.shares): point for point in _read_points(file)}
        progress.begin(len(shares), 0)
        for number, mixture in enumerate(shares, 1):
            if (key := _key(mixture)) not in stored:
                try:
                    stored[key] = mixtures.measure(mixture, check_signal)
                except Interrupted as interrupted:
                    signal = str(interrupted).partition(":")[0]
                    raise _interruption(mixtures.folder, signal, number - 1, len(shares)) from None
                write_json(file, {**plan, "points": [asdict(point) for point in stored.values()]})
                progress.log(_summarise(stored[key]))
            progress.step(number)
            if stop.signal is not None and number < len(shares):
                raise _interruption(mixtures.folder, stop.signal, number, len(shares))
    return [stored[_key(mixture)] for mixture in shares]


def select_validation_probes(
    runs: FinishedRuns, attack: str | None, threats: Sequence[Threat | str]
) -> tuple[Probe, ...]:
    """Return one attack under every threat: by default the validation's, under the threats of the runs."""
    against = [Threat.parse(threat) for threat in threats] or list(runs.threats)
    if not against:
        raise RunError(
            f"{', '.join(runs.runs)}: trained under no threat, so none is known; name one, such as Linf:8/255"
        )
    if attack is not None:
        return tuple(Probe.of(attack, threat) for threat in dict.fromkeys(against))
    validation = runs.recipe.validation.attack
    for threat in against:
        validation.check_supports(threat)
    return tuple(Probe("validation", validation, threat) for threat in dict.fromkeys(against))


def _select_crafting(runs: FinishedRuns, probes: Sequence[Probe], statistics: Statistics) -> Crafting:
    """Return how images for statistics are attacked: as the mixtures are, or, because a search stops as soon
    as an image fools the network, by the attack of the validation."""
    recipe, attack = runs.recipe, probes[0].attack
    threats = tuple(probe.threat for probe in probes)
    if type(attack) not in ATTACKS.values():
        attack = recipe.validation.attack
        try:
            for threat in threats if statistics != "natural" else ():
                attack.check_supports(threat)
        except ValueError as error:
            reason = f"{probes[0].name} cannot craft images for batch-norm statistics"
            fix = "name another attack, or choose natural statistics"
            raise InputError(f"{reason}, nor can the attack of the validation: {error}; {fix}") from None
    return Crafting(attack, threats, recipe.seed, recipe.batch_size)


def _load_weights(runs: FinishedRuns) -> tuple[tuple[str, ...], dict[str, Weights]]:
    """Return the names of the networks to mix, and their weights; of one run, also its global weights."""
    (label, first), *others = runs.runs.items()
    if others:
        weights = {label: run.weights()[0] for label, run in runs.runs.items()}
        for name, run in runs.runs.items():
            if (mismatch := first_mismatch(weights[name], weights[label])) is not None:
                reason = f"holds another network than {label}, {mismatch} does not fit"
                raise RunError(f"{run.folder}: {reason}; mix runs of one architecture, or their --outputs")
        return tuple(runs.runs), weights
    names = first.recipe.names
    if len(names) == 1:
        advice = "name other runs too, to mix their global weights"
        raise RunError(f"{first.folder}: has one learner only, {names[0]}; {advice}")
    if GLOBAL in names:
        raise RunError(
            f'{first.folder}: a learner is called "{GLOBAL}", as the global weights are; rename it'
        )
    return names, {name: first.weights(name)[0] for name in (*names, GLOBAL)}


def _read_points(file: Path) -> list[DialPoint]:
    if not file.is_file():
        return []
    again = "remove it and call again: its points are measured again"
    fields = read_json(file, again, FORMAT_VERSION, DIAL_FIELDS)
    return [DialPoint(**point) for point in fields["points"]]


def _interruption(folder: Path, signal: str, done: int, total: int) -> Interrupted:
    return Interrupted(f"{folder}: {signal} after {done} of {total} points; call again to continue")


def _summarise(point: DialPoint) -> str:
    numbers = {"natural": point.natural, **point.robust, "worst": point.worst}
    return f"{describe_shares(point.shares)}: " + ", ".join(f"{k} {v:.1%}" for k, v in numbers.items())


def _without_zeros(shares: Shares) -> dict[str, float]:
    return {name: share for name, share in shares.items() if share > 0}


def _key(shares: Shares) -> str:
    return json.dumps(_without_zeros(shares), sort_keys=True)


def unique_shares(shares: Sequence[Shares]) -> list[dict[str, float]]:
    """Return each mixture once, without networks that have no share."""
    return list({_key(mixture): _without_zeros(mixture) for mixture in shares}.values())
