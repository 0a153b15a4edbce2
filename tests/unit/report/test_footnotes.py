from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from allrounder.report import reliability
from allrounder.report.footnotes import footnotes, stored_flags
from allrounder.report.outcome import Outcome

AA = "aa@Linf:8/255"


def outcome(n: int = 4, **facts: Any) -> Outcome:
    label = np.zeros(n, np.int64)
    return Outcome(label, {"natural": label, AA: label}, facts)


def test_settings_of_all_rows_give_one_footnote():
    one = outcome(seed=0, batch_size=125, budget="quick")
    assert footnotes({"a": one, "b": one}) == ["4 images; seed 0; batch size 125; budget quick."]


def test_footnote_on_some_rows_names_them():
    rows = {"a": outcome(seed=0), "b": outcome(seed=1), "c": outcome(seed=0)}
    assert footnotes(rows) == ["a, c: 4 images; seed 0.", "b: 4 images; seed 1."]


def test_footnote_on_rows_with_different_images():
    other = Outcome(np.array([0, 0, 0, 1], np.int64), {"natural": np.zeros(4, np.int64)})
    assert footnotes({"a": outcome(), "b": other}) == [
        "4 images.",
        "The rows were not measured on the same images.",
    ]
    assert (
        footnotes({"a": outcome(), "b": outcome(5)})[-1] == "The rows were not measured on the same images."
    )


def test_the_settings_of_attacks_are_written_out():
    attacks = {
        "aa": {"steps": 100, "targets": 9, "parts": ["apgd-ce", "square"]},
        "pgd-20": "20 steps of 2/255",
    }
    assert footnotes({"a": outcome(attacks=attacks)}) == [
        "4 images.",
        'aa: steps 100, targets 9, parts ["apgd-ce", "square"].',
        "pgd-20: 20 steps of 2/255.",
    ]


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"selected_on": "validation"}, "Weights selected on validation images."),
        ({"mixture": {"linf": 0.5, "l2": 0.5}}, "Weights mixed after training: linf 0.5, l2 0.5."),
        (
            {"mixture": {"alpha": 0.5}, "networks": 2},
            "Outputs of 2 networks mixed after training: alpha 0.5; a prediction costs that of 2 networks.",
        ),
        ({"weights": "best", "selected_on": "validation"}, "Weights 'best' selected on validation images."),
        (
            {"weights": "best", "selected_on": "test"},
            "Weights 'best' selected on the TEST set, so too optimistic.",
        ),
        ({"weights": "last"}, "Weights 'last'."),
    ],
)
def test_footnote_on_the_selection_of_weights(facts: dict[str, Any], sentence: str):
    assert footnotes({"a": outcome(**facts)}) == ["4 images.", sentence]


def test_rows_selected_on_the_test_set_are_named():
    rows = {"ours": outcome(selected_on="validation"), "theirs": outcome(selected_on="test")}
    assert footnotes(rows)[1:] == [
        "ours: Weights selected on validation images.",
        "theirs: Weights selected on the TEST set, so too optimistic.",
    ]


def test_flags_come_last_with_their_rows():
    flags = ["Linf:8/255: square wins; look", "the network answers at random"]
    rows = {"a": outcome(flags=flags[1:]), "b": outcome(flags=flags)}
    assert footnotes(rows)[1:] == [
        "FLAGGED: the network answers at random.",
        "b: FLAGGED: Linf:8/255: square wins; look.",
    ]


def test_flags_are_selected_by_threat():
    label = np.zeros(2, np.int64)
    flags = ["Linf:8/255: x", "L2:1: y", "z", "L2:10: w"]
    probes = {"natural": label, AA: label, "aa@L2:1": label, "aa@L2:10": label}
    result = Outcome(label, probes, {"flags": flags})
    assert stored_flags(result) == flags
    assert stored_flags(result, "Linf:8/255") == ["Linf:8/255: x", "z"]
    assert stored_flags(result, "L2:1") == ["L2:1: y", "z"]
    assert stored_flags(outcome()) == stored_flags(outcome(), "Linf:8/255") == []


def test_computed_flags_become_footnotes():
    label = np.zeros(4, np.int64)
    probes = {"natural": label, "pgd-20@Linf:1": label, "square@Linf:1": label + 1, "pgd-20@L2:1": label}
    facts = {"white_box": {"pgd-20@Linf:1": [True], "square@Linf:1": [False], "pgd-20@L2:1": [True]}}
    derived = reliability.compute_flags(Outcome(label, probes, facts))
    result = Outcome(label, probes, {"flags": derived})
    assert len(derived) == 1
    assert stored_flags(result, "Linf:1") == derived and stored_flags(result, "L2:1") == []
    assert footnotes({"a": result})[-1] == f"FLAGGED: {derived[0]}."


def test_a_note_names_the_threats_without_autoattack():
    label = np.array([0, 1])
    weak = {"natural": label, "pgd-20@Linf:0.1": label, "pgd-20@L2:1.5": label}
    note = (
        "AutoAttack (aa) was not run for Linf:0.1, L2:1.5: accuracies under other attacks are upper bounds."
    )
    assert note in footnotes({"a": Outcome(label, weak)})
    partly = footnotes({"a": Outcome(label, {**weak, "aa@L2:1.5": label})})
    assert note.replace(", L2:1.5", "") in partly
    judged = {"natural": label, "aa@Linf:0.1": label, "fog@c-official:5": label}
    assert not any("AutoAttack" in line for line in footnotes({"a": Outcome(label, judged)}))
