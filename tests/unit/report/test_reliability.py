from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import allrounder.report.reliability
from allrounder.report.outcome import Outcome
from allrounder.report.reliability import compute_flags


def outcome(facts: dict[str, object] | None = None, /, *, n: int = 200, **robust: int | range) -> Outcome:
    """Images of class 0 of which a probe leaves the first ones, or a range, correct; a__b is a@Linf:8/255."""
    predicted = {"natural": np.zeros(n, np.int64)}
    for name, left in robust.items():
        attack, _, norm = name.partition("__")
        predictions = np.ones(n, np.int64)
        predictions[range(left) if isinstance(left, int) else left] = 0
        predicted[f"{attack.replace('_', '-')}@{norm or 'Linf'}:8/255"] = predictions
    return Outcome(np.zeros(n, np.int64), predicted, {"white_box": white_box(predicted), **(facts or {})})


def white_box(names: Iterable[str]) -> dict[str, list[bool]]:
    """The fact of probes, by name: square uses no gradients, and neither does the last stage of aa."""
    kinds = {"square": [False], "aa": [True, True, True, False]}
    return {name: kinds.get(name.partition("@")[0], [True]) for name in names if name != "natural"}


def test_numbers_that_agree_raise_no_flags():
    assert compute_flags(outcome()) == []
    assert compute_flags(outcome(square=100)) == []
    assert (
        compute_flags(outcome(pgd_20=100, pgd_100=98, apgd_ce=97, apgd_t=90, fab_t=91, square=110, aa=80))
        == []
    )
    assert compute_flags(outcome(pgd_20=100, pgd_20__L2=50, pgd_100__L2=50, square__L2=60)) == []


@pytest.mark.parametrize("white", ["apgd_ce", "apgd_t", "fab_t", "pgd_100", "PGD20", "mim", "cw"])
def test_square_below_the_white_box_attacks_is_flagged(white: str):
    flags = compute_flags(outcome(None, square=80, **{white: 100}))
    assert flags == [
        f"Linf:8/255: square, which uses no gradient of the network, leaves 40.00% and the white-box "
        f"attacks leave 50.00% ({white.replace('_', '-')}): their gradients are masked, or they are too "
        "weak; the accuracy is at most 40.00%"
    ]


def test_square_is_compared_with_the_best_of_the_white_box_attacks():
    flags = compute_flags(outcome(square=80, pgd_20=100, apgd_t=96, fab_t=100))
    assert "leave 48.00% (apgd-t)" in flags[0] and len(flags) == 1
    assert compute_flags(outcome(square=96, pgd_20=100, apgd_t=96)) == []


def test_images_that_only_square_fools_are_flagged():
    flags = compute_flags(outcome(square=range(5, 150), pgd_20=100, apgd_t=98))
    assert flags == [
        "Linf:8/255: square, which uses no gradient of the network, fools it on 5 of 200 images that the "
        "white-box attacks (pgd-20, apgd-t) leave robust: the accuracy is at most 46.50%"
    ]


def test_threats_are_judged_one_by_one():
    flags = compute_flags(outcome(square=80, pgd_20__L2=100, square__L2=80, aa=100, pgd_20=80))
    assert len(flags) == 1 and flags[0].startswith("L2:8/255: square")


def test_accuracy_that_falls_with_more_steps_is_flagged():
    flags = compute_flags(outcome(pgd_20=100, pgd_100=97))
    assert flags == [
        "Linf:8/255: accuracy still falls with more steps, from 50.00% (pgd-20) to 48.50% (pgd-100): use "
        "more until it no longer does"
    ]
    assert compute_flags(outcome(pgd_20=100, pgd_100=98)) == []  # exactly one point
    assert compute_flags(outcome(n=1000, pgd_20=573, pgd_100=563)) == []
    assert compute_flags(outcome(pgd_10=120, pgd_20=100, pgd_100=100)) == []  # the longest runs agree
    assert compute_flags(outcome(pgd_20=100, mim_100=80)) == []
    assert len(compute_flags(outcome(cw_20=100, cw_100=90))) == 1
    assert "(PGD20)" in compute_flags(outcome(PGD20=100, pgd_100=90))[0]


