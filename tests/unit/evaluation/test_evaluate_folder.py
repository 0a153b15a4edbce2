"""An evaluation in a folder: the same bytes however it was cut up, and nothing done twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from allrounder.attacks.search.driver import Examples
from allrounder.data.base import Subset
from allrounder.data.splits import stratified_indices
from allrounder.errors import Interrupted, RunError
from allrounder.evaluation import runner
from allrounder.evaluation.job import EvaluationJob
from allrounder.evaluation.probes import Probe
from allrounder.evaluation.runner import ResultWriter
from allrounder.evaluation.store import RESULTS_FOLDER, ResultStore
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.system.progress import ProgressEvent
from allrounder.threats.threat import Threat
from allrounder.types import Labels
from tests.support.damage import flip
from tests.support.evaluations import (
    BATCH_SIZE,
    CASCADE,
    PARTS,
    PGD,
    PROBES,
    images,
    read_outcome_bytes,
    reference_outcome_bytes,
    run_evaluation,
    trained_network,
)
from tests.support.interruptions import Killed
from tests.support.networks import Tiny

Attacked = dict[str, list[int]]


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report after every step, so that there is no moment without one."""
    monkeypatch.setattr(runner, "REPORT_INTERVAL", -1.0)


@contextmanager
def watched() -> Generator[Attacked]:
    """Which images which attack was run on, counting repetitions."""
    begin, seen = ResultWriter.__init__, Attacked()

    def note(
        self: ResultWriter, store: ResultStore, key: str, points: Examples, threat: Threat, keep: bool
    ) -> None:
        seen.setdefault(key, []).extend(points.rows.tolist())
        begin(self, store, key, points, threat, keep)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResultWriter, "__init__", note)
        yield seen


def stop_at(call: int, error: type[BaseException]) -> Callable[[ProgressEvent], None]:
    """Somebody who listens, and at a certain report no more."""
    calls = count(1)

    def hear(note: ProgressEvent) -> None:
        if next(calls) == call:
            raise error("stop")

    return hear


def test_every_stage_matters(tmp_path: Path):
    (tmp_path / OUTCOME_FILE).write_bytes(reference_outcome_bytes())
    outcome = Outcome.load(tmp_path / OUTCOME_FILE)
    after = [outcome.accuracy(), *outcome.accuracy_by_stage(str(CASCADE))]
    assert after == sorted(set(after), reverse=True) and after[-1] > 0
    assert 0 < outcome.accuracy(PGD.name) < outcome.accuracy()


def test_stage_runs_on_images_that_earlier_stages_left_robust():
    with watched() as attacked:
        outcome = run_evaluation(probes=[CASCADE])
    by = outcome.stage[str(CASCADE)]
    for number, (key, rows) in enumerate(attacked.items(), start=1):
        left = np.flatnonzero((by == -1) | (by >= number))
        assert rows == left.tolist() and key.startswith(type(PARTS[number - 1]).__name__)


def test_every_image_has_its_own_random_numbers(tmp_path: Path):
    same, far = Subset(images(), torch.ones(BATCH_SIZE, dtype=torch.int64)), Threat.parse("L2:2")
    probes = [PGD, *(Probe(f"p{number}", part, far) for number, part in enumerate(PARTS[:2]))]
    run_evaluation(tmp_path, split=same, probes=probes, keep_examples=True)
    for name in ("pgd-3@Linf-0.06", "p0@L2-2", "p1@L2-2"):
        made = load_file(tmp_path / "examples" / f"{name}.safetensors")["x"]
        assert len(made) == len({image.numpy().tobytes() for image in made}) > 1


def begun(folder: Path) -> Path:
    """A folder with a plan and no lines of attacks."""
    with pytest.raises(KeyboardInterrupt):
        run_evaluation(folder, progress=stop_at(1, KeyboardInterrupt))
    assert [path.name for path in (folder / RESULTS_FOLDER).iterdir()] == [
        next((folder / RESULTS_FOLDER).glob("natural*")).name
    ]
    return folder


def parts(kind: str) -> Iterator[Labels]:
    """Ways to cut up and order the rows."""
    rows = torch.arange(24)
    match kind:
        case "shuffled":
            yield rows[random.Random(3).sample(range(24), 24)]
        case "every third, from the end":
            yield from (rows[k::3].flip(0) for k in (2, 0, 1))
        case _:
            yield from (rows[20:], rows[3:4], rows[:15], rows[9:])


@pytest.mark.parametrize("kind", ["shuffled", "every third, from the end", "overlapping"])
def test_any_partition_in_any_order_gives_the_same_bytes(kind: str, tmp_path: Path):
    folder = begun(tmp_path / "eval")
    for rows in parts(kind):
        job = EvaluationJob(trained_network(), images(), PROBES, 0, BATCH_SIZE, False, folder)
        job.run_rows("", lambda note: None, rows)
    with watched() as attacked:
        run_evaluation(folder)
    assert attacked == {} and read_outcome_bytes(folder) == reference_outcome_bytes()


