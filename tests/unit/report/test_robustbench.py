"""The file of a model in RobustBench's list."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allrounder.errors import InputError
from allrounder.report.outcome import Outcome
from tests.unit.report.test_render import L2, LINF, MSD, outcome

ABOUT: dict[str, Any] = {
    "link": "https://example.org/paper",
    "name": "A Paper",
    "authors": "A. Author, B. Author",
    "dataset": "cifar10",
    "venue": "Unpublished",
    "architecture": "PreActResNet-18",
    "additional_data": False,
    "number_forward_passes": 1,
    "reported": "46.10",
}


def test_robustbench_gets_texts_in_percent_and_the_budget_as_written():
    entry = json.loads(MSD.table("robustbench", ABOUT, "L2"))
    assert entry == {
        **ABOUT,
        "eps": "128/255",
        "clean_acc": "82.91",
        "autoattack_acc": "58.97",
        "unreliable": False,
    }
    one = outcome(natural=9000, linf=5000)
    assert json.loads(one.table("robustbench", ABOUT))["eps"] == "8/255"
    assert one.table("robustbench", ABOUT) == one.table("robustbench", ABOUT, "Linf:8/255")


def test_robustbench_entry_is_unreliable_if_its_threat_is_flagged():
    result = outcome(
        {"flags": ["Linf:8/255: square beats the white boxes"]}, natural=9000, linf=5000, l2=4000
    )
    reliable = [
        not json.loads(result.table("robustbench", ABOUT, norm))["unreliable"] for norm in ("Linf", "L2")
    ]
    assert reliable == [False, True]
    everywhere = outcome({"flags": ["random logits"]}, natural=9000, linf=5000)
    assert json.loads(everywhere.table("robustbench", ABOUT))["unreliable"] is True


def test_robustbench_footnote_names_deviations():
    result = outcome({"selected_on": "test"}, n=1000, natural=900, linf=500)
    about = {**ABOUT, "dataset": "CIFAR-10", "footnote": "Uses ReLU.", "external": "44.20"}
    entry = json.loads(result.table("robustbench", about))
    assert (
        entry["footnote"]
        == "Uses ReLU. Measured on 1000 images, not 10000. Weights selected on the test set."
    )
    assert entry["external"] == "44.20"
    other = json.loads(
        outcome(n=1000, natural=900, linf=500).table("robustbench", {**ABOUT, "dataset": "own"})
    )
    assert "footnote" not in other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"link": None, "venue": ""}, "missing link, venue; give them in about"),
        ({"additional_data": "no"}, "additional_data: got 'no', expected bool"),
        ({"number_forward_passes": True}, "number_forward_passes: got True, expected int"),
        ({"reported": "0.461"}, "reported: got '0.461', expected a percent such as \"48.90\""),
        ({"reported": 46.1}, "reported: got 46.1, expected str"),
        ({"arch": "x"}, "arch: got 'x', expected only link, name, authors"),
    ],
)
def test_robustbench_refuses_invalid_fields(change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        MSD.table("robustbench", {**ABOUT, **change}, "Linf")


def test_robustbench_lists_all_missing_fields():
    with pytest.raises(
        ValueError, match=f"missing {', '.join(sorted(ABOUT, key=list(ABOUT).index)[:3])}, additional"
    ):
        MSD.table("robustbench", threat="Linf")


@pytest.mark.parametrize(
    ("result", "threat", "error", "message"),
    [
        (MSD, None, ValueError, f"got {LINF}, {L2}, expected aa under one threat; choose one with threat"),
        (MSD, "worst", ValueError, "expected aa under one threat"),
        (outcome(natural=1), None, ValueError, "got no aa among natural, expected aa"),
        (MSD, "L1", InputError, "aa@L1 names 0 probes"),
    ],
)
def test_robustbench_needs_one_threat(
    result: Outcome, threat: str | None, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        result.table("robustbench", ABOUT, threat)