def test_apgd_far_below_pgd_is_flagged():
    flags = compute_flags(outcome(pgd_20=101, pgd_100=100, apgd_ce=95, apgd_t=88))
    assert flags == [
        "Linf:8/255: apgd-t leaves 44.00%, 6.0 points below pgd-100: steps of fixed length do not find the "
        "worst case here; do not report pgd-100 alone"
    ]
    assert compute_flags(outcome(pgd_100=100, apgd_t=90)) == []  # exactly five points


@pytest.mark.parametrize(
    ("finding", "pattern"),
    [
        ("zero-gradient", "^some gradients were zero, so .* may be too high$"),
        ("zero-gradient: for 9 of 10 images", r"gradients were zero, .* \(for 9 of 10 images\)$"),
        (
            "random",
            "^the network's logits are random, so every accuracy is a single sample, and too high .* passes$",
        ),
        ("random: two passes differ", r"are random, .* \(two passes differ\)$"),
    ],
)
def test_findings_of_the_preflight_that_touch_the_numbers_are_flags(finding: str, pattern: str):
    (sentence,) = compute_flags(outcome({"findings": ["training-mode: 3 modules", finding, "accuracy"]}))
    assert re.search(pattern, sentence)


def test_questions_about_budgets_are_flags():
    question = "Linf:0.031 is close to 8/255 = 0.03137, but not equal; write Linf:8/255 if that is meant"
    assert compute_flags(outcome({"questions": [question]})) == [question]


def test_an_outcome_without_the_fact_is_read_and_its_attacks_are_not_compared():
    result = outcome(square=80, pgd_20=100, aa=0)
    assert len(compute_flags(result)) == 1
    assert compute_flags(replace(result, facts={})) == []
    stage = {"aa@Linf:8/255": np.full(200, 4)}
    facts = {"stages": {"aa@Linf:8/255": ["apgd-ce", "apgd-t", "fab-t", "square"]}}
    assert compute_flags(replace(result, facts=facts, stage=stage)) == []


def test_an_outcome_without_images_raises_no_flags():
    assert compute_flags(outcome(n=0, pgd_20=0, square=0)) == []


def test_reliability_imports_no_torch():
    tree = ast.parse(Path(allrounder.report.reliability.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    foreign = {str(name) for name in modules} - {
        "__future__",
        "re",
        "collections",
        "collections.abc",
        "typing",
    }
    assert foreign == {
        "numpy",
        "numpy.typing",
        "allrounder.report.outcome",
        "allrounder.report.corruption_metrics",
    }


def test_black_box_stage_that_fools_robust_images_is_flagged():
    label, name = np.zeros(10, dtype=np.int64), "aa@Linf:1"
    fooled_by = np.array([0, 1, 3, 3, -1, -1, -1, -1, -1, -1])
    predicted = {"natural": (fooled_by == 0).astype(np.int64), name: (fooled_by >= 0).astype(np.int64)}
    facts = {"stages": {name: ["apgd-ce", "fab-t", "square"]}, "white_box": {name: [True, True, False]}}
    (flag,) = compute_flags(Outcome(label, predicted, facts, stage={name: fooled_by}))
    assert flag.startswith(
        "Linf:1: in aa, square, which uses no gradient of the network, fools it on 2 of 10 images"
    )
    quiet = np.where(fooled_by == 3, 2, fooled_by)
    assert compute_flags(Outcome(label, predicted, facts, stage={name: quiet})) == []


def test_much_more_found_by_the_masking_check_is_flagged():
    def masking(fooled: int) -> dict[str, object]:
        counts = {"attacks": ["pgd-20", "cw"], "images": 50, "robust": 30, "fooled": fooled}
        return {"masking": {"L2:1.5": counts}}

    assert compute_flags(outcome(masking(5))) == []  # exactly ten points
    assert compute_flags(outcome(masking(20))) == [
        "L2:1.5: gradients are masked, or pgd-20, cw too weak: 30 of 50 correctly classified images are "
        "robust, and only 10 after a short FAB and Square; AutoAttack (aa) tells"
    ]