def test_neither_the_size_of_chunks_nor_the_order_of_probes_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "CHUNK_IMAGES", BATCH_SIZE)
    alone = [Probe(f"part{number}", part, CASCADE.threat) for number, part in enumerate(PARTS)]
    with watched() as attacked:
        run_evaluation(tmp_path / "eval", probes=[*reversed(alone), PGD, CASCADE])
        run_evaluation(tmp_path / "eval").save(tmp_path / OUTCOME_FILE)
    assert read_outcome_bytes(tmp_path) == reference_outcome_bytes()
    # The parts are settled on all images, and the cascade finds them there.
    assert {len(rows) for rows in attacked.values()} == {len(rows) for rows in map(set, attacked.values())}
    assert len(attacked) == len(PARTS) + 1


@cache
def reports() -> list[ProgressEvent]:
    """All that is told where nothing happens; asked by somebody talkative."""
    events = list[ProgressEvent]()
    run_evaluation(progress=events.append)
    assert len(events) > 20
    return events


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(
    ("error", "often", "every"),
    [
        (Interrupted, False, 9),
        (KeyboardInterrupt, False, 15),
        (Killed, True, 10),
        *(
            pytest.param(error, often, 1, marks=pytest.mark.slow)
            for error in (Interrupted, KeyboardInterrupt, Killed)
            for often in (False, True)
        ),
    ],
)
def test_resume_after_any_report_gives_identical_bytes(
    error: type[BaseException],
    often: bool,
    every: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(runner, "SAVE_INTERVAL", -1.0 if often else 1e9)
    events = reports()
    for call in range(1 + every // 2, len(events), every):
        folder, note = tmp_path / str(call), events[call - 1]
        with pytest.raises(error):
            run_evaluation(folder, progress=stop_at(call, error))
        assert not (folder / OUTCOME_FILE).exists()
        with watched() as attacked:
            run_evaluation(folder)
        assert read_outcome_bytes(folder) == reference_outcome_bytes()
        if (error is not Killed or often) and note.stage != "natural" and note.done < note.total:
            # The attack that was under way goes on with exactly what was not settled by then.
            assert len(next(iter(attacked.values()))) == note.total - note.done


@pytest.mark.usefixtures("talkative")
def test_repeated_interruptions_give_identical_bytes(tmp_path: Path):
    stopped = 0
    while not (tmp_path / "eval" / OUTCOME_FILE).exists():
        with suppress(Interrupted):
            run_evaluation(tmp_path / "eval", progress=stop_at(5 + 2 * stopped, Interrupted))
        stopped += 1
    assert stopped > 3
    assert read_outcome_bytes(tmp_path / "eval") == reference_outcome_bytes()


class Counter:
    """A callable that is no module, and counts what it is asked."""

    def __init__(self) -> None:
        self.model, self.shown = trained_network(), list[Tensor]()

    def __call__(self, x: Tensor) -> Tensor:
        self.shown.append(x.detach().clone())
        return self.model(x)

    def perturbed(self) -> int:
        """How many passes were over images of an attack; each image of the split is known by its pixels."""
        known = {image.numpy().tobytes() for image in images().fetch(torch.arange(24))}
        return sum(any(image.numpy().tobytes() not in known for image in x) for x in self.shown)


def test_finished_work_is_not_repeated(tmp_path: Path):
    first, second = Counter(), Counter()
    one, two = (run_evaluation(tmp_path / "eval", model=model) for model in (first, second))
    assert first.perturbed() > 20
    assert second.perturbed() == 0
    assert len(second.shown) == 1  # by which it was known again
    assert np.array_equal(one.distance[str(CASCADE)], two.distance[str(CASCADE)], equal_nan=True)
    third = Counter()
    run_evaluation(tmp_path / "eval", model=third, check="stop", check_masking=False)
    preflight = Counter()
    run_evaluation(model=preflight, probes=(), check="stop")
    natural = 24 // BATCH_SIZE
    assert len(third.shown) == len(preflight.shown) - natural  # both are asked who they are


def test_finished_evaluation_runs_a_module_once_for_its_fingerprint(tmp_path: Path):
    run_evaluation(tmp_path / "eval")
    shown = list[int]()

    def note(module: nn.Module, x: tuple[Tensor, ...]) -> None:
        shown.append(len(x[0]))

    model = trained_network()
    model.register_forward_pre_hook(note)
    events = list[ProgressEvent]()
    outcome = run_evaluation(tmp_path / "eval", model=model, progress=events.append)
    assert outcome.accuracy("all") < outcome.accuracy() and events == []
    assert shown == [8]


def test_more_images_are_added_to_those_before(tmp_path: Path):
    split = images(40)
    run_evaluation(tmp_path / "fresh", split=split, n=32)
    with watched() as first:
        few = run_evaluation(tmp_path / "eval", split=split, n=16)
    with watched() as more:
        run_evaluation(tmp_path / "eval", split=split, n=32)
    assert read_outcome_bytes(tmp_path / "eval") == read_outcome_bytes(tmp_path / "fresh")
    assert first.keys() == more.keys()
    for key in first:
        assert set(first[key]).isdisjoint(more[key]) and first[key] and more[key]
    rows = torch.tensor(sorted(stratified_indices(split, 16, 0).tolist()))
    assert few.label.tolist() == split.labels[rows].tolist()
    assert few.predicted["natural"].tolist() == trained_network()(split.fetch(rows)).argmax(1).tolist()
    # Fewer are a part of what is there, too.
    with watched() as none:
        again = run_evaluation(tmp_path / "eval", split=split, n=16)
    assert none == {} and again.facts == few.facts
    assert all(np.array_equal(again.predicted[name], few.predicted[name]) for name in few.predicted)


def test_damaged_results_are_computed_again(tmp_path: Path):
    run_evaluation(tmp_path)
    shards = sorted((tmp_path / RESULTS_FOLDER).glob("*/*.safetensors"))
    flip(shards[0], -1)
    flip(shards[-1], -1)
    for name in (OUTCOME_FILE, "outcomes"):
        path = tmp_path / name
        path.rename(tmp_path / f"old {name}")
    with pytest.warns(UserWarning, match="moved to .*damaged, its results are computed again") as raised:
        run_evaluation(tmp_path)
    assert len([warning for warning in raised if "computed again" in str(warning.message)]) == 2
    assert read_outcome_bytes(tmp_path) == reference_outcome_bytes()


def test_more_attacks_are_added_to_those_before(tmp_path: Path):
    run_evaluation(tmp_path / "eval", probes=[])
    with watched() as alone:
        run_evaluation(tmp_path / "eval", probes=[Probe("first", PARTS[0], CASCADE.threat)])
    with watched() as more:
        run_evaluation(tmp_path / "eval").save(tmp_path / OUTCOME_FILE)
    assert read_outcome_bytes(tmp_path) == reference_outcome_bytes(), "what was asked is what is returned"
    assert set(alone).isdisjoint(more) and len(more) == len(PARTS)
    stronger = Probe("all", CASCADE.attack, Threat.parse("L2:0.6"))
    with watched() as other:
        run_evaluation(tmp_path / "eval", probes=[*PROBES, stronger])
    assert all("L2:0.6" in key for key in other) and len(other) == len(PARTS)


def test_outcome_file_accumulates_probes_of_the_same_images(tmp_path: Path):
    first, folder = Probe("first", PARTS[0], CASCADE.threat), tmp_path / "eval"
    once = run_evaluation(tmp_path / "once", probes=[first, PGD, CASCADE], check="note")
    parts = [run_evaluation(folder, probes=[probe], check="note") for probe in (first, PGD, CASCADE)]
    assert [list(part.predicted) for part in parts] == [
        ["natural", str(probe)] for probe in (first, PGD, CASCADE)
    ]
    outcome = Outcome.load(folder / OUTCOME_FILE)
    assert read_outcome_bytes(folder) == read_outcome_bytes(tmp_path / "once") and outcome.facts == once.facts
    assert list(outcome.predicted) == ["natural", str(first), str(PGD), str(CASCADE)]
    assert all(np.array_equal(outcome.predicted[name], once.predicted[name]) for name in once.predicted)
    for probes in ([PGD], [CASCADE, first], []):
        run_evaluation(folder, probes=probes)
        assert read_outcome_bytes(folder) == read_outcome_bytes(tmp_path / "once"), (
            "to repeat a question changes nothing"
        )


def test_outcomes_of_other_images_are_kept_apart(tmp_path: Path):
    run_evaluation(tmp_path, probes=[PGD], n=12)
    before = read_outcome_bytes(tmp_path)
    run_evaluation(tmp_path, probes=[CASCADE])
    assert list(Outcome.load(tmp_path / OUTCOME_FILE).predicted) == ["natural", str(CASCADE)]
    run_evaluation(tmp_path, probes=[], n=12)
    assert read_outcome_bytes(tmp_path) == before
    for file in (tmp_path / "outcomes").iterdir():
        file.write_bytes(b"cut")
    with pytest.raises(RunError, match=r"outcomes/\w+.safetensors: cannot be read .* move it away"):
        run_evaluation(tmp_path, probes=[PGD])


class Moody(Tiny):
    """Draws random numbers even in eval mode."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.randn(len(x), 3) / 4


@pytest.mark.usefixtures("talkative")
def test_random_network_resumes_from_stored_predictions(tmp_path: Path):
    # It answers otherwise when it is asked again among other images: what was written first counts.
    def go(**options: Any) -> Outcome:
        return run_evaluation(tmp_path, model=trained_network(Moody), **options)

    with pytest.raises(Interrupted):
        go(n=12, progress=stop_at(3, Interrupted))
    assert len(go()) == 24
    with watched() as attacked:
        first, second = go(n=12), go(n=12)
    assert attacked == {} and 0 < first.accuracy("all") < first.accuracy()
    assert all(np.array_equal(first.predicted[name], second.predicted[name]) for name in first.predicted)
