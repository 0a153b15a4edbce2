"""Attacks in turn, each on the points that are left, and AutoAttack as such a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
from pydantic import Field

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.apgd_schedule import ENLARGED, Schedule
from allrounder.attacks.base import Attack, Crafted
from allrounder.attacks.fab import Fab
from allrounder.attacks.restarts import judge
from allrounder.attacks.square import Square
from allrounder.config.fields import Kind, value
from allrounder.rng import Draws
from allrounder.threats.norms import EVERY_NORM, L1, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes

Version = Literal["standard", "plus", "rand"]


def _every_attack() -> Mapping[str, type[Attack]]:
    from allrounder.attacks import ATTACKS, SEARCHES

    return {**ATTACKS, **SEARCHES}


@final
@value
class Cascade(Attack):
    """Attacks in turn: only points that are still classified correctly go to the next."""

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM

    attacks: Annotated[tuple[Annotated[Attack, Kind(_every_attack)], ...], Field(min_length=1)]
    """What to run, in order."""

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Run all in turn on a batch."""
        return run_in_turn(self.attacks, model, x, y, threat, draws)

    def parts(self) -> tuple[Attack, ...]:
        """The attacks that are run."""
        return self.attacks


@final
@value
class AutoAttack(Attack):
    """AutoAttack: APGD-CE, targeted APGD-DLR, targeted FAB and Square in turn, at their published budgets.

    Croce and Hein, 2020, Reliable evaluation of adversarial robustness with an ensemble of diverse
    parameter-free attacks; for L1: 2021, Mind the box.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM

    version: Version = "standard"
    """standard; plus (more restarts and the untargeted forms); rand (for randomised networks)."""

    def stages(self, norm: Norm) -> tuple[Attack, ...]:
        """The attacks in order; the L1 version has restarts, fewer targets and a shrinking ball."""
        l1, schedule = isinstance(norm, L1), self.schedule(norm)
        targeted = Apgd(surrogate="dlr", targets=5 if l1 else 9, schedule=schedule)
        if self.version == "standard":
            return (Apgd(restarts=5 if l1 else 1, schedule=schedule), targeted, Fab(targets=9), Square())
        if self.version == "rand":
            return tuple(Apgd(surrogate=name, eot=20, schedule=schedule) for name in ("ce", "dlr"))
        several = [Apgd(surrogate=name, restarts=5, schedule=schedule) for name in ("ce", "dlr")]
        return (*several, Fab(targets=0, restarts=5), Square(), targeted, Fab(targets=9))

    def schedule(self, norm: Norm) -> Schedule:
        """The radii of APGD: in L1 they shrink to the ball."""
        return ENLARGED if isinstance(norm, L1) else ((1.0, 1.0),)

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Run all in turn on a batch; an evaluation drives them in lanes instead."""
        return run_in_turn(self.stages(threat.norm), model, x, y, threat, draws)


def stages_of(attack: Attack, threat: Threat) -> tuple[Attack, ...]:
    """The attacks that an attack runs in turn; most are their own only stage."""
    match attack:
        case AutoAttack():
            return attack.stages(threat.norm)
        case Cascade():
            return tuple(stage for part in attack.attacks for stage in stages_of(part, threat))
        case _:
            return (attack,)


def run_in_turn(
    attacks: tuple[Attack, ...], model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws
) -> Crafted:
    """Run attacks on what the ones before left over."""
    with torch.no_grad():
        fooled = model(x).argmax(1) != y
    x_adv, passes = x.clone(), Passes(forwards=1)
    for number, attack in enumerate(attacks):
        left = (~fooled).nonzero().flatten()
        if len(left) == 0:
            break
        found = attack.run(model, x[left], y[left], threat, draws.of_rows(left).at("stage", number))
        _, now, price = judge(found, model, y[left])
        x_adv[left[now]], fooled[left[now]] = found.x[now], True
        passes = passes + found.passes + price
    return Crafted(x=x_adv, fooled=fooled, passes=passes)
