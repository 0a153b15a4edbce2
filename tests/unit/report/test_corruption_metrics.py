"""What is derived from predictions on changed images, and the tables of it."""

from __future__ import annotations

import csv
import io
import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from allrounder.data.corruptions import CORRUPTIONS
from allrounder.data.corruptions.perturbations import PERTURBATIONS
from allrounder.errors import InputError
from allrounder.report.corruption_metrics import STANDARD_SHIFTS, ShiftId, average_columns, parse_shift_id
from allrounder.report.outcome import Outcome
from allrounder.report.reliability import compute_flags
from allrounder.report.render import render
from allrounder.report.statistics import wilson_interval

LABEL = np.array([0, 1, 2, 0])


def shown(*right: int) -> np.ndarray:
    """Right about these images, and wrong about the others."""
    return np.where(np.isin(np.arange(4), right), LABEL, LABEL + 3)


def outcome(source: str = "generated", drop: str = "") -> Outcome:
    """Right about one image less at every severity; and about the first in all frames but some."""
    predicted = {"natural": LABEL, "pgd-20@Linf:8/255": shown(0), "pgd-20@L2:0.5": shown(0, 1)}
    for number, name in enumerate(STANDARD_SHIFTS["c"]):
        for severity in range(1, 6):
            best = (0, 1, 2, 3)[: max(0, 5 - severity)]
            predicted[f"{name}@c-{source}:{severity}"] = shown(*best) if number else shown(0, 1, 2, 3)
    predicted[f"spatter@c-{source}:5"] = shown()
    for name in STANDARD_SHIFTS["p"]:
        for frame in range(4):
            predicted[f"{name}@p-{source}:{frame}"] = shown(0, 1) if frame < 3 else shown(0, 2)
    predicted = {name: array for name, array in predicted.items() if not drop or drop not in name}
    facts = {"ood": {"c": f"{source} so and so", "p": f"{source} likewise"}}
    return Outcome(LABEL, predicted, facts)


def test_the_averages_are_over_what_the_package_makes():
    assert STANDARD_SHIFTS["c"] == tuple(CORRUPTIONS)[:15]
    others = ("snow", "speckle_noise", "gaussian_blur", "shear")
    assert STANDARD_SHIFTS["p"] == tuple(name for name in PERTURBATIONS if name not in others)
    assert len(STANDARD_SHIFTS["p"]) == 10


def test_other_perturbations_have_their_own_column_and_enter_no_mean():
    before = outcome()
    frames = {f"snow@p-generated:{frame}": shown(0) if frame % 2 else shown() for frame in (2, 0, 1, 3)}
    after = Outcome(LABEL, {**before.predicted, **frames}, before.facts)
    assert after.columns() == [*before.columns(), ("snow", "all frames (generated)")]
    assert after.accuracy("snow", "all frames") == 1 / 8 and after.flip_rate("snow") == 1 / 4
    assert after.accuracy("perturbations") == before.accuracy("perturbations")
    assert after.flip_rate() == before.flip_rate()
    lines = after.table("perturbations").splitlines()
    assert [line for line in lines if line.startswith("| mean")] == [
        line for line in before.table("perturbations").splitlines() if line.startswith("| mean")
    ]
    assert any(line.startswith("| snow ") for line in lines)
    alone = Outcome(LABEL, {"natural": LABEL, **frames})
    assert "| mean" not in alone.table("perturbations")
    with pytest.raises(InputError, match="no standard perturbation was measured; choose one of: snow"):
        alone.flip_rate()


def test_tables_list_the_perturbations_of_a_mean():
    ten = ", ".join(STANDARD_SHIFTS["p"])
    assert f"Means over perturbations (generated) cover {ten}." in outcome().table()
    nine = ten.replace("tilt, ", "")
    assert f"Means over perturbations (official) cover {nine}." in outcome("official", "tilt@p").table()


def test_shift_ids_round_trip_through_text():
    view = ShiftId("fog", "c", "official", 5)
    assert str(view) == "fog@c-official:5" and parse_shift_id(str(view)) == view
    assert [parse_shift_id(name) for name in ("natural", "pgd-20@Linf:8/255", "fog@c:5", "aa@L2:0.5")] == [
        None
    ] * 4


def test_columns_name_the_image_set():
    for source in ("generated", "official"):
        assert outcome(source).columns() == [
            ("natural", None),
            ("pgd-20@Linf:8/255", None),
            ("pgd-20@L2:0.5", None),
            ("pgd-20", "worst"),
            ("pgd-20", "mean"),
            ("corruptions", f"severity 5 ({source})"),
            ("corruptions", f"severities 1-5 ({source})"),
            ("spatter", f"severity 5 ({source})"),
            ("perturbations", f"all frames ({source})"),
        ]


