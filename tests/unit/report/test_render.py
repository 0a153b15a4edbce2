from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allrounder.report.outcome import Outcome
from allrounder.report.render import AccuracyTable, render
from allrounder.report.tables import column_key

N = 10_000
LINF, L2, L1 = "aa@Linf:8/255", "aa@L2:128/255", "aa@L1:12"


def outcome(facts: Mapping[str, Any] | None = None, n: int = N, **correct: int) -> Outcome:
    """The first `correct` images are right under each probe; linf, l2 and l1 are AutoAttack's."""
    names = {"linf": LINF, "l2": L2, "l1": L1}
    rows = np.arange(n)
    predicted = {names.get(key, key): (rows >= count).astype(np.int64) for key, count in correct.items()}
    return Outcome(np.zeros(n, np.int64), predicted, facts or {})


MSD = outcome({"seed": 0, "batch_size": 125}, natural=8291, linf=4608, l2=5897)
AT = outcome({"seed": 0, "batch_size": 125}, natural=8432, linf=4437, l2=5699)
AVG = outcome({"seed": 0, "batch_size": 125}, natural=8561, linf=3948, l2=6134)
ROWS = {"AT": AT, "MSD": MSD, "AVG": AVG}


def test_markdown_has_the_papers_numbers_with_the_best_bold_and_the_second_underlined():
    # The rows of Generalist++ for ResNet-18 on CIFAR-10; its Union column is our mean.
    assert render(ROWS, intervals=False).splitlines() == [
        "| model | natural | aa@Linf:8/255 | aa@L2:128/255 | aa worst | aa mean (the papers' Union) |",
        "| :-- | --: | --: | --: | --: | --: |",
        "| AT | <ins>84.32</ins> | <ins>44.37</ins> | 56.99 | <ins>44.37</ins> | <ins>50.68</ins> |",
        "| MSD | 82.91 | **46.08** | <ins>58.97</ins> | **46.08** | **52.53** |",
        "| AVG | **85.61** | 39.48 | **61.34** | 39.48 | 50.41 |",
        "",
        "Percent of images classified correctly.",
        "Worst: correct under every threat of the attack at once (the true union); mean: the average over "
        "its threats (what Generalist++ calls Union).",
        "10000 images; seed 0; batch size 125.",
    ]


def test_markdown_has_intervals_in_parentheses_and_marks_nothing_in_a_single_row():
    lines = render({"one | two": outcome(natural=8420, linf=4890)}).splitlines()
    assert lines[:3] == [
        "| model | natural | aa@Linf:8/255 |",
        "| :-- | --: | --: |",
        r"| one \| two | 84.20 (83.47-84.90) | 48.90 (47.92-49.88) |",
    ]
    assert lines[4:] == ["Percent of images classified correctly, with 95% intervals.", "10000 images."]


def test_equal_numbers_are_marked_alike_and_nothing_is_best_among_equals():
    rows = {"a": outcome(natural=9000, linf=10), "b": outcome(natural=9000, linf=20)}
    rows["c"] = outcome(natural=9000, linf=20)
    lines = render(rows, intervals=False).splitlines()[2:5]
    assert lines == [
        "| a | 90.00 | <ins>0.10</ins> |",
        "| b | 90.00 | **0.20** |",
        "| c | 90.00 | **0.20** |",
    ]


def test_ranks_use_the_rounded_percents():
    rows = {"a": outcome(n=30_000, natural=15_000), "b": outcome(n=30_000, natural=15_001)}
    assert [line.split("|")[2] for line in render(rows, intervals=False).splitlines()[2:4]] == [" 50.00 "] * 2


def test_large_percents_outrank_small_ones_though_their_texts_do_not():
    rows = {"a": outcome(natural=N), "b": outcome(natural=9900)}
    assert "| **100.00** |" in render(rows, intervals=False)


def test_a_row_without_a_probe_has_a_gap_and_no_worst_or_mean():
    rows = {"two": outcome(natural=9000, linf=5000, l2=4000), "one": outcome(natural=8000, linf=6000)}
    lines = render(rows, intervals=False).splitlines()
    assert lines[2] == "| two | **90.00** | <ins>50.00</ins> | 40.00 | 40.00 | 45.00 |"
    assert lines[3] == "| one | <ins>80.00</ins> | **60.00** | - | - | - |"
    rows["three"] = outcome(natural=8000, linf=6000, l2=3000, l1=100)
    table = AccuracyTable.of(rows)
    assert [column_key(column) for column in table.columns] == [
        "natural",
        LINF,
        L2,
        L1,
        "aa worst",
        "aa mean",
    ]
    # Over all three threats of the table, so only the row that has them all.
    assert [row[4] is None for row in table.rows] == [True, True, False]
    assert table.rows[2][4] is not None and table.rows[2][4].accuracy == 0.01


