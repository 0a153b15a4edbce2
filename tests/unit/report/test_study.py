"""Tables of studies, derived by hand from predictions."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence

import numpy as np
import pytest

from allrounder.report.outcome import Outcome
from allrounder.report.seed_statistics import SeedComparison
from allrounder.report.statistics import McNemar
from allrounder.report.study import StudyResults, render_study
from allrounder.report.tables import format_rows

LABEL = np.zeros(200, np.int64)


def outcome(natural: int, linf: int, l2: int, seed: int = 0) -> Outcome:
    """So many of 200 images right: the first ones."""
    predicted = {"natural": natural, "pgd-20@Linf:0.1": linf, "pgd-20@L2:1": l2}
    arrays = {name: (np.arange(200) >= count).astype(np.int64) for name, count in predicted.items()}
    return Outcome(
        LABEL, arrays, {"seed": seed, "batch_size": 8, "budget": "full", "selected_on": "validation"}
    )


def results(missing: Sequence[str] = ()) -> StudyResults:
    rows = {
        "NT": {0: outcome(180, 2, 4), 1: outcome(176, 0, 2)},
        "AT": {0: outcome(150, 100, 80), 1: outcome(152, 104, 84)},
        "alike": {0: outcome(151, 100, 80), 1: outcome(152, 104, 84)},
    }
    return StudyResults(
        rows,
        {"AT": {"natural": 84.32, "pgd-20 mean": 51.0}},
        {"NT": "1/1", "AT": "11/11"},
        "AT",
        "Table 1",
        missing,
    )


def formatted(study: StudyResults, style: str = "text") -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table, as texts."""
    table = study.to_table(style)
    return list(table.header), format_rows(table, style)


def test_means_and_deviations_are_those_of_the_seeds():
    head, rows = formatted(results(), "markdown")
    at = dict(zip(head, rows[1], strict=False))
    shares = [150 / 2, 152 / 2]
    expected = f"{statistics.fmean(shares):.2f} +- {statistics.stdev(shares):.2f}"
    assert at["row"] == "AT" and expected in at["natural"]
    # Worst: the first 80 and 84 images are right under both; mean: (100 + 80) / 2 and (104 + 84) / 2 of 200.
    assert "41.00 +- 1.41" in at["pgd-20 worst"]
    assert "46.00 +- 1.41" in at["pgd-20 mean (the papers' Union)"]


def test_the_best_is_bold_the_second_underlined_and_the_papers_numbers_stand_apart():
    head, rows = formatted(results(), "markdown")
    assert head[:3] == ["row", "natural", "paper"] and [row[2] for row in rows] == ["-", "84.32", "-"]
    assert rows[0][1].startswith("**89.00") and rows[2][1].startswith("<ins>75.75")
    assert [row[-1] for row in rows] == ["1/1", "11/11", "-"]


def test_rows_that_differ_from_the_reference_are_marked_by_a_test_over_seeds_and_images():
    study = results()
    paired = study.compare_with_reference("NT", ("natural", None))
    assert isinstance(paired, SeedComparison) and paired.difference == pytest.approx((30 + 24) / 400)
    assert study.compare_with_reference("AT", ("natural", None)) is None
    cells = study.cells()
    assert [cell.differs for cell in cells["NT"] if cell] == [True, True, True, True, False]
    assert not any(cell.differs for cell in [*cells["AT"], *cells["alike"]] if cell)


def test_a_difference_within_the_variation_of_trainings_is_not_marked():
    # McNemar's test over all seeds together would mark it: 60 images against none.
    rows = {"AT": {0: outcome(100, 0, 0), 1: outcome(140, 0, 0)}}
    study = StudyResults({**rows, "new": {0: outcome(120, 0, 0), 1: outcome(180, 0, 0)}})
    assert [cell and cell.differs for cell in study.cells()["new"]] == [False] * 5
    assert "differs from" not in render_study(study)


def test_one_seed_is_compared_by_mcnemars_test_and_the_notes_name_its_limit():
    study = StudyResults({"AT": {0: outcome(150, 100, 80)}, "NT": {0: outcome(180, 2, 4)}})
    paired = study.compare_with_reference("NT", ("natural", None))
    assert isinstance(paired, McNemar) and (paired.only_self, paired.only_other) == (30, 0)
    text = render_study(study)
    assert "a paired test over images (McNemar; with one seed it does not account for the variation" in text
    assert "seeds and paired images" not in text


