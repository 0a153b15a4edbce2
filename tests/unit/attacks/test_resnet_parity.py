"""A real network beside the public implementation: the CIFAR-10 ResNet-18 that it ships as its example.

Budgets are cut short on both sides alike, so the verdicts are not those of AutoAttack. To see the tables:
pytest -m slow -s.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from allrounder.attacks import Apgd, Attack, Fab, Square
from allrounder.data.inputs.by_name import load_eval_data
from allrounder.evaluation.evaluate import EvalOptions, evaluate
from allrounder.evaluation.probes import Probe
from allrounder.models.external import load_network
from allrounder.threats.threat import Threat
from tests.support.parity import SKIP_REASON, Comparison, robust_under_public, table
from tests.support.paths import SHARED_DATA

public = pytest.importorskip("pyautoattack", reason=SKIP_REASON)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

NATURAL, IMAGES = 100, 16
STEPS, TARGETS, QUERIES = 10, 3, 100
SOME, APART = 3, 3
"""The least numbers of fooled and of robust images; the most images with different results."""
GRADIENTS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t")
CASES = [
    ("Linf:0.5/255", GRADIENTS),
    ("L2:0.12", GRADIENTS),
    # So few queries need more room. Much more would be a game of chance: the random numbers are not the same.
    ("Linf:4/255", ("square",)),
    ("L2:0.8", ("square",)),
]
"""Budgets at which some images are fooled and others are robust."""
DATA = SHARED_DATA
FILE = "cifar10_test_head.npz"


def ours() -> dict[str, Attack]:
    """The attacks of the suite, cut short."""
    return {
        "apgd-ce": Apgd(steps=STEPS),
        "apgd-dlr": Apgd(steps=STEPS, surrogate="dlr"),
        "apgd-t": Apgd(steps=STEPS, surrogate="dlr", targets=TARGETS),
        "fab-t": Fab(steps=STEPS, targets=TARGETS),
        "square": Square(queries=QUERIES),
    }


def cut_short(side: Any) -> None:
    """The same of the public code; built again, because APGD plans its checkpoints when it is built."""
    base, log = import_module("pyautoattack.autopgd_base"), side.logger
    same = {"norm": side.norm, "eps": side.epsilon, "seed": side.seed, "device": "cpu", "logger": log}
    side.apgd = base.APGDAttack(side.model, n_iter=STEPS, **same)
    side.apgd_targeted = base.APGDAttack_targeted(side.model, n_iter=STEPS, n_target_classes=TARGETS, **same)
    side.fab.n_iter, side.fab.n_target_classes = STEPS, TARGETS
    side.square.n_queries = QUERIES


@cache
def images() -> tuple[Tensor, Tensor]:
    """The first test images of CIFAR-10."""
    if not (DATA / FILE).is_file():
        pytest.skip(f"no test images of CIFAR-10 ({FILE}) in {DATA}")
    test = load_eval_data(str(DATA / FILE)).test
    return test.fetch(torch.arange(NATURAL)), test.labels[:NATURAL]


def weights() -> Path:
    file = Path(str(public.__file__)).parent / "examples" / "model_test.pt"
    if not file.is_file():
        pytest.skip("pyautoattack has come without the weights of its example")
    return file


@cache
def network() -> nn.Module:
    """Its weights in our ResNet-18."""
    return load_network("resnet18", weights(), classes=10, shape=(3, 32, 32)).requires_grad_(False)


@cache
def easy() -> tuple[Tensor, Tensor]:
    """The first images that are classified right."""
    x, y = images()
    right = (network()(x).argmax(1) == y).nonzero().squeeze(1)[:IMAGES]
    return x[right], y[right]


def test_natural_accuracy_is_that_of_the_public_network():
    x, y = images()
    theirs = import_module("pyautoattack.examples.resnet").ResNet18()
    theirs.load_state_dict(torch.load(weights(), map_location="cpu", weights_only=True))
    with torch.no_grad():
        logits, expected = network()(x), theirs.eval()(x)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    right = [int((answer.argmax(1) == y).sum()) for answer in (logits, expected)]
    print(f"\n{right[0]} and {right[1]} of {len(y)} images are classified right")
    assert right[0] == right[1] > 0.9 * len(y)


@pytest.mark.parametrize(("text", "attacks"), CASES)
def test_short_attacks_agree_with_the_public_ones(text: str, attacks: tuple[str, ...]):
    (x, y), model, threat = easy(), network(), Threat.parse(text)
    probes = [Probe(name, ours()[name], threat) for name in attacks]
    # A batch of all images: all passes of both sides have one shape.
    outcome = evaluate(model, x, y, probes=probes, options=EvalOptions(batch_size=len(y)))
    comparisons: list[Comparison] = []
    for probe in probes:
        mine = torch.from_numpy(outcome.per_image_accuracy(probe.name) > 0)
        comparisons.append(
            Comparison(probe.name, mine, robust_under_public(model, x, y, threat, probe.name, cut_short))
        )
    budgets = f"{STEPS} steps, {TARGETS} targets, {QUERIES} queries"
    print(table(f"ResNet-18, {text}, {len(y)} images, {budgets}", comparisons))
    standing = int(torch.stack([duel.theirs for duel in comparisons]).all(0).sum())
    assert SOME <= standing <= len(y) - SOME
    apart = [str(duel) for duel in comparisons if duel.num_agreeing < len(y) - APART or duel.weaker_by > 1]
    assert not apart, "\n".join(apart)