def test_averages_are_those_of_the_papers():
    one = outcome()
    # At severity 5 one of fifteen corruptions leaves all four right, and the others none.
    assert one.accuracy("corruptions", "severity 5") == pytest.approx(1 / 15)
    others = (1 + 0.75 + 0.5 + 0.25 + 0) / 5
    assert one.accuracy("corruptions", "severities 1-5") == pytest.approx((1 + 14 * others) / 15)
    assert one.accuracy("perturbations") == pytest.approx(0.5)
    assert one.per_class("perturbations").tolist() == pytest.approx([0.5, 0.75, 0.25])
    low, high = one.interval("corruptions", "severity 5")
    assert low < 1 / 15 < high
    assert one.corruptions()["fog"] == {1: 1.0, 2: 0.75, 3: 0.5, 4: 0.25, 5: 0.0}
    assert one.corruptions()["spatter"] == {5: 0.0}
    assert len(one.probe_names("corruptions", "severities 1-5")) == 75


def test_ambiguous_average_is_refused():
    with pytest.raises(InputError, match="corruptions names 0 probes"):
        outcome().accuracy("corruptions")
    with pytest.raises(ValueError, match="expected the same yes or no"):
        outcome().mcnemar(outcome(), "corruptions", "severity 5")


def test_perturbations_of_more_frames_do_not_count_more():
    label = np.zeros(2, np.int64)
    predicted = {"natural": label, "rotate@p-official:0": label, "scale@p-official:0": label + 1}
    predicted |= {f"scale@p-official:{frame}": label + 1 for frame in range(1, 9)}
    assert Outcome(label, predicted).accuracy("perturbations") == 0.5


def test_flips_compare_with_the_frame_before_or_under_noise_with_the_first():
    frames = [0, 1, 1, 0, 0]
    label = np.zeros(1, np.int64)
    predicted = {"natural": label}
    for name in ("rotate", "gaussian_noise"):
        predicted |= {
            f"{name}@p-generated:{k}": np.array([predictions]) for k, predictions in enumerate(frames)
        }
    one = Outcome(label, predicted)
    assert one.flip_rate("rotate") == 2 / 4
    assert one.flip_rate("gaussian_noise") == 2 / 4
    predicted["rotate@p-generated:3"] = predicted["gaussian_noise@p-generated:3"] = np.array([1])
    one = Outcome(label, predicted)
    assert one.flip_rate("rotate") == 2 / 4
    assert one.flip_rate("gaussian_noise") == 3 / 4
    assert one.flip_rate() == 5 / 8
    with pytest.raises(InputError, match="tilt was not measured; there are: rotate, gaussian_noise"):
        one.flip_rate("tilt")
    with pytest.raises(InputError, match="any was not measured; there are: none"):
        Outcome(label, {"natural": label}).flip_rate()


@given(st.lists(st.integers(0, 2), min_size=12, max_size=12), st.randoms())
def test_frames_have_their_order_by_number(predictions: list[int], chance: random.Random):
    label = np.zeros(1, np.int64)
    frames = [(f"tilt@p-generated:{k}", np.array([value])) for k, value in enumerate(predictions)]
    expected = sum(a != b for a, b in pairwise(predictions)) / 11
    chance.shuffle(frames)
    assert Outcome(label, dict(frames)).flip_rate() == pytest.approx(expected)


def test_title_counts_an_incomplete_average():
    some = outcome(drop="frost@c")
    assert ("corruptions", "severity 5 (generated, 14 of 15)") in some.columns()
    titles = [how for _, how in outcome(drop="fog@c-generated:3").columns()]
    assert "severity 5 (generated)" in titles and "severities 1-5 (generated, 14 of 15)" in titles
    assert average_columns(["natural"]) == {}


def test_corruption_in_no_average_has_its_own_column():
    label = np.zeros(2, np.int64)
    names = ("fog@c-generated:3", "spatter@c-generated:1", "spatter@c-generated:5", "snow@c-official:5")
    one = Outcome(label, {"natural": label, **{name: label + (k == 2) for k, name in enumerate(names)}})
    assert one.columns()[1:] == [
        ("corruptions", "severity 5 (official, 1 of 15)"),
        ("corruptions", "severity 3 (generated, 1 of 15)"),
        ("spatter", "severity 1 (generated)"),
        ("spatter", "severity 5 (generated)"),
    ]
    assert one.accuracy("spatter", "severity 1") == 1 and one.accuracy("spatter", "severity 5") == 0
    assert one.interval("spatter", "severity 5") == wilson_interval(0.0, 2)
    for style in ("markdown", "csv", "json"):
        assert "spatter severity 5 (generated)" in render({"x": one}, style)


