from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import allrounder.report.outcome
from allrounder.errors import InputError, RunError
from allrounder.report.outcome import FORMAT_VERSION, Outcome
from allrounder.report.render import render
from allrounder.report.statistics import McNemar, wilson_interval
from allrounder.system.checked_files import read_arrays, write_arrays
from tests.support.damage import damages

LINF, L2 = "pgd-20@Linf:8/255", "pgd-20@L2:128/255"


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


#                      correct: natural 1 1 1 1 0 0, Linf 1 0 1 0 0 0, L2 1 1 0 0 0 0
SMALL = Outcome(
    ints(0, 0, 1, 1, 3, 3),
    {
        "natural": ints(0, 0, 1, 1, 0, 1),
        LINF: ints(0, 1, 1, 0, 0, 1),
        L2: ints(0, 0, 2, 2, 0, 1),
        "cw@L1:12": ints(3, 3, 3, 3, 0, 1),
    },
    {"seed": 0},
)


def test_confidences_are_stored_only_if_they_were_measured(tmp_path: Path):
    confidence = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 1.0])
    replace(SMALL, confidence=confidence).save(tmp_path / "with")
    stored = Outcome.load(tmp_path / "with")
    assert stored.confidence is not None and stored.confidence.tolist() == confidence.tolist()
    assert stored.calibration(2).accuracy.tolist() == [0, 4 / 5]  # 0.5 is in the lower bin
    SMALL.save(tmp_path / "without")
    assert "confidence" not in read_arrays(tmp_path / "without")[0]
    without = Outcome.load(tmp_path / "without")
    assert without.confidence is None
    with pytest.raises(InputError, match="has no confidences; evaluate again"):
        without.calibration()
    with pytest.raises(InputError, match=r"confidence: got .* one for every image"):
        replace(SMALL, confidence=confidence[:3])


def test_accuracies_are_shares_of_all_images():
    assert len(SMALL) == 6
    assert SMALL.accuracy() == 4 / 6
    assert SMALL.accuracy("pgd-20", "Linf") == 2 / 6
    assert SMALL.accuracy("pgd-20", "Linf:8/255") == 2 / 6
    assert SMALL.accuracy("pgd-20", "L2") == 2 / 6
    assert SMALL.accuracy("cw") == 0  # its only threat need not be named
    assert SMALL.accuracy(LINF) == 2 / 6


def test_worst_asks_for_every_threat_at_once_and_mean_averages_them():
    assert SMALL.worst("pgd-20") == 1 / 6
    assert SMALL.mean("pgd-20") == 2 / 6
    assert SMALL.worst("natural") == SMALL.mean("natural") == SMALL.accuracy()


@pytest.mark.parametrize(
    ("linf", "l2", "union"),
    [(4608, 5897, 52.53), (3588, 5894, 47.41)],
    ids=["CIFAR-10 ResNet-18 MSD", "ImageNet ResNet-50 Generalist-T"],
)
def test_the_union_column_of_the_papers_is_the_mean(linf: int, l2: int, union: float):
    label = np.zeros(10_000, np.int64)
    rows = np.arange(10_000)
    result = Outcome(
        label,
        {
            "natural": label,
            "aa@Linf:8/255": (rows >= linf).astype(np.int64),
            "aa@L2:128/255": (rows >= l2).astype(np.int64),
        },
    )
    assert 100 * result.mean("aa") == pytest.approx(union, abs=0.0051)
    assert 100 * result.worst("aa") == pytest.approx(linf / 100)


PREDICTIONS = st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=30)


@given(PREDICTIONS)
def test_worst_is_at_most_each_and_mean_lies_between(rows: list[tuple[int, ...]]):
    label, *predicted = np.array(rows, dtype=np.int64).T
    names = ["a@Linf:1", "a@L2:1", "a@L1:1"]
    result = Outcome(label, dict(zip(names, predicted, strict=True)))
    each = [result.accuracy("a", name.removeprefix("a@")) for name in names]
    assert result.worst("a") <= min(each)
    assert min(each) - 1e-12 <= result.mean("a") <= max(each) + 1e-12
    assert result.mean("a") == pytest.approx(sum(each) / 3)
    assert max(1 - sum(1 - share for share in each), 0) <= result.worst("a") + 1e-12


