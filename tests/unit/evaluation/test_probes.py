"""The keys, random numbers and batch widths of the attacks of a probe: they decide what is stored where."""

from __future__ import annotations

import pytest

from allrounder.attacks import Apgd, Cascade, Fab, Pgd, Square
from allrounder.evaluation.probes import SMALL_IMAGE, AttackStage, Probe, probe_stages
from allrounder.rng import Rng
from allrounder.threats.threat import Threat

L2 = Threat.parse("L2:0.5")
SQUARE, PGD = Square(queries=6), Pgd(steps=3)
MIXED = Probe("mixed", Cascade(attacks=(PGD, SQUARE, PGD)), L2)


def test_an_attack_that_is_no_cascade_is_its_only_stage():
    probe = Probe.parse("pgd-3@L2:0.5")
    (stage,) = probe_stages(probe)
    assert stage == AttackStage(probe, probe.attack) and stage.label() == str(probe)
    assert stage.key() == f"{probe.attack} as pgd-3@L2:0.5"
    assert stage.rng(Rng(7)).path == ("probe", "pgd-3@L2:0.5")


def test_a_search_is_the_same_alone_and_in_every_cascade():
    (alone,) = probe_stages(Probe("alone", SQUARE, L2))
    inside = probe_stages(MIXED)[1]
    assert alone.key() == inside.key() == f"{SQUARE.address()}@L2:0.5"
    paths = [stage.rng(Rng(7)).path for stage in (alone, inside)]
    assert paths == [("search", SQUARE.address(), "L2:0.5")] * 2
    assert (alone.label(), inside.label()) == ("alone@L2:0.5", "square@L2:0.5")


def test_an_attack_that_occurs_twice_in_a_cascade_has_two_keys():
    first, _, last = probe_stages(MIXED)
    assert (first.key(), last.key()) == (f"{PGD} as mixed@L2:0.5", f"{PGD} as mixed@L2:0.5 stage 2")
    assert last.rng(Rng(7)).path == ("probe", "mixed@L2:0.5", "stage", 2)


@pytest.mark.parametrize(
    ("attack", "size", "expected"),
    [
        (Square(), SMALL_IMAGE, 16),  # looks ahead
        (Fab(targets=2), SMALL_IMAGE, 16),  # has several rounds
        (Fab(targets=2), SMALL_IMAGE + 1, 8),
        (Apgd(), SMALL_IMAGE, 8),
        (PGD, SMALL_IMAGE, 8),
    ],
)
def test_small_images_fill_wider_batches(attack: Apgd | Fab | Pgd | Square, size: int, expected: int):
    assert AttackStage(Probe("x", attack, L2), attack).batch_width(10, size, 8) == expected