def test_two_sources_are_shown_separately():
    parts = [outcome(), outcome("official", drop="fog")]
    both = Outcome(LABEL, {name: seen for part in parts for name, seen in part.predicted.items()})
    accuracies = both.corruptions()
    assert accuracies["fog (generated)"][2] == 0.75 and accuracies["snow (official)"].keys() == {
        1,
        2,
        3,
        4,
        5,
    }
    assert len(accuracies) == 16 + 15 and len(both.perturbations()) == 20
    assert both.flip_rate("tilt (official)") == parts[1].flip_rate("tilt")
    with pytest.raises(InputError, match="official and generated do not mix; choose one of: gaussian_noise"):
        both.flip_rate()
    assert "| fog (generated) | 100.00 |" in both.table("corruptions")
    assert "| mean |" not in both.table("perturbations")
    assert "Flip rate (official): " in both.table() and "Flip rate (generated): " in both.table()


def test_footnote_counts_an_incomplete_flip_rate():
    assert "the mean over 10 perturbations." in outcome().table()
    assert "the mean over 9 of 10 perturbations." in outcome(drop="tilt@p").table()


def test_one_table_shows_both_sources_apart():
    text = render({"ours": outcome(), "theirs": outcome("official")})
    header, _, ours, theirs = (line.split(" | ") for line in text.splitlines()[:4])
    assert len(header) == 1 + 5 + 8
    at = next(i for i, cell in enumerate(header) if cell == "corruptions severity 5 (generated)")
    assert ours[at].startswith("6.67 (") and theirs[at] == "-"
    assert "ours: Corruptions: generated so and so." in text
    assert "ours: Flip rate (generated): " in text


@pytest.mark.parametrize("style", ["latex", "csv", "json"])
def test_every_style_shows_the_averages(style: str):
    text = render({"ours": outcome()}, style)
    assert "severity 5 (generated)" in text and "all frames (generated)" in text
    assert "fog@" not in text
    if style == "json":
        assert json.loads(text)["rows"][0]["flip_rates"]["tilt"] == outcome().flip_rate("tilt")


def test_table_of_corruptions():
    lines = outcome().table("corruptions").splitlines()
    assert lines[0].split(" | ")[1:3] == ["severity 1", "severity 2"]
    row = next(line for line in lines if line.startswith("| fog"))
    assert row == "| fog | 100.00 | 75.00 | 50.00 | 25.00 | 0.00 | 50.00 |"
    assert "| spatter | - | - | - | - | 0.00 | - |" in lines
    assert any(line.startswith("corruptions, severity 5 (generated): 6.67 (") for line in lines)
    assert "Corruptions: generated so and so." in lines


def test_table_of_perturbations():
    lines = outcome("official").table("perturbations").splitlines()
    assert "| tilt | 50.00 | 16.67 |" in lines and "| mean | 50.00 | 16.67 |" in lines
    assert any(line.startswith("perturbations, all frames (official): 50.00") for line in lines)


def test_corruption_csv_has_a_header_of_two_lines():
    rows = list(
        csv.reader(io.StringIO(render({"a": outcome(), "b": outcome(drop="frost@c")}, "corruptions-csv")))
    )
    assert len(rows) == 4
    at = next(
        i
        for i, (name, severity) in enumerate(zip(*rows[:2], strict=True))
        if (name, severity) == ("frost", "4")
    )
    assert rows[2][at] == "0.25" and rows[3][at] == ""
    assert rows[2][-1] == "generated so and so"


@pytest.mark.parametrize("style", ["corruptions", "perturbations", "corruptions-csv"])
def test_table_without_shifts_is_refused(style: str):
    with pytest.raises(ValueError, match=f"table: x has no {style.split('-')[0]}"):
        render({"x": Outcome(LABEL, {"natural": LABEL})}, style)


def test_hundreds_of_predictions_are_stored_in_a_byte_each(tmp_path: Path):
    one, file = outcome(), tmp_path / "outcome.safetensors"
    one.save(file)
    with safe_open(file, framework="numpy") as opened:
        assert opened.get_tensor("predicted/fog@c-generated:5").dtype == np.uint8
        assert opened.get_tensor("predicted/natural").dtype == np.int64
    again = Outcome.load(file)
    assert list(again.predicted) == list(one.predicted)
    for name, array in again.predicted.items():
        assert array.dtype == np.int64 and np.array_equal(array, one.predicted[name])
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()


def test_more_than_256_classes_are_stored_whole(tmp_path: Path):
    label = np.array([0, 999])
    Outcome(label, {"natural": label, "fog@c-generated:1": label}).save(tmp_path / "x.safetensors")
    assert Outcome.load(tmp_path / "x.safetensors").corruptions() == {"fog": {1: 1.0}}


def test_corruptions_raise_no_flags():
    assert compute_flags(outcome()) == []
