"""Excerpts of tables: columns and rows by name, marks among what is shown, and notes that are short."""

from __future__ import annotations

import numpy as np
import pytest

from allrounder.cli.index import NOTE_LEVELS
from allrounder.errors import InputError
from allrounder.report.excerpt import Excerpt, NoteLevel, render_excerpt, select_cells
from allrounder.report.outcome import Outcome
from allrounder.report.short_notes import condense_warnings, list_trainings, short_notes
from allrounder.report.study import StudyResults, render_study
from allrounder.report.tables import Cell, ResultTable, format_rows
from tests.unit.report.test_study import outcome, results

SQUARE = "L2:1: in aa, square, which uses no gradient of the network, fools it on {} of 200 images"


def flag(seeds: dict[int, list[str]], **facts: object) -> dict[int, Outcome]:
    """Outcomes with flags, by seed."""
    plain = {seed: outcome(150, 100, 80, seed) for seed in seeds}
    return {
        seed: Outcome(o.label, o.predicted, {**o.facts, **facts, "flags": seeds[seed]})
        for seed, o in plain.items()
    }


def test_columns_and_rows_are_shown_in_the_order_of_their_names():
    table = Excerpt(("pgd-20 worst", "natural", "cost"), ("alike", "NT")).to_table(results())
    assert list(table.header) == ["row", "pgd-20 worst", "natural", "cost"]
    assert [name for name, _ in table.rows] == ["alike", "NT"]
    assert [cells[2].text for _, cells in table.rows] == ["-", "1/1"]


def test_the_best_and_second_best_are_those_of_the_shown_rows():
    columns = ("natural",)
    everything = format_rows(Excerpt(columns).to_table(results()), "markdown")
    assert [row[1].startswith("<ins>") for row in everything] == [False, False, True]
    shown = format_rows(Excerpt(columns, ("AT", "alike")).to_table(results()), "markdown")
    assert shown[0][1].startswith("<ins>75.50") and shown[1][1].startswith("**75.75")


def test_of_columns_with_one_name_the_next_one_is_shown():
    cells = [Cell(text) for text in "abcd"]
    table = ResultTable(["row", "x", "paper", "y", "paper"], [("r", cells)])
    for columns, texts in (
        (["y", "paper"], "cd"),
        (["x", "paper", "y", "paper"], "abcd"),
        (["paper", "x"], "ba"),
        (["paper", "paper"], "bd"),
        ([], "abcd"),
    ):
        assert "".join(cell.text for cell in select_cells(table, columns).rows[0][1]) == texts


def test_unknown_names_are_errors_that_list_what_exists():
    known = r"expected some of natural; paper; pgd-20@Linf:0\.1; pgd-20@L2:1; pgd-20 worst; .*; cost"
    with pytest.raises(
        InputError, match=rf'the table has no column "natura", {known}.*did you mean "natural"'
    ):
        Excerpt(("natura",)).to_table(results())
    with pytest.raises(InputError, match='the table has no row "XT", expected some of NT; AT; alike'):
        Excerpt(rows=("XT",)).to_table(results())
    with pytest.raises(InputError, match="notes: got 'few', expected one of all, short, no"):
        Excerpt.parse(notes="few")
    with pytest.raises(
        InputError, match="got style 'csv', expected markdown or latex; the other styles have"
    ):
        render_excerpt(results(), Excerpt(("natural",)), "csv")


def test_names_that_are_given_twice_are_errors():
    with pytest.raises(InputError, match='rows: got "AT" twice, expected every row once'):
        Excerpt(rows=("AT", "NT", "AT")).to_table(results())
    with pytest.raises(InputError, match='columns: got "natural" twice, expected every column once'):
        Excerpt(("natural", "paper", "natural")).to_table(results())


def test_notes_explain_only_the_columns_that_are_shown():
    for columns, expected in (
        (("natural",), set[str]()),
        (("natural", "cost"), {"Cost"}),
        (("natural", "paper", "pgd-20 worst"), {"Paper", "Worst"}),
        ((), {"Cost", "Paper", "Worst"}),
    ):
        starts = {note.partition(":")[0] for note in Excerpt(columns).to_table(results()).notes}
        assert starts & {"Cost", "Paper", "Worst"} == expected


def test_names_are_read_from_texts():
    columns = "natural, corruptions severity 5 (official, 1 of 15),aa mean (the papers' Union)"
    excerpt = Excerpt.parse(columns, "half-half, averaged; AT;", "short")
    assert excerpt.columns == (
        "natural",
        "corruptions severity 5 (official, 1 of 15)",
        "aa mean (the papers' Union)",
    )
    assert excerpt.rows == ("half-half, averaged", "AT") and excerpt.notes == "short"
    assert Excerpt.parse() == Excerpt()
    assert NoteLevel.__args__ == NOTE_LEVELS  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("style", ["markdown", "latex", "csv", "json"])
def test_without_a_choice_it_is_the_whole_table(style: str):
    assert render_excerpt(results(["NT, seed 2"]), Excerpt(), style) == render_study(
        results(["NT, seed 2"]), style
    )


def test_all_notes_are_those_of_the_shown_rows():
    study = StudyResults(
        {"AT": flag({0: ["doubt"]}), "NT": flag({0: [], 1: []})}, missing=["AT, seed 1", "NT, seed 2"]
    )
    notes = Excerpt(rows=("NT",)).to_table(study).notes
    assert not any("doubt" in note for note in notes) and notes[-1] == "MISSING: NT, seed 2."
    notes = Excerpt(rows=("AT",)).to_table(study).notes
    assert "FLAGGED: doubt." in notes and notes[-1] == "MISSING: AT, seed 1."
    assert notes[0] == "Percent of images classified correctly: with 95% intervals."
    assert Excerpt(notes="no").to_table(study).notes == ()


