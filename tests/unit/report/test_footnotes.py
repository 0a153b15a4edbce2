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


def test_how_everything_was_measured_is_said_once():
    one = outcome(seed=0, batch_size=125, budget="quick")
    assert footnotes({"a": one, "b": one}) == ["4 images; seed 0; batch size 125; budget quick."]


def test_what_holds_for_some_rows_names_them():
    rows = {"a": outcome(seed=0), "b": outcome(seed=1), "c": outcome(seed=0)}
    assert footnotes(rows) == ["a, c: 4 images; seed 0.", "b: 4 images; seed 1."]


def test_rows_on_different_images_are_not_passed_over():
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
    ("facts", "said"),
    [
        ({"selected_on": "validation"}, "Weights selected on validation images."),
        ({"weights": "best", "selected_on": "validation"}, "Weights 'best' selected on validation images."),
        (
            {"weights": "best", "selected_on": "test"},
            "Weights 'best' selected on the TEST set, so too optimistic.",
        ),
        ({"weights": "last"}, "Weights 'last'."),
    ],
)
def test_how_weights_were_selected_is_said(facts: dict[str, Any], said: str):
    assert footnotes({"a": outcome(**facts)}) == ["4 images.", said]


def test_rows_selected_on_the_test_set_are_named():
    rows = {"ours": outcome(selected_on="validation"), "theirs": outcome(selected_on="test")}
    assert footnotes(rows)[1:] == [
        "ours: Weights selected on validation images.",
        "theirs: Weights selected on the TEST set, so too optimistic.",
    ]


def test_doubts_stand_at_the_end_with_the_rows_they_are_about():
    doubts = ["Linf:8/255: square wins; look", "the network answers at random"]
    rows = {"a": outcome(flags=doubts[1:]), "b": outcome(flags=doubts)}
    assert footnotes(rows)[1:] == [
        "FLAGGED: the network answers at random.",
        "b: FLAGGED: Linf:8/255: square wins; look.",
    ]


def test_doubts_about_one_threat_are_told_from_those_about_another():
    label = np.zeros(2, np.int64)
    doubts = ["Linf:8/255: x", "L2:1: y", "z", "L2:10: w"]
    probes = {"natural": label, AA: label, "aa@L2:1": label, "aa@L2:10": label}
    found = Outcome(label, probes, {"flags": doubts})
    assert stored_flags(found) == doubts
    assert stored_flags(found, "Linf:8/255") == ["Linf:8/255: x", "z"]
    assert stored_flags(found, "L2:1") == ["L2:1: y", "z"]
    assert stored_flags(outcome()) == stored_flags(outcome(), "Linf:8/255") == []


def test_the_doubts_that_are_derived_are_told():
    label = np.zeros(4, np.int64)
    probes = {"natural": label, "pgd-20@Linf:1": label, "square@Linf:1": label + 1, "pgd-20@L2:1": label}
    facts = {"white_box": {"pgd-20@Linf:1": [True], "square@Linf:1": [False], "pgd-20@L2:1": [True]}}
    derived = reliability.compute_flags(Outcome(label, probes, facts))
    found = Outcome(label, probes, {"flags": derived})
    assert len(derived) == 1
    assert stored_flags(found, "Linf:1") == derived and stored_flags(found, "L2:1") == []
    assert footnotes({"a": found})[-1] == f"FLAGGED: {derived[0]}."