def test_classes_are_counted_alone_and_a_class_without_images_has_no_number():
    assert SMALL.per_class().tolist()[:2] == [1.0, 1.0]
    assert math.isnan(SMALL.per_class()[2])
    assert SMALL.per_class()[3] == 0
    assert SMALL.per_class("pgd-20", "L2").tolist()[:2] == [1.0, 0.0]
    assert SMALL.per_class("pgd-20", "worst").tolist()[:2] == [0.5, 0.0]
    assert SMALL.per_class("pgd-20", "mean").tolist()[:2] == [0.75, 0.25]


def test_a_curve_has_every_budget_of_a_norm_by_its_size_and_not_by_its_text():
    label = np.zeros(4, np.int64)
    rows = np.arange(4)
    budgets = {"16/255": 1, "8/255": 2, "0": 4, "0.04": 2, "1e-3": 3}
    predicted = {f"aa@Linf:{text}": (rows >= left).astype(np.int64) for text, left in budgets.items()}
    others = {"natural": label, "aa@L2:0.5": rows, "aa-plus@Linf:2/255": rows, "aa@Linf2:1": rows}
    result = Outcome(label, {**others, **predicted})
    expected = [(0.0, 1.0), (1e-3, 0.75), (8 / 255, 0.5), (0.04, 0.5), (16 / 255, 0.25)]
    assert result.curve("aa", "Linf") == expected
    assert result.curve("aa", "L2") == [(0.5, 0.25)]
    assert SMALL.curve("pgd-20", "Linf") == [(8 / 255, 2 / 6)]


@pytest.mark.parametrize(("attack", "norm"), [("aa", "Linf"), ("pgd-20", "L1"), ("natural", "Linf")])
def test_a_curve_without_a_point_is_refused(attack: str, norm: str):
    with pytest.raises(InputError, match=f"{attack}@{norm} names no probe; there are: natural, pgd-20@Linf"):
        SMALL.curve(attack, norm)


@given(PREDICTIONS)
def test_classes_add_up_to_the_whole(rows: list[tuple[int, ...]]):
    label, predicted, *_ = np.array(rows, dtype=np.int64).T
    result = Outcome(label, {"natural": predicted})
    counts = np.bincount(label)
    correct = np.nansum(result.per_class() * counts)
    assert correct / len(label) == pytest.approx(result.accuracy())


def test_intervals_follow_the_kind_of_number():
    assert SMALL.interval() == wilson_interval(4 / 6, 6)
    assert SMALL.interval("pgd-20", "worst") == wilson_interval(1 / 6, 6)
    scores = np.array([1, 0.5, 0.5, 0, 0, 0])
    worth = 6 * (1 / 3) * (2 / 3) / scores.var()
    assert worth > 6 and SMALL.interval("pgd-20", "mean") == pytest.approx(wilson_interval(1 / 3, worth))


@pytest.mark.parametrize(("right", "share"), [((0, 0), 0.0), ((4, 4), 1.0), ((4, 0), 0.5)])
def test_the_interval_of_a_mean_is_never_a_point(right: tuple[int, int], share: float):
    label = np.zeros(4, np.int64)
    message = {
        f"aa@{norm}:1": (np.arange(4) >= count).astype(np.int64)
        for norm, count in zip(("L1", "L2"), right, strict=True)
    }
    result = Outcome(label, {"natural": label, **message})
    assert result.accuracy("aa", "mean") == share and result.interval("aa", "mean") == wilson_interval(
        share, 4
    )


