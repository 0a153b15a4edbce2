"""What the page says before its numbers: the judge, the counts, the best rows and the warnings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allrounder.report.entry import Entry, Results
from allrounder.report.outcome import Outcome
from allrounder.report.page.summary import (
    Warnings,
    build_summary,
    collect_warnings,
    describe_judge,
    describe_machine,
)
from tests.support.results import make_outcome, make_results, make_training


def pgd_only(images: int = 10, **facts: object) -> Outcome:
    zeros = np.zeros(images, np.int64)
    return Outcome(zeros, {"natural": zeros, "pgd-20@Linf:8/255": zeros}, facts)


def test_without_autoattack_the_page_says_upper_bound():
    sentence = describe_judge(Results((Entry("a", {0: pgd_only()}),)))
    assert sentence.startswith("PGD only, an upper bound") and "pgd-20" in sentence
    summary = dict(build_summary(Results((Entry("a", {0: pgd_only()}),))))
    assert summary["Judge"] == ["pgd-20, an upper bound"]


def test_rows_without_the_judge_are_named():
    mixed = Results((Entry("a", {0: make_outcome()}), Entry("b", {0: pgd_only()})))
    sentence = describe_judge(mixed)
    assert sentence.startswith("AutoAttack judges") and sentence.endswith("not evaluated with it: b.")
    assert describe_judge(Results((Entry("a"),))) == "No row was evaluated under an attack."


def test_the_summary_counts_rows_images_and_trainings():
    summary = dict(build_summary(make_results(rows=3, seeds=2, images=60)))
    assert summary["Rows"] == ["5, 1 of them not evaluated"] and summary["Studies"] == ["demo"]
    assert summary["Trainings"] == ["7"] and summary["Test images"] == ["60"]
    sizes = {"a": 1000, "a, averaged": 1000, "b": 5}
    different = Results(tuple(Entry(name, {0: pgd_only(count)}) for name, count in sizes.items()))
    assert dict(build_summary(different))["Test images"] == ["1,000: a; a, averaged", "5: b"]


def test_the_best_rows_are_those_with_the_highest_numbers():
    results = make_results()
    summary = dict(build_summary(results))
    cells = {entry.name: entry.cell(("aa", "worst")) for entry in results.evaluated}
    name, best = max(((n, c) for n, c in cells.items() if c), key=lambda pair: pair[1].mean)
    line, measured = summary["Best robust accuracy"]
    assert line.startswith(f"{100 * best.mean:.2f}% (") and line.endswith(f"): {name}")
    assert measured == "Measured: worst of Linf:8/255 and L2:1/2 and L1:12 (AutoAttack)"


def test_all_rows_with_the_best_number_are_named():
    results = Results(tuple(Entry(name, {0: pgd_only()}) for name in ("a, averaged", "b")))
    summary = dict(build_summary(results))
    assert summary["Best natural accuracy"] == ["100.00%: a, averaged; b"]
    assert summary["Best robust accuracy"] == [
        "100.00%: a, averaged; b",
        "Measured: Linf:8/255 (pgd-20 only: an upper bound)",
    ]


def test_the_best_row_is_one_under_the_threats_that_most_rows_have():
    strong, easy = (
        {
            "natural": np.zeros(10, np.int64),
            **{f"aa@{t}": (np.arange(10) >= n).astype(np.int64) for t in threats},
        }
        for n, threats in ((4, ("Linf:8/255", "L2:1/2")), (9, ("Linf:1/255", "L2:1/2")))
    )
    label = np.zeros(10, np.int64)
    rows = {"a": strong, "b": strong, "easy": easy}
    results = Results(tuple(Entry(name, {0: Outcome(label, row)}) for name, row in rows.items()))
    assert dict(build_summary(results))["Best robust accuracy"][0] == "40.00%: a; b"
    warning = "The worst and the mean of AutoAttack are over different threats in different rows."
    assert collect_warnings(results) == [Warnings("", (warning,))]


def test_a_training_with_several_rows_counts_once():
    training = make_training()
    results = Results(tuple(Entry(name, trainings={0: training}) for name in ("global", "linf")))
    assert dict(build_summary(results))["Trainings"] == ["1"]


def test_machines_are_listed_once():
    session = {"time": "now", "platform": "Linux", "device": "cpu", "threads": 1, "torch": "2.13"}
    training = replace(make_training(), sessions=(session, {**session, "time": "later"}))
    results = Results((Entry("a", trainings={0: training, 1: training}),))
    assert dict(build_summary(results))["Machine"] == ["Linux, cpu, threads 1, torch 2.13"]
    assert describe_machine({}) == ""


def test_warnings_are_problems_flags_findings_and_doubtful_facts():
    flagged = pgd_only(
        flags=["Linf:8/255: too weak"], findings=["random: logits"], selected_on="test", extra="1M"
    )
    entries = (
        Entry("fine", {0: pgd_only()}),
        Entry("flagged", {0: flagged, 1: pgd_only(flags=["Linf:8/255: too weak"])}),
        Entry("damaged", problems=("runs/x/recipe.toml: is damaged",)),
        Entry("nothing"),
    )
    assert collect_warnings(Results(entries)) == [
        Warnings(
            "flagged",
            (
                "Linf:8/255: too weak",
                "seed 0: random: logits",
                "seed 0: The weights were selected on the test set, so the numbers are too high.",
                "seed 0: The network was trained with extra data.",
            ),
        ),
        Warnings("damaged", ("runs/x/recipe.toml: is damaged",)),
        Warnings("nothing", ("This row was not evaluated.",)),
    ]


def test_rows_of_different_images_are_a_warning_about_all():
    results = Results((Entry("a", {0: pgd_only(10)}), Entry("b", {0: pgd_only(5)})))
    assert collect_warnings(results) == [Warnings("", ("The rows were not measured on the same images.",))]


def test_rows_with_equal_labels_but_other_images_are_a_warning_about_all():
    results = Results(tuple(Entry(name, {0: pgd_only(data=name)}) for name in ("natural", "changed")))
    assert collect_warnings(results) == [Warnings("", ("The rows were not measured on the same images.",))]
