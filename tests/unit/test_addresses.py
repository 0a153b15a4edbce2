"""The addresses of random numbers are data: a rename must not change one, because results would change."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import allrounder
from allrounder.attacks import Apgd, AutoAttack, CustomLoss, Fab, Square
from allrounder.attacks.search.base import Search
from allrounder.evaluation.probes import Probe
from allrounder.rng import Rng
from allrounder.threats.norms import L1, L2, Linf

METHOD = "fold_in"
LITERALS = """
'ambient'
'angle'
'attack'
'attack', *
'augment', *, *
'batch', *
'chain'
'choice'
'confidence', *
'coordinates'
'corners'
'corruption', *, *
'curve'
'direction'
'doctor'
'doctor', *
'ensemble', *, *
'export'
'evaluate', *
'evaluate', *, *
'extra order'
'flakes'
'folding'
'frost'
'g'
'guard', *
'hidden labels'
'hold-out'
'identity'
'init'
'masks'
'mean'
'mix', 'natural'
'mix', 'robust'
'move', *
'moves'
'noise', *
'order'
'order', *
'partner'
'perturbation', *
'probe', *, *
'quick'
'quick', *
'radius'
'recalibrate'
'recalibrate', *, *
'restart', *
'round', *
'row', *
'search', *, *
'shake', *
'slice'
'smaller batch'
'stage', *
'stand-in'
'start'
'step', *
'step', 0
'subset'
'task images', *
'task order', *
'theory'
'theory', *
'theory', *, *
'threat'
'threat', *
'validation'
'var'
'weight'
'x'
"""
"""Every call in the package that extends an address: its constants, and * for what is computed."""


def literal_addresses() -> set[str]:
    """Collect the calls of `METHOD` with a text among their arguments, or with `draws` before the dot."""
    calls = {
        node
        for path in Path(allrounder.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == METHOD
    }
    return {_render(call) for call in calls if any(_is_text(arg) for arg in call.args)}


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _render(call: ast.Call) -> str:
    return ", ".join(repr(arg.value) if isinstance(arg, ast.Constant) else "*" for arg in call.args)


def test_the_literal_addresses_are_frozen():
    assert literal_addresses() == set(LITERALS.strip().splitlines())


def loss(logits: object, y: object, natural: object) -> object:
    return logits


STANDARD = (
    "Apgd(steps=100, surrogate='ce', targets=0, restarts=1, rho=0.75, schedule=((1.0, 1.0),), eot=1)",
    "Apgd(steps=100, surrogate='dlr', targets=9, restarts=1, rho=0.75, schedule=((1.0, 1.0),), eot=1)",
    "Fab(steps=100, targets=9, restarts=1, alpha_max=0.1, eta=1.05, beta=0.9)",
    "Square(queries=5000, p=0.8, restarts=1)",
)
IN_L1 = (
    "Apgd(steps=100, surrogate='ce', targets=0, restarts=5, rho=0.75, "
    "schedule=((3.0, 0.3), (2.0, 0.3), (1.0, 0.4)), eot=1)",
    "Apgd(steps=100, surrogate='dlr', targets=5, restarts=1, rho=0.75, "
    "schedule=((3.0, 0.3), (2.0, 0.3), (1.0, 0.4)), eot=1)",
    *STANDARD[2:],
)


@pytest.mark.parametrize(("norm", "expected"), [(Linf(), STANDARD), (L2(), STANDARD), (L1(), IN_L1)])
def test_the_searches_of_autoattack_keep_their_addresses(norm: Linf | L2 | L1, expected: tuple[str, ...]):
    stages = AutoAttack().stages(norm)
    assert tuple(stage.address() for stage in stages if isinstance(stage, Search)) == expected


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        (
            Apgd(steps=7, surrogate="dlr", targets=3, restarts=2, rho=0.5, eot=4),
            "Apgd(steps=7, surrogate='dlr', targets=3, restarts=2, rho=0.5, schedule=((1.0, 1.0),), eot=4)",
        ),
        (
            Apgd(surrogate=CustomLoss(name="mine", function=loss)),  # pyright: ignore[reportArgumentType]
            "Apgd(steps=100, surrogate=CustomLoss(name='mine'), targets=0, restarts=1, rho=0.75, "
            "schedule=((1.0, 1.0),), eot=1)",
        ),
        (
            Fab(steps=5, targets=0, restarts=3, alpha_max=0.2, eta=1.1, beta=0.8),
            "Fab(steps=5, targets=0, restarts=3, alpha_max=0.2, eta=1.1, beta=0.8)",
        ),
        (Square(queries=20, p=0.3, restarts=2), "Square(queries=20, p=0.3, restarts=2)"),
    ],
)
def test_every_setting_of_a_search_is_part_of_its_address(search: Search, expected: str):
    assert search.address() == expected


def test_probes_and_threats_keep_their_written_form():
    assert str(Probe.parse("pgd-20@Linf:8/255")) == "pgd-20@Linf:8/255"
    assert [str(Probe.parse(f"aa@{norm}:0.5").threat) for norm in ("Linf", "L2", "L1")] == [
        "Linf:0.5",
        "L2:0.5",
        "L1:0.5",
    ]


@pytest.mark.parametrize(
    ("address", "number"),
    [
        ((), 6711488920161924273),
        (("order", 1), 5288543681127824561),
        (("linf", 3, "attack", "start"), 6771796633290897794),
        (("search", STANDARD[0], "Linf:8/255", "round", 0, "start"), 2665261219763817584),
        (("augment", "shared", 1), 6499168705837331742),
    ],
)
def test_an_address_stands_for_the_same_number_for_ever(address: tuple[str | int, ...], number: int):
    assert Rng(0).fold_in(*address).derive_seed() == number
