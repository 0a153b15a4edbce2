from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import allrounder.outcome
from allrounder.outcome import Outcome, wilson

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
    found = Outcome(
        label,
        {
            "natural": label,
            "aa@Linf:8/255": (rows >= linf).astype(np.int64),
            "aa@L2:128/255": (rows >= l2).astype(np.int64),
        },
    )
    assert 100 * found.mean("aa") == pytest.approx(union, abs=0.0051)
    assert 100 * found.worst("aa") == pytest.approx(linf / 100)


PREDICTIONS = st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=30)


@given(PREDICTIONS)
def test_worst_is_at_most_each_and_mean_lies_between(rows: list[tuple[int, ...]]):
    label, *predicted = np.array(rows, dtype=np.int64).T
    names = ["a@Linf:1", "a@L2:1", "a@L1:1"]
    found = Outcome(label, dict(zip(names, predicted, strict=True)))
    each = [found.accuracy("a", name.removeprefix("a@")) for name in names]
    assert found.worst("a") <= min(each)
    assert min(each) - 1e-12 <= found.mean("a") <= max(each) + 1e-12
    assert found.mean("a") == pytest.approx(sum(each) / 3)
    assert max(1 - sum(1 - share for share in each), 0) <= found.worst("a") + 1e-12


def test_classes_are_counted_alone_and_a_class_without_images_has_no_number():
    assert SMALL.per_class().tolist()[:2] == [1.0, 1.0]
    assert math.isnan(SMALL.per_class()[2])
    assert SMALL.per_class()[3] == 0
    assert SMALL.per_class("pgd-20", "L2").tolist()[:2] == [1.0, 0.0]
    assert SMALL.per_class("pgd-20", "worst").tolist()[:2] == [0.5, 0.0]
    assert SMALL.per_class("pgd-20", "mean").tolist()[:2] == [0.75, 0.25]


@given(PREDICTIONS)
def test_classes_add_up_to_the_whole(rows: list[tuple[int, ...]]):
    label, predicted, *_ = np.array(rows, dtype=np.int64).T
    found = Outcome(label, {"natural": predicted})
    counts = np.bincount(label)
    correct = np.nansum(found.per_class() * counts)
    assert correct / len(label) == pytest.approx(found.accuracy())


def closed_form(correct: int, n: int) -> tuple[float, float]:
    """The roots of (p - s)^2 = z^2 s (1 - s) / n in s."""
    z, p = 1.959963984540054, correct / n
    a, b, c = 1 + z * z / n, -(2 * p + z * z / n), p * p
    root = math.sqrt(b * b - 4 * a * c)
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


@pytest.mark.parametrize(("correct", "n"), [(1, 2), (3, 10), (842, 1000), (1, 10_000), (9_999, 10_000)])
def test_the_interval_is_wilsons(correct: int, n: int):
    assert wilson(correct / n, n) == pytest.approx(closed_form(correct, n), abs=1e-12)


@given(st.integers(1, 5000))
def test_the_interval_of_none_and_of_all_ends_at_the_share(n: int):
    z2 = 1.959963984540054**2
    assert wilson(0.0, n) == (0.0, pytest.approx(z2 / (n + z2)))
    assert wilson(1.0, n) == (pytest.approx(n / (n + z2)), 1.0)


@given(st.integers(1, 300), st.data())
def test_the_interval_holds_the_share_and_is_the_mirror_of_its_opposite(n: int, data: st.DataObject):
    correct = data.draw(st.integers(0, n))
    low, high = wilson(correct / n, n)
    assert 0 <= low <= correct / n <= high <= 1
    assert wilson(1 - correct / n, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_nothing_is_known_without_images():
    assert wilson(0.0, 0) == (0.0, 1.0)


def test_intervals_follow_the_kind_of_number():
    assert SMALL.interval() == wilson(4 / 6, 6)
    assert SMALL.interval("pgd-20", "worst") == wilson(1 / 6, 6)
    scores = np.array([1, 0.5, 0.5, 0, 0, 0])
    half = 1.959963984540054 * scores.std() / math.sqrt(6)
    low, high = SMALL.interval("pgd-20", "mean")
    assert (low, high) == (pytest.approx(max(scores.mean() - half, 0)), pytest.approx(scores.mean() + half))


@pytest.mark.parametrize(
    ("attack", "threat", "said"),
    [
        ("pgd", None, "pgd names 0 probes, expected one; there are: natural, pgd-20@Linf:8/255, pgd-20@L2"),
        ("pgd-20", None, "pgd-20 names 2 probes, expected one; there are: natural"),
        ("pgd-20", "L1", "pgd-20@L1 names 0 probes"),
        ("pgd-20", "Linf:8", "pgd-20@Linf:8 names 0 probes"),
        ("natural", "Linf", "natural@Linf names 0 probes"),
        ("aa", "worst", "aa@worst names 0 probes"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(attack: str, threat: str | None, said: str):
    for ask in (SMALL.accuracy, SMALL.per_class, SMALL.interval):
        with pytest.raises(KeyError, match=said):
            ask(attack, threat)


def test_a_norm_with_two_budgets_must_be_told_apart():
    two = Outcome(ints(0), {"a@Linf:4/255": ints(0), "a@Linf:8/255": ints(1)})
    with pytest.raises(KeyError, match="a@Linf names 2 probes"):
        two.accuracy("a", "Linf")
    assert two.accuracy("a", "Linf:4/255") == 1


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path):
    facts = {"seed": 3, "lane": 125, "selected_on": "test", "nested": {"a": [1, 2.5, None]}}
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


def test_equal_outcomes_give_equal_bytes_in_whatever_layout_and_order_of_facts(tmp_path: Path):
    strided = {name: np.stack([array, array], axis=1)[:, 0] for name, array in SMALL.predicted.items()}
    Outcome(SMALL.label, SMALL.predicted, {"a": 1, "b": 2}).save(tmp_path / "one")
    Outcome(SMALL.label, strided, {"b": 2, "a": 1}).save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_another_file_is_not_taken_for_an_outcome(tmp_path: Path):
    save_file({"weight": np.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match=r"weights\.safetensors: holds no outcome; it has: weight"):
        Outcome.load(tmp_path / "weights.safetensors")


def test_results_can_be_read_without_torch(tmp_path: Path):
    SMALL.save(tmp_path / "x.safetensors")
    code = f"""
import importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("outcome", {allrounder.outcome.__file__!r})
module = importlib.util.module_from_spec(spec)
sys.modules["outcome"] = module
spec.loader.exec_module(module)
print(module.Outcome.load(Path({str(tmp_path / "x.safetensors")!r})).worst("pgd-20"))
assert not [name for name in sys.modules if name.split(".")[0] in ("torch", "allrounder", "pydantic")]
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(found.stdout) == 1 / 6