def test_latex_needs_booktabs_alone():
    rows = {"A_1 & co": AT, "MSD": MSD}
    assert render(rows, "latex", intervals=False).splitlines() == [
        r"\begin{tabular}{lrrrrr}",
        r"\toprule",
        r"model & natural & aa & aa & aa & aa \\",
        r" &  & $\ell_\infty$ 8/255 & $\ell_2$ 128/255 & worst & mean (the papers' Union) \\",
        r"\midrule",
        r"A\_1 \& co & \textbf{84.32} & \underline{44.37} & \underline{56.99} & \underline{44.37} & "
        r"\underline{50.68} \\",
        r"MSD & \underline{82.91} & \textbf{46.08} & \textbf{58.97} & \textbf{46.08} & \textbf{52.53} \\",
        r"\bottomrule",
        r"\end{tabular}",
        "",
        r"{\footnotesize",
        "Percent of images classified correctly.",
        "Worst: correct under every threat of the attack at once (the true union); mean: the average over "
        "its threats (what Generalist++ calls Union).",
        "10000 images; seed 0; batch size 125.",
        r"\par}",
    ]


def test_latex_escapes_what_it_would_take_for_commands_and_leaves_out_an_empty_line():
    lines = render({r"50% of $x^2\{~}#": outcome(natural=8420)}, "latex").splitlines()
    name = r"50\% of \$x\textasciicircum{}2\textbackslash{}\{\textasciitilde{}\}\#"
    assert lines[2:5] == [
        r"model & natural \\",
        r"\midrule",
        rf"{name} & 84.20 {{\scriptsize (83.47--84.90)}} \\",
    ]
    assert r"Percent of images classified correctly, with 95\% intervals." in lines


def test_csv_has_shares_with_their_intervals_and_the_number_of_images():
    rows = {"a, b": MSD, "c": outcome({"selected_on": "test", "flags": ["odd", "even"]}, n=10, natural=5)}
    header, first, second = csv.reader(render(rows, "csv").splitlines())
    names = ["natural", LINF, L2, "aa worst", "aa mean"]
    ends = [f"{name}{end}" for name in names for end in ("", " low", " high")]
    assert header == ["model", *ends, "n", "seed", "selected_on", "flags"]
    assert (first[0], first[-4:]) == ("a, b", ["10000", "0", "", ""])
    assert (second[0], second[-4:]) == ("c", ["10", "", "test", "odd; even"])
    numbers = [float(number) for number in first[1:-4]]
    expected = [0.8291, 0.4608, 0.5897, 0.4608, 0.52525]
    assert numbers[::3] == pytest.approx(expected, abs=1e-12)
    assert [tuple(numbers[at + 1 : at + 3]) for at in (0, 3, 12)] == [
        MSD.interval(),
        MSD.interval(LINF),
        MSD.interval("aa", "mean"),
    ]
    assert second[4:-4] == [""] * 12


def test_json_has_full_precision_and_all_facts():
    facts = {
        "seed": 7,
        "batch_size": 125,
        "budget": {"steps": 100},
        "flags": ["Linf:8/255: falls with steps"],
    }
    stage = np.array([1, 2, -1], np.int64)
    result = Outcome(
        np.zeros(3, np.int64),
        {"natural": np.array([0, 0, 0], np.int64), LINF: np.array([1, 1, 0], np.int64)},
        facts,
        stage={LINF: stage},
    )
    content = json.loads(render({"x": result, "y": outcome(natural=5)}, "json"))
    assert content["columns"] == ["natural", LINF]
    first, second = content["rows"]
    assert first["results"][LINF]["accuracy"] == 1 / 3
    assert (first["results"][LINF]["low"], first["results"][LINF]["high"]) == result.interval(LINF)
    assert first["after"] == {LINF: [2 / 3, 1 / 3]}
    assert (first["name"], first["n"], first["facts"]) == ("x", 3, facts)
    assert first["flags"] == ["Linf:8/255: falls with steps"]
    assert list(second["results"]) == ["natural"] and second["after"] == {} and second["flags"] == []


COUNTS = st.lists(st.integers(0, 50), min_size=3, max_size=3)


@settings(max_examples=15)
@given(st.lists(COUNTS, min_size=1, max_size=5), st.sampled_from(["markdown", "latex", "csv", "json"]))
def test_every_style_gives_the_same_bytes_again_and_every_row(rows: list[list[int]], style: str):
    outcomes = {
        f"row{i}": outcome(n=50, natural=natural, linf=linf, l2=l2)
        for i, (natural, linf, l2) in enumerate(rows)
    }
    text = render(outcomes, style)
    assert text == render(outcomes, style) and text.endswith("\n")
    assert text.isascii() and all(name in text for name in outcomes)


@pytest.mark.parametrize(
    ("outcomes", "style", "threat"),
    [(ROWS, "html", None), ({}, "markdown", None), (ROWS, "robustbench", None), (ROWS, "csv", "Linf")],
)
def test_invalid_styles_are_refused(outcomes: dict[str, Outcome], style: str, threat: str | None):
    message = (
        f"got {len(outcomes)} outcomes, style '{style}', threat {threat}; expected .*latex, csv, json, or one"
    )
    with pytest.raises(ValueError, match=message):
        render(outcomes, style, threat=threat)
