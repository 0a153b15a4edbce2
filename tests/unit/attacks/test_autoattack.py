from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from allrounder.attacks import Apgd, AutoAttack, Cascade, Fab, Pgd, Square, parse_attack, perturb
from allrounder.attacks.apgd import L1_SCHEDULE
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.probes import SUITES, Probe, suite
from allrounder.rng import Rng
from allrounder.threats.norms import L1, L2, Linf
from allrounder.threats.threat import Threat
from tests.support.networks import blobs, tiny


@pytest.mark.parametrize("norm", [Linf(), L2()])
def test_the_standard_version_has_its_published_budget(norm):
    ce, targeted, fab, square = AutoAttack().stages(norm)
    assert ce == Apgd(steps=100, surrogate="ce", restarts=1)
    assert targeted == Apgd(steps=100, surrogate="dlr", targets=9)
    assert fab == Fab(steps=100, targets=9, restarts=1)
    assert square == Square(queries=5000, p=0.8)


def test_the_version_for_l1_has_restarts_fewer_targets_and_a_shrinking_ball():
    ce, targeted, fab, square = AutoAttack().stages(L1())
    assert ce == Apgd(restarts=5, schedule=L1_SCHEDULE)
    assert targeted == Apgd(surrogate="dlr", targets=5, schedule=L1_SCHEDULE)
    assert (fab, square) == (Fab(targets=9), Square())


def test_the_other_versions_are_as_published():
    assert [type(a).__name__ for a in AutoAttack(version="plus").stages(Linf())] == [
        *("Apgd", "Apgd", "Fab", "Square", "Apgd", "Fab")
    ]
    rand = AutoAttack(version="rand").stages(Linf())
    assert [(a.surrogate, a.eot) for a in rand if isinstance(a, Apgd)] == [("ce", 20), ("dlr", 20)]


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        ("aa", AutoAttack()),
        ("AutoAttack", AutoAttack()),
        ("aa-plus", AutoAttack(version="plus")),
        ("apgd-ce", Apgd()),
        ("APGD-DLR", Apgd(surrogate="dlr")),
        ("apgd-t", Apgd(surrogate="dlr", targets=9)),
        ("fab-t", Fab(targets=9)),
        ("fab", Fab(targets=0)),
        ("square", Square()),
        ("pgd-20", Pgd(steps=20)),
    ],
)
def test_attack_names_are_parsed_leniently(name: str, attack):
    assert parse_attack(name) == attack


@pytest.mark.parametrize(("name", "expected"), [("aa", [True] * 3 + [False]), ("aa-rand", [True, True])])
def test_only_square_uses_no_gradient(name: str, expected: list[bool]):
    assert [stage.is_white_box for stage in parse_attack(name).stages(Linf())] == expected
    fixed = [parse_attack(text) for text in ("pgd-20", "mim", "cw", "apgd-ce", "apgd-t", "fab", "fab-t")]
    assert all(attack.is_white_box and attack.stages(Linf()) == (attack,) for attack in fixed)
    assert not parse_attack("square").is_white_box


def test_only_searches_and_cascades_stop_at_success():
    searches = [parse_attack(name) for name in ("apgd-ce", "fab-t", "square", "aa")]
    assert all(attack.stops_at_success for attack in (*searches, Cascade(attacks=(Pgd(),))))
    assert not any(parse_attack(name).stops_at_success for name in ("pgd-20", "mim", "cw"))


@pytest.mark.parametrize("name", ["aa-20", "apgd", "squares", "pgd-0"])
def test_misleading_attack_names_are_refused(name: str):
    with pytest.raises(ValueError, match="unknown attack"):
        parse_attack(name)


def test_suites_have_the_columns_of_the_papers():
    probes = [str(probe) for probe in suite("papers-plus", ["Linf:8/255", "L2:128/255"])]
    assert probes == ["pgd-20@Linf:8/255", "aa@Linf:8/255", "pgd-20@L2:128/255", "aa@L2:128/255"]
    assert len(SUITES["papers-cvpr"]) == 10
    with pytest.raises(ValueError, match="did you mean"):
        suite("paper-plus", ["Linf:8/255"])


def trained() -> nn.Module:
    """Taught for a moment, so that some images are classified correctly with a margin."""
    with Rng(1).seed_global():
        model = tiny()
    data, step = blobs(120, 6).train, torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(15):
        loss = F.cross_entropy(model(data.fetch(torch.arange(120))), data.labels)
        step.zero_grad()
        loss.backward()
        step.step()
    return model


PARTS = (
    Apgd(steps=4),
    Apgd(steps=3, surrogate="dlr", targets=2),
    Fab(steps=3, targets=1),
    Square(queries=12),
)


@pytest.mark.parametrize(
    "threat", ["Linf:0.15", *(pytest.param(text, marks=pytest.mark.slow) for text in ("L2:0.4", "L1:1.2"))]
)
def test_the_verdict_of_a_cascade_is_that_of_its_parts_together(threat: str):
    model = trained()
    split, where = blobs(6, 60).test, Threat.parse(threat)
    whole = Probe("all", Cascade(attacks=PARTS), where)
    alone = [Probe(f"part{i}", part, where) for i, part in enumerate(PARTS)]
    outcome = evaluate(model, split, probes=[whole, *alone], options=EvalOptions(batch_size=8))
    together = np.min([outcome.per_image_accuracy(p.name) for p in alone], axis=0)
    assert np.array_equal(outcome.per_image_accuracy("all"), together)
    assert 0 < outcome.accuracy("all") < outcome.accuracy()
    after = outcome.accuracy_by_stage(str(whole))
    assert after == sorted(after, reverse=True) and after[-1] == outcome.accuracy("all")


def test_evaluation_by_searches_repeats_and_does_not_depend_on_the_rest_of_the_split():
    model = trained()
    probe = Probe("all", Cascade(attacks=PARTS), Threat.parse("Linf:0.02"))
    full, again = (
        evaluate(model, blobs(6, 60).test, probes=[probe], options=EvalOptions(batch_size=8))
        for _ in range(2)
    )
    assert np.array_equal(full.predicted[str(probe)], again.predicted[str(probe)])
    assert probe.attack.stages(probe.threat.norm) == PARTS


def test_autoattack_through_perturb_stays_in_the_ball():
    model = trained()
    x, y = blobs(6, 12).test.fetch(torch.arange(12)), blobs(6, 12).test.labels
    threat = Threat.parse("L2:0.8")
    result = perturb(Cascade(attacks=PARTS), model, x, y, threat, Rng(0))
    assert result.fooled is not None and result.fooled.any()
    assert threat.contains(x, result.x).all()