@given(st.integers(2, 60), st.integers(1, 9), st.integers(0, 9))
def test_a_mean_over_probes_is_at_least_as_sure_as_one(images: int, probes: int, seed: int):
    chance = np.random.default_rng(seed)
    label = np.zeros(images, np.int64)
    result = Outcome(label, {f"aa@L2:{k}": chance.integers(0, 2, images) for k in range(1, probes + 1)})
    (low, high), plain = result.interval("aa", "mean"), wilson_interval(result.mean("aa"), images)
    assert plain[0] - 1e-9 <= low <= result.mean("aa") <= high <= plain[1] + 1e-9


@pytest.mark.parametrize(
    ("attack", "threat", "message"),
    [
        ("pgd", None, "pgd names 0 probes, expected one; there are: natural, pgd-20@Linf:8/255, pgd-20@L2"),
        ("pgd-20", None, "pgd-20 names 2 probes, expected one; there are: natural"),
        ("pgd-20", "L1", "pgd-20@L1 names 0 probes"),
        ("pgd-20", "Linf:8", "pgd-20@Linf:8 names 0 probes"),
        ("natural", "Linf", "natural@Linf names 0 probes"),
        ("aa", "worst", "aa@worst names 0 probes"),
    ],
)
def test_error_on_an_unknown_probe_lists_the_probes(attack: str, threat: str | None, message: str):
    for ask in (SMALL.accuracy, SMALL.per_class, SMALL.interval):
        with pytest.raises(InputError, match=message):
            ask(attack, threat)


def test_norm_with_two_budgets_is_ambiguous():
    two = Outcome(ints(0), {"a@Linf:4/255": ints(0), "a@Linf:8/255": ints(1)})
    with pytest.raises(InputError, match="a@Linf names 2 probes"):
        two.accuracy("a", "Linf")
    assert two.accuracy("a", "Linf:4/255") == 1


def test_outcome_round_trips_through_a_file(tmp_path: Path):
    facts = {"seed": 3, "batch_size": 125, "selected_on": "test", "nested": {"a": [1, 2.5, None]}}
    before = Outcome(SMALL.label, SMALL.predicted, facts)
    before.save(tmp_path / "one.safetensors")
    after = Outcome.load(tmp_path / "one.safetensors")
    assert after.facts == facts
    assert list(after.predicted) == list(before.predicted)
    assert np.array_equal(after.label, before.label)
    assert all(np.array_equal(after.predicted[name], before.predicted[name]) for name in before.predicted)
    assert all(array.dtype == np.int64 for array in after.predicted.values())
    after.save(tmp_path / "two.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.safetensors", "two.safetensors"]


def test_paths_of_files_may_be_texts(tmp_path: Path):
    SMALL.save(str(tmp_path / "one.safetensors"))
    assert np.array_equal(Outcome.load(str(tmp_path / "one.safetensors")).label, SMALL.label)


