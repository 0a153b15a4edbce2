"""Evaluations on changed images: what is asked, what is measured, and that nothing is done twice."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from allrounder.data.corruptions import corrupt, generate
from allrounder.data.corruptions.generate import MARKER_FILE, fetch_uint8, make_set
from allrounder.data.corruptions.perturbations import perturb_sequence
from allrounder.errors import Interrupted, RunError
from allrounder.evaluation import runner, shifts
from allrounder.evaluation.evaluate import evaluate, select_rows
from allrounder.evaluation.shifts import Shift, parse_shifts
from allrounder.evaluation.store import RESULTS_FOLDER
from allrounder.report.outcome import OUTCOME_FILE, Outcome
from allrounder.system.progress import ProgressEvent
from tests.support.evaluations import (
    BATCH_SIZE,
    PGD,
    group_options,
    images,
    read_outcome_bytes,
    trained_network,
)
from tests.support.interruptions import Killed, Point, give_up, struck
from tests.support.networks import Unfoldable
from tests.unit.evaluation.test_evaluate_processes import start

__all__ = ["start"]  # a fixture

REQUESTS = ("fog@c", "gaussian_noise@c:5", "spatter@c:2", "translate@p")
ALL = torch.arange(24)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALLROUNDER_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(shifts, "MAX_IMAGES_IN_MEMORY", 64)
    return tmp_path / "cache"


def run_shifts(out: Path | None = None, requests: str | Sequence[str] = REQUESTS, **options: Any) -> Outcome:
    model = options.pop("model", None) or trained_network()
    options = group_options({"check": "skip", "batch_size": BATCH_SIZE, **options})
    return evaluate(model, images(), out=out, ood=requests, **options)


def predict(x: np.ndarray) -> list[int]:
    """What the network says of bytes (n, h, w, c), one by one."""
    floats = torch.from_numpy(np.ascontiguousarray(x)).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        return trained_network()(floats).argmax(1).tolist()


def test_requests_are_parsed():
    assert parse_shifts("fog@c:5") == (Shift("c", "fog", 5),)
    assert len(parse_shifts("c")) == 75 and len(parse_shifts("c:5")) == 15 and len(parse_shifts("p")) == 10
    assert parse_shifts("p, c:5,c") == parse_shifts(["c", "p"])
    assert parse_shifts("spatter@c") == tuple(Shift("c", "spatter", severity) for severity in range(1, 6))
    assert parse_shifts("") == parse_shifts(()) == ()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("d", "got 'd', expected c, c:5, p, or one of them such as fog@c:5"),
        ("p:3", "got 'p:3', expected c"),
        ("c:0", "got 'c:0', expected a severity of 1 to 5"),
        ("frog@c", 'did you mean "fog"'),
        ("fog@p", "got 'fog@p', expected one of gaussian_noise, shot_noise"),
    ],
)
def test_invalid_requests_are_refused(word: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse_shifts(word)


def test_predictions_are_those_on_the_changed_images():
    one, x = run_shifts(requests=(*REQUESTS, "shot_noise@p")), fetch_uint8(images(), ALL)
    assert one.predicted["fog@c-generated:3"].tolist() == predict(corrupt(x, "fog", 3))
    assert one.predicted["spatter@c-generated:2"].tolist() == predict(corrupt(x, "spatter", 2))
    for name, some in (("translate", (0, 15)), ("shot_noise", (0, 12, 30))):
        frames = perturb_sequence(x, name)
        for frame in some:
            assert one.predicted[f"{name}@p-generated:{frame}"].tolist() == predict(frames[:, frame])
    assert len(one.predicted) == 1 + 5 + 1 + 1 + 16 + 31
    assert one.facts["ood"].keys() == {"c-generated", "p-generated"}
    assert "generated with seed 0" in one.facts["ood"]["c-generated"]
    assert one.predicted["natural"].dtype == one.predicted["fog@c-generated:3"].dtype == np.int64


def test_misclassified_images_are_evaluated_too():
    one = run_shifts(requests="translate@p")
    natural, wrong = one.predicted["natural"], one.predicted["natural"] != one.label
    assert wrong.any()
    assert any((array[wrong] != natural[wrong]).any() for array in one.predicted.values())


def test_attacks_and_corruptions_share_one_outcome(tmp_path: Path):
    both = run_shifts(tmp_path, probes=[PGD])
    assert (
        both.predicted[str(PGD)].tolist()
        == run_shifts(requests=(), probes=[PGD]).predicted[str(PGD)].tolist()
    )
    assert list(both.stage) == [str(PGD)]
    assert [name for name, _ in both.columns()][:2] == ["natural", str(PGD)]


def test_subset_gives_the_predictions_of_all_images():
    whole, some = run_shifts(), run_shifts(n=9)
    rows = _rows(9)
    assert len(some) == len(rows) == 9
    for name, array in some.predicted.items():
        assert array.tolist() == whole.predicted[name][rows].tolist(), name


def _rows(count: int) -> list[int]:
    return select_rows(images(), count, 0).tolist()


def test_only_the_images_that_are_evaluated_are_changed(monkeypatch: pytest.MonkeyPatch):
    seen = list[int]()
    original = generate.corrupt

    def counted(x: Any, *args: Any, rows: Any, **options: Any) -> Any:
        seen.extend(rows)
        return original(x, *args, rows=rows, **options)

    monkeypatch.setattr(generate, "corrupt", counted)
    run_shifts(requests="fog@c:1", n=5)
    assert sorted(seen) == _rows(5)


def test_stored_predictions_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = run_shifts(tmp_path)
    bytes_before = read_outcome_bytes(tmp_path)
    modified = {path: path.stat().st_mtime_ns for path in (tmp_path / RESULTS_FOLDER).rglob("*.safetensors")}
    monkeypatch.setattr(shifts.PredictionBuffer, "run", lambda *args: pytest.fail("evaluated again"))
    again = run_shifts(tmp_path)
    assert read_outcome_bytes(tmp_path) == bytes_before and again.predicted.keys() == first.predicted.keys()
    assert {
        path: path.stat().st_mtime_ns for path in (tmp_path / RESULTS_FOLDER).rglob("*.safetensors")
    } == modified


def test_order_of_requests_does_not_matter(tmp_path: Path):
    whole = run_shifts(tmp_path / "whole")
    run_shifts(tmp_path / "parts", "translate@p", n=7)
    run_shifts(tmp_path / "parts", "fog@c:5,spatter@c:2", n=15)
    run_shifts(tmp_path / "parts", tuple(reversed(REQUESTS)))
    assert read_outcome_bytes(tmp_path / "parts") == read_outcome_bytes(tmp_path / "whole")
    assert len(whole) == 24


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_give_identical_bytes(tmp_path: Path, start: str):
    run_shifts(tmp_path / "one", requests="fog@c:5,translate@p")
    run_shifts(tmp_path / "two", requests="fog@c:5,translate@p", workers=2)
    assert read_outcome_bytes(tmp_path / "one") == read_outcome_bytes(tmp_path / "two")


@pytest.mark.parametrize("call", [2, 5, 14])
def test_resume_after_a_kill_gives_identical_bytes(
    call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    requests = "fog@c:2,translate@p"
    run_shifts(tmp_path / "whole", requests)
    monkeypatch.setattr(runner, "SAVE_INTERVAL", -1.0)
    point = Point("allrounder.evaluation.store:ResultStore.add", call, after=bool(call % 2))
    with pytest.raises(Killed), struck(point, give_up):
        run_shifts(tmp_path / "killed", requests)
    run_shifts(tmp_path / "killed", requests)
    assert read_outcome_bytes(tmp_path / "killed") == read_outcome_bytes(tmp_path / "whole")


def test_signal_loses_no_prediction(tmp_path: Path):
    run_shifts(tmp_path / "whole")
    stop = random.Random(0).randrange(3, 9)
    events = list[ProgressEvent]()

    def record(note: ProgressEvent) -> None:
        events.append(note)
        if len(events) == stop:
            raise Interrupted("SIGINT: stopped")

    with pytest.raises(Interrupted):
        run_shifts(tmp_path / "stopped", progress=record)
    done = sum(1 for _ in (tmp_path / "stopped" / RESULTS_FOLDER).iterdir())
    assert done >= 2
    run_shifts(tmp_path / "stopped")
    assert read_outcome_bytes(tmp_path / "stopped") == read_outcome_bytes(tmp_path / "whole")


def test_progress_is_reported_for_every_shift():
    events = list[ProgressEvent]()
    run_shifts(requests="fog@c:5,rotate@p", progress=events.append)
    ends = {note.stage: note.done for note in events if note.done == note.total}
    assert ends == {"natural": 24, "fog@c:5": 24, "rotate@p": 24}


def test_every_pass_has_the_batch_size():
    class Watched(Unfoldable):
        widths: ClassVar[list[int]] = []

        def forward(self, x: Tensor) -> Tensor:
            Watched.widths.append(len(x))
            assert not self.training
            return super().forward(x)

    model = Watched()
    model.load_state_dict(trained_network().state_dict())
    model.train()
    run_shifts(model=model, requests="fog@c:5,translate@p", n=5)
    assert set(Watched.widths) == {BATCH_SIZE}
    assert model.training, "the mode is as it was"


def test_function_gives_the_accuracies_of_its_module():
    network = trained_network()

    def function(x: Tensor) -> Tensor:
        return network(x)

    with_module, plain = run_shifts(requests="fog@c"), run_shifts(requests="fog@c", model=function)
    assert plain.corruptions() == with_module.corruptions()


def test_stored_set_gives_identical_bytes(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    run_shifts(tmp_path / "fresh", "fog@c,translate@p")
    make_set(images(), cache / "c", "c", names=["fog"])
    make_set(images(), cache / "p", "p", names=["translate"])
    monkeypatch.setattr(generate, "corrupt", lambda *args, **options: pytest.fail("made again"))
    run_shifts(tmp_path / "stored", "fog@c,translate@p")
    assert read_outcome_bytes(tmp_path / "stored") == read_outcome_bytes(tmp_path / "fresh")


def test_published_files_are_official_and_kept_apart(tmp_path: Path):
    folder = make_set(images(), tmp_path / "CIFAR-10-C", "c", names=["fog"], seed=5)
    (folder / MARKER_FILE).unlink()
    run_shifts(tmp_path / "out", "fog@c")
    one = run_shifts(tmp_path / "out", "fog@c", ood_data=folder)
    expected = corrupt(fetch_uint8(images(), ALL), "fog", 5, seed=5)
    assert one.predicted["fog@c-official:5"].tolist() == predict(expected)
    assert "official" in one.facts["ood"]["c-official"]
    assert one.columns()[-1] == ("corruptions", "severities 1-5 (official, 1 of 15)")
    both = Outcome.load(tmp_path / "out" / OUTCOME_FILE)
    assert both.facts["ood"].keys() == {"c-official", "c-generated"} and len(both.predicted) == 11


def test_footnotes_name_an_unusable_official_set(cache: Path):
    folder = make_set(images(), cache / "CIFAR-10-C", "c", names=["snow"])
    (folder / MARKER_FILE).unlink()
    with pytest.warns(UserWarning, match="has no fog.npy"):
        one = run_shifts(requests="fog@c:5")
    assert "has no fog.npy" in one.facts["ood"]["c-unusable"]
    assert re.search(r"Corruptions: NOT USED, though taken as official: .*has no fog.npy", one.table())


def test_size_of_batches_does_not_matter(monkeypatch: pytest.MonkeyPatch):
    whole = run_shifts()
    monkeypatch.setattr(generate, "MAX_BATCH_VALUES", 1)
    few = run_shifts()
    assert all(np.array_equal(few.predicted[name], whole.predicted[name]) for name in whole.predicted)


def test_sets_of_different_seeds_are_never_averaged(tmp_path: Path):
    folder = make_set(images(), tmp_path / "other", "c", names=["fog"], seed=5)
    run_shifts(tmp_path / "out", "fog@c,snow@c,translate@p")
    run_shifts(tmp_path / "out", "fog@c:5", ood_data=folder)
    outcome = Outcome.load(tmp_path / "out" / OUTCOME_FILE)
    assert [name for name in outcome.predicted if "@c" in name] == ["fog@c-generated:5"]
    assert "seed 5" in outcome.facts["ood"]["c-generated"] and len(outcome.perturbations()) == 1


def test_a_folder_without_the_set_stops_at_once(tmp_path: Path):
    with pytest.raises(RunError, match="no set found"):
        run_shifts(ood_data=tmp_path)
    with pytest.raises(ValueError, match=r"ood_data: got .* but ood is empty"):
        run_shifts(requests="", ood_data=tmp_path)


def test_logits_that_are_not_finite_are_refused():
    class Broken(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return torch.zeros(len(x), 3) if self.calls < 4 else torch.full((len(x), 3), float("nan"))

    with pytest.raises(ValueError, match="logits are not finite"):
        run_shifts(model=Broken(), requests="fog@c:5")