def test_several_seeds_have_an_interval_over_seeds_and_images_if_the_images_are_the_same():
    (cell, *_) = results().cells()["AT"]
    assert cell is not None and cell.interval is not None
    low, high = outcome(151, 100, 80).interval()  # of one seed with the same mean
    assert cell.interval[0] < low < 0.755 < high < cell.interval[1]
    other = Outcome(np.ones(10, np.int64), {"natural": np.ones(10, np.int64)}, {"seed": 0})
    (mixed, *_) = StudyResults({"AT": {0: outcome(150, 100, 80), 1: other}}).cells()["AT"]
    assert mixed is not None and mixed.interval is None


def test_one_seed_has_the_interval_over_images():
    study = StudyResults({"only": {0: outcome(150, 100, 80)}})
    low, high = outcome(150, 100, 80).interval()
    assert f"75.00 ({100 * low:.2f}-{100 * high:.2f})" in render_study(study)


def test_csv_has_every_training_and_json_every_number():
    rows = list(csv.DictReader(io.StringIO(render_study(results(), "csv"))))
    assert len(rows) == 6 and float(rows[2]["natural"]) == 0.75 and rows[3]["seed"] == "1"
    content = json.loads(render_study(results(missing=["NT, seed 2"]), "json"))
    assert content["reference"] == "AT" and content["missing"] == ["NT, seed 2"]
    natural = content["rows"][1]["results"]["natural"]
    assert natural["seeds"] == [0.75, 0.76] and natural["paper"] == 84.32 and natural["p"] is None


def test_notes_of_a_study():
    text = render_study(results(missing=["NT, seed 2"]))
    for said in (
        "over seeds 0, 1",
        "true union",
        'differs from "AT" by a test over seeds and paired images',
        "Table 1",
        "MISSING: NT, seed 2",
        "200 images",
    ):
        assert said in text
    assert r"\toprule" in render_study(results(), "latex") and r"$\pm$" in render_study(results(), "latex")
    with pytest.raises(ValueError, match="got style 'html', expected one of markdown"):
        render_study(results(), "html")


def test_preflight_findings_are_notes_below_the_table():
    study = outcome(150, 100, 80)
    doubtful = Outcome(
        study.label, study.predicted, {**study.facts, "findings": ["zero-gradient: of 5 images"]}
    )
    assert "only, seed 3: zero-gradient: of 5 images" in render_study(StudyResults({"only": {3: doubtful}}))


def test_rows_with_other_probes_or_images_are_not_compared():
    other = Outcome(np.ones(10, np.int64), {"natural": np.ones(10, np.int64)}, {"seed": 0})
    study = StudyResults({"AT": {0: outcome(150, 100, 80)}, "other": {0: other}})
    assert study.compare_with_reference("other", ("natural", None)) is None
    assert study.cells()["other"][1] is None and "| - |" in render_study(study)


def test_unfinished_study_has_its_rows():
    empty = StudyResults({"AT": {}, "NT": {}}, cost={"AT": "11/11"})
    assert formatted(empty) == (["row", "cost"], [["AT", "11/11"], ["NT", "-"]])
    assert render_study(empty).splitlines()[2:4] == ["| AT | 11/11 |", "| NT | - |"]
    assert formatted(StudyResults({"AT": {}})) == (["row"], [["AT"]])


def test_titles_of_corrupted_images_are_narrow_on_a_screen():
    arrays = {"natural": LABEL, "fog@c-official:5": LABEL}
    shifted = Outcome(LABEL, arrays, {"seed": 0, "batch_size": 8, "budget": "full"})
    head, _ = formatted(StudyResults({"AT": {0: shifted}}))
    assert head[-1] == "corruptions\nseverity 5\n(official,\n1 of 15)"


def test_minutes_stand_beside_those_of_the_paper_and_are_means_over_seeds():
    timed = {"NT": {0: outcome(180, 2, 4)}, "AT": {0: outcome(150, 100, 80)}}
    study = StudyResults(timed, minutes={"NT": [1.0, 2.0]}, paper_minutes={"AT": 414.0})
    head, rows = formatted(study)
    assert head[-2:] == ["minutes", "paper"]
    assert [row[-2:] for row in rows] == [["1.5", "-"], ["-", "414.0"]]
    assert json.loads(render_study(study, "json"))["rows"][0]["minutes"] == [1.0, 2.0]