def test_equal_outcomes_give_equal_bytes_in_whatever_layout_and_order_of_facts(tmp_path: Path):
    strided = {name: np.stack([array, array], axis=1)[:, 0] for name, array in SMALL.predicted.items()}
    Outcome(SMALL.label, SMALL.predicted, {"a": 1, "b": 2}).save(tmp_path / "one")
    Outcome(SMALL.label, strided, {"b": 2, "a": 1}).save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_another_file_is_not_taken_for_an_outcome(tmp_path: Path):
    save_file({"weight": np.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(RunError, match=r"weights\.safetensors: .*not written by .*; it has: weight"):
        Outcome.load(tmp_path / "weights.safetensors")
    write_arrays(tmp_path / "shard", {"row": np.zeros(3)}, {"attack": "pgd"})
    for name, reason in (("shard", "it is not an outcome"), ("missing", "No such file")):
        with pytest.raises(RunError, match=f"{name}: cannot be read .*{reason}"):
            Outcome.load(tmp_path / name)


def test_damage_never_changes_a_number(tmp_path: Path):
    file = tmp_path / "one.safetensors"
    before = Outcome(SMALL.label, SMALL.predicted, {"seed": 3, "flags": ["a"]})
    before.save(file)
    refused = 0
    for name, damaged in damages(file.read_bytes(), 400):
        file.write_bytes(damaged)
        try:
            after = Outcome.load(file)
        except RunError as error:
            assert "one.safetensors: cannot be read" in str(error) and "evaluate again" in str(error), name
            refused += 1
            continue
        assert after.facts == before.facts and np.array_equal(after.label, before.label), name
        assert all(np.array_equal(after.predicted[key], before.predicted[key]) for key in before.predicted)
    assert refused > 450


def cascade(facts: dict[str, Any] | None = None) -> Outcome:
    """Ten images, all of class 0: two wrong at once, three broken by stage 1, one by stage 2, two by 4."""
    stage = ints(0, 0, 1, 1, 1, 2, 4, 4, -1, -1)
    natural, fooled = (stage == 0).astype(np.int64), (stage >= 0).astype(np.int64)
    far = np.where(stage > 0, stage / 10, np.where(stage == 0, 0, np.nan))
    probe = "aa@Linf:8/255"
    return Outcome(
        np.zeros(10, np.int64), {"natural": natural, probe: fooled}, facts or {}, {probe: far}, {probe: stage}
    )


def test_accuracy_falls_from_stage_to_stage_and_ends_at_the_probes_own():
    result = cascade()
    assert result.accuracy() == 0.8
    assert result.accuracy_by_stage("aa@Linf:8/255") == result.accuracy_by_stage("aa") == [0.5, 0.4, 0.4, 0.2]
    assert result.accuracy_by_stage("aa")[-1] == result.accuracy("aa")


def test_final_stages_without_success_are_counted_by_their_names():
    named = cascade({"stages": {"aa@Linf:8/255": ["a", "b", "c", "d", "e", "f"]}})
    assert named.accuracy_by_stage("aa") == [0.5, 0.4, 0.4, 0.2, 0.2, 0.2]
    whole = Outcome(ints(0), {"aa": ints(0)}, {"stages": {"aa": ["a", "b"]}}, stage={"aa": ints(-1)})
    assert whole.accuracy_by_stage("aa") == [1.0, 1.0]


def test_predictions_decide_over_stages():
    # The attack believed to have broken the first image; the network itself gets it right.
    result = Outcome(ints(0, 0), {"aa": ints(0, 1)}, stage={"aa": ints(1, 2)})
    assert result.accuracy_by_stage("aa") == [1.0, 0.5]
    assert result.accuracy_by_stage("aa")[-1] == result.accuracy("aa")


def test_a_probe_without_stages_is_named():
    with pytest.raises(InputError, match=r"pgd-20@Linf:8/255 has no stages; these have: none"):
        SMALL.accuracy_by_stage(LINF)
    with pytest.raises(InputError, match="pgd-20 names 2 probes"):
        SMALL.accuracy_by_stage("pgd-20")


@pytest.mark.parametrize("extra", [{"distance": {"x": np.zeros(1)}}, {"stage": {"x": ints(0)}}])
def test_numbers_of_an_unknown_probe_are_refused(extra: dict[str, Any]):
    with pytest.raises(ValueError, match=r"of x: no such probe, or not one number for every image"):
        Outcome(ints(0), {"natural": ints(0)}, **extra)


@pytest.mark.parametrize("extra", [{"predicted": {"a": ints(0)}}, {"distance": {"a": np.zeros(3)}}])
def test_too_few_or_too_many_numbers_are_refused(extra: dict[str, Any]):
    with pytest.raises(ValueError, match="of a: no such probe, or not one number for every image"):
        Outcome(ints(0, 1), **dict[str, Any]({"predicted": {"a": ints(0, 0)}, **extra}))


def test_distances_and_stages_are_read_as_written(tmp_path: Path):
    before = cascade()
    before.save(tmp_path / "one")
    after = Outcome.load(tmp_path / "one")
    for old, new in ((before.distance, after.distance), (before.stage, after.stage)):
        assert list(old) == list(new) == ["aa@Linf:8/255"]
    assert np.array_equal(after.distance["aa@Linf:8/255"], before.distance["aa@Linf:8/255"], equal_nan=True)
    assert np.array_equal(after.stage["aa@Linf:8/255"], before.stage["aa@Linf:8/255"])
    assert after.distance["aa@Linf:8/255"].dtype == np.float64
    assert after.stage["aa@Linf:8/255"].dtype == np.int64
    after.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_all_forms_of_nan_give_the_same_bytes(tmp_path: Path):
    plain = np.array([1.0, np.nan])
    other = plain.copy()
    other.view(np.uint64)[1] |= 1 << 63 | 5
    assert plain.tobytes() != other.tobytes()
    for name, far in (("one", plain), ("two", other)):
        Outcome(ints(0, 0), {"a": ints(1, 0)}, distance={"a": far}).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_file_without_distances_and_stages_is_read(tmp_path: Path):
    content = {"facts": {"seed": 1}, "probes": ["natural"], "format": FORMAT_VERSION}
    arrays = {"label": ints(0, 1), "predicted/natural": ints(0, 0)}
    write_arrays(tmp_path / "old", arrays, content)
    result = Outcome.load(tmp_path / "old")
    assert result.accuracy() == 0.5 and result.facts == {"seed": 1}
    assert result.distance == result.stage == {}
    result.save(tmp_path / "new")
    assert (tmp_path / "old").read_bytes() == (tmp_path / "new").read_bytes()


@pytest.mark.parametrize("version", [0, FORMAT_VERSION + 1, "1", None])
def test_a_file_in_another_format_is_refused(version: object, tmp_path: Path):
    arrays = {"label": ints(0, 1), "predicted/natural": ints(0, 0)}
    write_arrays(tmp_path / "new", arrays, {"facts": {}, "probes": ["natural"], "format": version})
    got = "no format version" if version is None else f"format version {version!r}"
    with pytest.raises(RunError, match=f"new: got {got}, expected format version {FORMAT_VERSION}; use"):
        Outcome.load(tmp_path / "new")


def test_two_networks_are_compared_image_by_image():
    other = Outcome(
        SMALL.label,
        {"natural": ints(0, 1, 1, 0, 3, 1), LINF: ints(1, 0, 0, 1, 3, 3), L2: ints(0, 1, 1, 1, 1, 1)},
    )
    #                                               natural 1 1 1 1 0 0 and 1 0 1 0 1 0
    assert SMALL.mcnemar(other) == McNemar(2, 2, 1, 1)
    assert other.mcnemar(SMALL) == McNemar(2, 1, 2, 1)
    #                                                  Linf 1 0 1 0 0 0 and 0 1 0 1 1 1
    assert SMALL.mcnemar(other, "pgd-20", "Linf") == McNemar(0, 2, 4, 0)
    #                                                 worst 1 0 0 0 0 0 and 0 0 0 1 0 0
    assert SMALL.mcnemar(other, "pgd-20", "worst") == McNemar(0, 1, 1, 4)
    paired = SMALL.mcnemar(other)
    assert paired.difference == pytest.approx(SMALL.accuracy() - other.accuracy())


def test_only_the_same_images_under_the_same_threats_are_compared():
    label = ints(0, 0, 1, 1, 3, 2)
    with pytest.raises(ValueError, match="mcnemar: got outcomes with different labels"):
        SMALL.mcnemar(Outcome(label, SMALL.predicted))
    with pytest.raises(ValueError, match="mcnemar: got outcomes with different labels"):
        SMALL.mcnemar(Outcome(ints(0), {"natural": ints(0)}))
    fewer = Outcome(SMALL.label, {"pgd-20@Linf:4/255": SMALL.label})
    for threat in ("worst", "Linf"):
        with pytest.raises(
            ValueError, match=r"mcnemar: got \w+ of \['pgd-20@Linf:8/255'.*'pgd-20@Linf:4/255'"
        ):
            SMALL.mcnemar(fewer, "pgd-20", threat)
    with pytest.raises(ValueError, match=r"mcnemar: got mean of .* expected the same yes or no"):
        SMALL.mcnemar(SMALL, "pgd-20", "mean")


def share(n: int, correct: int) -> np.ndarray:
    return (np.arange(n) >= correct).astype(np.int64)


def test_an_outcome_prints_as_one_line():
    result = Outcome(
        np.zeros(10_000, np.int64), {"natural": share(10_000, 8420), "aa@Linf:8/255": share(10_000, 4890)}
    )
    assert str(result) == "natural 84.20  aa@Linf:8/255 48.90 [47.92, 49.88]  n=10000"


def test_worst_and_mean_are_printed_where_there_are_several_threats():
    assert str(SMALL).split("  ") == [
        "natural 66.67",
        "pgd-20@Linf:8/255 33.33 [9.68, 70.00]",
        "pgd-20@L2:128/255 33.33 [9.68, 70.00]",
        "cw@L1:12 0.00 [0.00, 39.03]",
        "pgd-20 worst 16.67 [3.01, 56.35]",
        "pgd-20 mean 33.33 [12.45, 63.74]",
        "n=6",
    ]


def test_columns_begin_with_natural_and_end_with_what_is_derived():
    names = ["b@L2:1", "a@Linf:1", "natural", "b@L1:1", "b@L1:2"]
    result = Outcome(ints(0), {name: ints(0) for name in names})
    assert result.columns() == [
        *((name, None) for name in ("natural", "b@L2:1", "a@Linf:1", "b@L1:1", "b@L1:2")),
        ("b", "worst"),
        ("b", "mean"),
    ]


@pytest.mark.parametrize("style", ["markdown", "latex", "csv", "json"])
def test_a_table_of_one_outcome_is_that_of_the_tables(style: str):
    assert SMALL.table(style) == render({"network": SMALL}, style)
    assert SMALL.table(style, {"name": "ours"}) == render({"ours": SMALL}, style)


def test_results_can_be_read_without_torch(tmp_path: Path):
    SMALL.save(tmp_path / "x.safetensors")
    # The package itself imports torch, so an empty one stands for it.
    code = f"""
import sys, types
from pathlib import Path
package = types.ModuleType("allrounder")
package.__path__ = [{str(Path(allrounder.report.outcome.__file__).parent.parent)!r}]
sys.modules["allrounder"] = package
from allrounder.report.outcome import Outcome
result = Outcome.load(Path({str(tmp_path / "x.safetensors")!r}))
assert "| 16.67 (" in result.table() and str(result)
print(result.worst("pgd-20"))
print(*sorted(name for name in sys.modules if name.startswith("allrounder.")))
assert not {{"torch", "pydantic", "rich"}} & set(sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    worst, modules = result.stdout.splitlines()
    assert float(worst) == 1 / 6
    assert modules.split() == [
        *("allrounder.config", "allrounder.config.text", "allrounder.config.toml", "allrounder.errors"),
        "allrounder.report",
        *(
            f"allrounder.report.{name}"
            for name in (
                *("calibration", "corruption_metrics", "footnotes", "outcome", "render"),
                *("robustbench", "statistics", "tables"),
            )
        ),
        *("allrounder.system", "allrounder.system.checked_files", "allrounder.system.field_checks"),
        *("allrounder.system.files", "allrounder.system.summary"),
    ]


def test_differences_are_listed_probe_by_probe():
    label = np.array([0, 1, 2])
    one = Outcome(label, {"natural": np.array([0, 1, 2]), "pgd@Linf:1": np.array([0, 2, 1])})
    two = Outcome(label, {"pgd@Linf:1": np.array([0, 1, 0]), "natural": np.array([0, 1, 2])})
    assert one.disagreements(two) == {"natural": [], "pgd@Linf:1": [1, 2]}
    with pytest.raises(ValueError, match="expected the same images"):
        one.disagreements(Outcome(label[::-1].copy(), one.predicted))
