"""The table of results: the order of columns, marks, and numbers of papers."""

from __future__ import annotations

import numpy as np

from allrounder.report.entry import Entry, Results
from allrounder.report.outcome import Outcome
from allrounder.report.page.results_table import (
    NumberCell,
    ResultsTable,
    build_results_table,
    find_mixed_summaries,
    order_columns,
)
from allrounder.report.study import StudyResults


def outcome(**correct: int) -> Outcome:
    """The first images of 100 are correct, this many for each probe."""
    predicted = {
        name.replace("_", "@"): (np.arange(100) >= n).astype(np.int64) for name, n in correct.items()
    }
    return Outcome(np.zeros(100, np.int64), predicted)


def column(table: ResultsTable, group: str, title: str) -> list[NumberCell]:
    titles = [(g.title, name) for g in table.groups for name in g.columns]
    return [row.cells[titles.index((group, title))] for row in table.rows]


def test_columns_begin_with_natural_and_the_judge():
    columns = [("pgd@Linf:1", None), ("pgd", "worst"), ("natural", None), ("aa@Linf:1", None)]
    columns += [("corruptions", "severity 5 (official)"), ("mim@L2:1", None)]
    names = [name for name, _ in order_columns(columns, "aa")]
    assert names == ["natural", "aa@Linf:1", "pgd@Linf:1", "pgd", "mim@L2:1", "corruptions"]
    assert order_columns(columns, "mim")[1] == ("mim@L2:1", None)


def test_only_autoattack_is_no_upper_bound():
    both = Entry("a", {0: outcome(natural=90, aa_Linf=40, pgd_Linf=50)})
    notes = {group.title: group.note for group in build_results_table(Results((both,))).groups}
    assert notes == {"no attack": "", "AutoAttack": "", "pgd": "upper bound"}


def test_best_and_second_best_are_marked_by_the_numbers_as_shown():
    rows = {"a": 80, "b": 90, "c": 90, "d": 70}
    entries = [Entry(name, {0: outcome(natural=count)}) for name, count in rows.items()]
    cells = column(build_results_table(Results(tuple(entries))), "no attack", "natural")
    assert [cell.mark for cell in cells] == ["second best", "best", "best", ""]
    assert [cell.text for cell in cells] == ["80.00", "90.00", "90.00", "70.00"]
    same = build_results_table(Results(tuple(Entry(n, {0: outcome(natural=5)}) for n in "ab")))
    assert {cell.mark for cell in column(same, "no attack", "natural")} == {""}


def test_several_seeds_show_mean_deviation_and_interval():
    entry = Entry("a", {0: outcome(natural=80), 1: outcome(natural=90)})
    (cell,) = column(build_results_table(Results((entry,))), "no attack", "natural")
    expected = entry.cell(("natural", None))
    assert expected and expected.interval
    assert (cell.text, cell.spread) == ("85.00", "7.07") and cell.sort == expected.mean
    assert cell.interval == f"{100 * expected.interval[0]:.2f}-{100 * expected.interval[1]:.2f}"


def test_numbers_of_a_paper_stand_in_a_column_of_their_own():
    entries = tuple(Entry(name, {0: outcome(natural=80)}, study="s") for name in ("a", "b"))
    study = StudyResults({e.name: e.outcomes for e in entries}, {"b": {"natural": 81.5}}, source="Table 2")
    table = build_results_table(Results(entries, {"s": study}))
    assert [cell.text for cell in column(table, "no attack", "paper")] == ["-", "81.50"]
    assert {cell.mark for cell in column(table, "no attack", "paper")} == {""}
    assert any("Table 2" in note for note in table.notes)


def test_cost_and_minutes_are_sorted_as_numbers():
    entries = (
        Entry("a", {0: outcome(natural=1)}, cost="9/9", minutes=(2.0, 4.0)),
        Entry("b", {0: outcome(natural=1)}, cost="132/132"),
    )
    table = build_results_table(Results(entries))
    assert [cell.sort for cell in column(table, "training", "cost")] == [18, 264]
    minutes = column(table, "training", "minutes")
    assert [(cell.text, cell.sort) for cell in minutes] == [("3.0", 3.0), ("-", None)]


def test_worst_cases_over_different_threats_are_not_ranked():
    entries = (
        Entry("a", {0: outcome(natural=9, **{"aa_Linf:1": 4, "aa_L2:1": 5})}),
        Entry("b", {0: outcome(natural=8, **{"aa_Linf:2": 6, "aa_L2:1": 4})}),
    )
    table = build_results_table(Results(entries))
    assert find_mixed_summaries(Results(entries)) == ["aa"]
    assert {cell.mark for title in ("worst", "mean") for cell in column(table, "AutoAttack", title)} == {""}
    assert [cell.mark for cell in column(table, "AutoAttack", "L2:1")] == ["best", "second best"]
    same = Results((entries[0], Entry("c", entries[0].outcomes), Entry("d", {0: outcome(natural=9)})))
    assert find_mixed_summaries(same) == []
