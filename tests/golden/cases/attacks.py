"""Every attack and every search in each norm, with randomness drawn in one block and per example."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from allrounder.attacks import (
    Apgd,
    ApgdTrain,
    Attack,
    AutoAttack,
    Bpda,
    Cascade,
    CustomLoss,
    Cw,
    EarlyStopPgd,
    Fab,
    Mim,
    Msd,
    Pgd,
    Restarts,
    Square,
    Transfer,
    parse_attack,
    perturb,
)
from allrounder.attacks.apgd import L1_SCHEDULE
from allrounder.attacks.combined import WorstOf
from allrounder.attacks.pixel_budget_pgd import PixelBudgetPgd
from allrounder.attacks.search.base import RoundInit, Search
from allrounder.rng import Rng
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import BatchNormMode
from tests.golden.results import Result, hash_arrays, make_result
from tests.golden.subjects import Random, Small, make_images, make_network

NORMS = {"linf": "Linf:0.06", "l2": "L2:0.5", "l1": "L1:2"}
LARGE = {"linf": "Linf:0.1", "l2": "L2:1", "l1": "L1:6"}
"""Budgets for weak attacks, so that they succeed too."""
IMAGES = 12


def lose_margin(logits: Tensor, y: Tensor, natural: Tensor | None = None) -> Tensor:
    """Return a loss that is none of the built-in ones."""
    return logits.square().sum(1) - 3 * logits.gather(1, y[:, None])[:, 0]


OWN = CustomLoss(name="own", function=lose_margin)
FIXED: dict[str, Attack] = {
    "pgd": Pgd(steps=4),
    "pgd-kl": Pgd(steps=3, loss="kl", start="gaussian"),
    "pgd-margin": Pgd(steps=3, loss="margin", start="boundary"),
    "pgd-cw": Pgd(steps=3, loss="cw", start="zero"),
    "pgd-lse": Pgd(steps=3, step=0.5, loss="lse"),
    "pgd-lse-drift": Pgd(steps=3, loss="lse-drift", start="gaussian"),
    "pgd-own": Pgd(steps=3, loss=OWN),
    "mim": Mim(steps=4),
    "cw": Cw(steps=4),
    "friendly": EarlyStopPgd(steps=4, tau=1),
    "msd": Msd(steps=4),
    "apgd-train": ApgdTrain(steps=6),
    "restarts": Restarts(attack=Pgd(steps=2), count=3),
    "hardest": WorstOf(attack=Pgd(steps=3)),
}
SEARCHES: dict[str, Attack] = {
    "apgd-ce": Apgd(steps=12),
    "apgd-dlr": Apgd(steps=12, surrogate="dlr"),
    "apgd-t": Apgd(steps=8, surrogate="dlr", targets=3),
    "apgd-ce-t": Apgd(steps=5, targets=2),
    "apgd-restarts": Apgd(steps=6, restarts=2, rho=0.6),
    "apgd-enlarged": Apgd(steps=12, schedule=L1_SCHEDULE),
    "apgd-own": Apgd(steps=6, surrogate=OWN),
    "fab": Fab(steps=6, targets=0),
    "fab-t": Fab(steps=5, targets=3),
    "fab-restarts": Fab(steps=1, targets=0, restarts=4),
    "square": Square(queries=60),
    "square-restarts": Square(queries=30, p=0.3, restarts=2),
    "cascade": Cascade(attacks=(Apgd(steps=4), Pgd(steps=2), Fab(steps=3, targets=1), Square(queries=10))),
}
ATTACKS = FIXED | SEARCHES
WEAK = ("square", "square-restarts", "fab-restarts")


def find_threat(name: str, norm: str) -> Threat:
    """Return the threat of an attack of the tables above in one norm."""
    return Threat.parse((LARGE if name in WEAK else NORMS)[norm])


def run_attack(
    attack: Attack,
    threat: Threat | AnyOf,
    *,
    alone: bool = False,
    network: Small | None = None,
    norm_layers: BatchNormMode = "eval",
) -> Result:
    """Attack a few images; `alone` draws random numbers per example."""
    x, y = make_images(IMAGES)
    draws = Rng(3).fold_in("golden")
    draws = draws.per_example(torch.arange(IMAGES) * 7 % IMAGES) if alone else draws
    model = network or make_network()
    found = perturb(attack, model, x, y, threat, draws, norm_layers=norm_layers)
    arrays = {"x": found.x}
    for name, item in {"loss": found.loss, "fooled": found.fooled, "steps": found.steps}.items():
        arrays |= {} if item is None else {name: item}
    if found.ever_fooled is not None:
        arrays["ever"] = found.ever_fooled
    buffers = {f"zz {name}": buffer for name, buffer in model.named_buffers()}
    with torch.no_grad():
        loss = F.cross_entropy(make_network()(found.x), y)
    passes = [float(found.passes.forwards), float(found.passes.backwards)]
    return make_result(arrays | buffers, [float(loss), *passes])


def run_named(name: str, norm: str, *, alone: bool) -> Result:
    """Run an attack of the tables above in one norm."""
    return run_attack(ATTACKS[name], find_threat(name, norm), alone=alone)


def begin_search(name: str, norm: str) -> Result:
    """Begin two rounds of a search: all that it draws is in its state."""
    search, (x, y), threat = SEARCHES[name], make_images(IMAGES), find_threat(name, norm)
    assert isinstance(search, Search)
    with torch.no_grad():
        natural = make_network()(x)
    states: dict[str, Tensor] = {}
    for number in range(2):
        draws = Rng(3).fold_in("round", number).per_example(torch.arange(IMAGES))
        state = search.begin(RoundInit(x, y, natural, threat, draws, number))
        # In the order of their digests, so that names in the state may change.
        states |= {f"{number} {hash_arrays({'': tensor})}": tensor for tensor in state.values()}
    return make_result(states)


def run_union(name: str, *, alone: bool) -> Result:
    """Run an attack under the union of all threats."""
    return run_attack(ATTACKS[name], AnyOf(tuple(map(Threat.parse, NORMS.values()))), alone=alone)


def run_in_mode(mode: BatchNormMode) -> Result:
    """Run PGD on a network that trains, with one treatment of batch-norm."""
    network = make_network()
    network.train()
    return run_attack(Pgd(steps=3), Threat.parse(NORMS["linf"]), network=network, norm_layers=mode)


def run_weighted(*, alone: bool) -> Result:
    """Run PGD with a budget for every pixel."""
    x, _ = make_images(IMAGES)
    budgets = 0.05 * Rng(5).uniform(x)
    return run_attack(PixelBudgetPgd(Pgd(steps=3), budgets), Threat.parse(NORMS["linf"]), alone=alone)


def run_on_random(attack: Attack) -> Result:
    """Attack a network that draws random numbers in every pass."""
    return run_attack(attack, Threat.parse(NORMS["linf"]), network=make_network(Random))


def run_transfer() -> Result:
    """Craft on one network, attack another one."""
    source = make_network(width=16)
    return run_attack(Transfer(attack=Mim(steps=3), source=source, name="other"), Threat.parse(NORMS["l2"]))


def run_through_rounding() -> Result:
    """Attack a network behind a step without a gradient."""

    class Rounded(Small):
        def __init__(self, channels: int, width: int) -> None:
            super().__init__(channels, width)
            self.rounding = Bpda(lambda x: (x * 8).round() / 8)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.rounding(x))

    return run_attack(Pgd(steps=4), Threat.parse(NORMS["linf"]), network=make_network(Rounded))


def list_stages(norm: str) -> Result:
    """List the stages of all versions of AutoAttack and the attacks of all names, as they are written."""
    of = Threat.parse(NORMS[norm]).norm
    names = ("pgd-20", "mim", "cw", "apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")
    attacks = [parse_attack(name, of) for name in names]
    for version in ("standard", "plus", "rand"):
        attacks += AutoAttack(version=version).stages(of)
    return make_result({}, [number for attack in attacks for number in _list_numbers(attack)])


def _list_numbers(attack: Attack) -> list[float]:
    """List the budget of an attack: numbers that stay when fields are renamed."""
    if isinstance(attack, Apgd):
        return [attack.steps, attack.targets, attack.restarts, attack.rho, attack.eot, *attack.schedule[0]]
    if isinstance(attack, Fab):
        return [attack.steps, attack.targets, attack.restarts, attack.alpha_max, attack.eta, attack.beta]
    if isinstance(attack, Square):
        return [attack.queries, attack.p, attack.restarts]
    passes = attack.passes()
    return [int(passes.forwards), int(passes.backwards)]


CASES: dict[str, Callable[[], Result]] = {
    **{
        f"attacks/{name}/{norm}{'/per-example' if alone else ''}": partial(run_named, name, norm, alone=alone)
        for name in ATTACKS
        for norm in NORMS
        for alone in (False, True)
    },
    **{
        f"attacks/begin/{name}/{norm}": partial(begin_search, name, norm)
        for name in SEARCHES
        if name != "cascade"
        for norm in NORMS
    },
    **{
        f"attacks/{name}/union{'/per-example' if alone else ''}": partial(run_union, name, alone=alone)
        for name in ("msd", "hardest")
        for alone in (False, True)
    },
    **{f"attacks/stages/{norm}": partial(list_stages, norm) for norm in NORMS},
    "attacks/weighted": partial(run_weighted, alone=False),
    "attacks/weighted/per-example": partial(run_weighted, alone=True),
    "attacks/eot/pgd": partial(run_on_random, Pgd(steps=3, eot=2)),
    "attacks/eot/apgd": partial(run_on_random, Apgd(steps=4, eot=2)),
    "attacks/transfer": run_transfer,
    "attacks/bpda": run_through_rounding,
    "attacks/batch-norm/eval": partial(run_in_mode, "eval"),
    "attacks/batch-norm/train": partial(run_in_mode, "train"),
    "attacks/batch-norm/train-frozen": partial(run_in_mode, "train_frozen"),
}