def test_short_notes_name_seeds_the_dagger_images_and_what_is_missing():
    study = results(missing=["NT, seed 2", "AT, seed 2", "NT, seed 3"])
    first, dagger, images, judge, missing = Excerpt(notes="short").to_table(study).notes
    assert first == "Percent of images classified correctly: mean +- standard deviation over seeds 0, 1."
    assert dagger.startswith('\u2020: differs from "AT" by a test over seeds') and "over the table" in dagger
    assert images == "200 images." and judge.startswith("AutoAttack (aa) was not run for Linf:0.1, L2:1: ")
    assert missing == "MISSING: NT, seeds 2, 3; AT, seed 2."
    assert "MISSING: AT, seed 2." in Excerpt(rows=("AT",), notes="short").to_table(study).notes


def test_the_dagger_is_explained_only_where_it_is_shown_and_keeps_its_meaning():
    shown = Excerpt(("natural",), ("NT", "alike"), "short").to_table(results())
    assert [cells[0].differs for _, cells in shown.rows] == [True, False]
    (note,) = [note for note in shown.notes if "differs from" in note]
    assert 'differs from "AT"' in note and "Holm over all rows and columns of the study" in note
    for excerpt in (
        Excerpt(("natural",), ("AT", "alike"), "short"),
        Excerpt(("pgd-20 mean (the papers' Union)",), (), "short"),
    ):
        assert not any("differs from" in note for note in excerpt.to_table(results()).notes)


def test_the_same_flag_of_several_trainings_is_one_line():
    study = StudyResults(
        {
            "AT": flag({0: [SQUARE.format(1)], 1: [SQUARE.format(3)], 2: []}),
            "half-half, averaged": flag({0: [SQUARE.format(2), "other"]}),
        }
    )
    notes = short_notes(study)
    square = "in aa, square, which uses no gradient of the network, fools it on 1 to 3 of 200 images"
    concerned = "AT, seeds 0, 1; half-half, averaged, seed 0"
    assert f"FLAGGED under L2:1: {square}: {concerned}." in notes
    assert "FLAGGED: other: half-half, averaged, seed 0." in notes


def test_threats_are_in_one_line_only_if_the_same_trainings_are_flagged():
    l2, linf = SQUARE.format(1), SQUARE.format(3).replace("L2:1", "Linf:0.1")
    text = SQUARE.partition(": ")[2]
    apart = short_notes(StudyResults({"AT": flag({0: [l2]}), "NT": flag({0: [linf]})}))
    assert f"FLAGGED under L2:1: {text.format(1)}: AT, seed 0." in apart
    assert f"FLAGGED under Linf:0.1: {text.format(3)}: NT, seed 0." in apart
    both = short_notes(StudyResults({"AT": flag({0: [l2, linf]}), "NT": flag({0: [l2, linf]})}))
    assert f"FLAGGED under L2:1, Linf:0.1: {text.format('1 to 3')}." in both
    some = short_notes(StudyResults({"AT": flag({0: [l2, linf]}), "NT": flag({0: []})}))
    assert f"FLAGGED under L2:1, Linf:0.1: {text.format('1 to 3')}: AT, seed 0." in some


def test_thousands_separators_are_part_of_a_number():
    texts = {0: ["fools it on 2 of 10,000 images"], 1: ["fools it on 1,500 of 10,000 images"]}
    lines = condense_warnings({("AT", seed): o for seed, o in flag(texts).items()})
    assert lines[-1] == "FLAGGED: fools it on 2 to 1,500 of 10,000 images."


def test_a_flag_of_all_trainings_names_none_and_numbers_of_names_stay():
    text = "accuracy still falls with more steps, from 40.00% (pgd-10) to 35.50% (pgd-20)"
    lines = condense_warnings({("AT", seed): o for seed, o in flag({0: [text], 1: [text]}).items()})
    assert lines[-1] == f"FLAGGED: {text}."
    other = text.replace("40.00", "41.50")
    lines = condense_warnings({("AT", seed): o for seed, o in flag({0: [text], 1: [other]}).items()})
    assert lines[-1] == f"FLAGGED: {text.replace('40.00%', '40.00 to 41.50%')}."


def test_warnings_that_are_no_flags_are_kept():
    facts = {"selected_on": "test", "weights": "best", "extra": "500 images", "findings": ["random: 2 of 5"]}
    notes = short_notes(StudyResults({"AT": flag({0: []}, **facts), "NT": flag({0: []})}))
    assert "Weights 'best' selected on the TEST set, so too optimistic: AT, seed 0." in notes
    assert "Trained with EXTRA DATA: 500 images: AT, seed 0." in notes
    assert "Preflight: random: 2 of 5: AT, seed 0." in notes
    few = Outcome(np.ones(10, np.int64), {"natural": np.ones(10, np.int64)}, {"seed": 0})
    notes = short_notes(StudyResults({"AT": flag({0: []}), "few": {0: few}}))
    assert (
        "200 images or 10 images." in notes and notes[-1] == "The rows were not measured on the same images."
    )


def test_images_that_are_no_test_images_are_named():
    notes = short_notes(StudyResults({"AT": flag({0: []}, split="held-out")}))
    assert "200 held-out training images." in notes


def test_trainings_are_listed_by_row():
    assert list_trainings([("b", 1), ("a", 0), ("b", 0)]) == "b, seeds 0, 1; a, seed 0"
