"""Which rows are compared, and under which attack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allrounder.report.entry import Entry
from allrounder.report.figures.judged import judge_entries, restrict
from allrounder.report.outcome import Outcome

LABEL = np.zeros(10, np.int64)


def outcome(*flags: str, **correct: int) -> Outcome:
    """The first images of every probe are correct; "aa_Linf" names the probe aa@Linf:1."""
    names = {name: name.replace("_", "@") + (":1" if "_" in name else "") for name in correct}
    arrays = {names[name]: (np.arange(10) >= count).astype(np.int64) for name, count in correct.items()}
    return Outcome(LABEL, arrays, {"flags": flags})


def test_rows_without_the_judge_are_left_out_and_named():
    rows = [
        Entry("strong", {0: outcome(natural=9, aa_Linf=4)}),
        Entry("weak", {0: outcome(natural=9, pgd_Linf=8)}),
    ]
    judged = judge_entries(rows)
    assert judged is not None
    assert [entry.name for entry in judged.entries] == ["strong"] and judged.left_out == ("weak",)
    assert judged.notes() == "Left out, without aa@Linf:1: weak."
    assert judged.axis().title == "robust accuracy, Linf:1 (AutoAttack)"


def test_rows_are_compared_under_the_threats_that_most_have():
    both = {"natural": 9, "aa_Linf": 6, "aa_L2": 5}
    rows = [
        Entry("a", {0: outcome(**both)}),
        Entry("b", {0: outcome(**both)}),
        Entry("more", {0: outcome(**both, aa_L1=1)}),
        Entry("less", {0: outcome(natural=9, aa_Linf=6)}),
    ]
    judged = judge_entries(rows)
    assert judged is not None and judged.probes == ("aa@Linf:1", "aa@L2:1") and judged.left_out == ("less",)
    assert judged.column == ("aa", "worst") and judged.norms == ["Linf", "L2"]
    assert [judged.robust_cell(entry).mean for entry in judged.entries] == [0.5, 0.5, 0.5]
    assert judged.robust_cell(judged.entries[2], ["aa@Linf:1"]).mean == 0.6
    assert judged.natural_cell(judged.entries[0]).mean == 0.9


def test_another_attack_than_autoattack_is_called_an_upper_bound():
    judged = judge_entries([Entry("a", {0: outcome("Linf:1: masked", natural=9, pgd_Linf=8)})])
    assert judged is not None
    assert judged.axis().title == "robust accuracy, Linf:1 (pgd only: an upper bound)"
    assert (
        judged.notes() == "pgd only: an upper bound; AutoAttack may leave less. Evaluations with warnings: a."
    )


def test_rows_on_other_images_are_noted():
    fewer = Outcome(LABEL[:5], {"natural": LABEL[:5], "aa@Linf:1": LABEL[:5]})
    judged = judge_entries([Entry("a", {0: outcome(natural=9, aa_Linf=4)}), Entry("b", {0: fewer})])
    assert judged is not None and judged.notes() == "The rows were not measured on the same images."
    rows = [outcome(natural=9, aa_Linf=4), outcome(natural=9, aa_Linf=4)]
    changed = [replace(row, facts={"data": digest}) for row, digest in zip(rows, "ab", strict=True)]
    judged = judge_entries([Entry(f"row {n}", {0: row}) for n, row in enumerate(changed)])
    assert judged is not None and judged.notes() == "The rows were not measured on the same images."


def test_natural_images_alone_have_no_judge():
    assert judge_entries([Entry("a", {0: outcome(natural=9)})]) is None
    assert judge_entries([]) is None


def test_seeds_without_a_probe_are_dropped():
    entry = Entry("a", {0: outcome(natural=9, aa_Linf=4, pgd_Linf=5), 1: outcome(natural=8)})
    kept = restrict(entry, ["aa@Linf:1"])
    assert {seed: list(outcome.predicted) for seed, outcome in kept.outcomes.items()} == {
        0: ["natural", "aa@Linf:1"]
    }
