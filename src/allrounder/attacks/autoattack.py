"""AutoAttack: a fixed sequence of APGD, FAB and Square."""

from __future__ import annotations

from typing import ClassVar, Literal, final

from allrounder.attacks.apgd import L1_SCHEDULE, Apgd, RadiusSchedule
from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.combined import run_cascade
from allrounder.attacks.fab import Fab
from allrounder.attacks.square import Square
from allrounder.config.fields import frozen_config
from allrounder.rng import Rng
from allrounder.threats.norms import L1, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels

Version = Literal["standard", "plus", "rand"]


@final
@frozen_config
class AutoAttack(Attack):
    """AutoAttack: APGD-CE, targeted APGD-DLR, targeted FAB and Square in sequence, with published budgets.

    Croce and Hein, 2020, Reliable evaluation of adversarial robustness with an ensemble of diverse
    parameter-free attacks; for L1: 2021, Mind the box.
    """

    stops_at_success: ClassVar[bool] = True

    version: Version = "standard"
    """standard; plus (more restarts, and untargeted attacks as well); rand (for randomised networks)."""

    def stages(self, norm: Norm) -> tuple[Attack, ...]:
        """The attacks in order; for L1, APGD has restarts, fewer targets and shrinking radii."""
        is_l1, schedule = isinstance(norm, L1), _schedule(norm)
        targeted = Apgd(surrogate="dlr", targets=5 if is_l1 else 9, schedule=schedule)
        if self.version == "standard":
            return (Apgd(restarts=5 if is_l1 else 1, schedule=schedule), targeted, Fab(targets=9), Square())
        if self.version == "rand":
            return tuple(Apgd(surrogate=name, eot=20, schedule=schedule) for name in ("ce", "dlr"))
        untargeted = [Apgd(surrogate=name, restarts=5, schedule=schedule) for name in ("ce", "dlr")]
        return (*untargeted, Fab(targets=0, restarts=5), Square(), targeted, Fab(targets=9))

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        """Run the stages in order on one batch; an evaluation runs them with `SearchDriver` instead."""
        return run_cascade(self.stages(threat.norm), model, x, y, threat, rng)


def _schedule(norm: Norm) -> RadiusSchedule:
    return L1_SCHEDULE if isinstance(norm, L1) else ((1.0, 1.0),)


def named_attacks(norm: Norm) -> dict[str, Attack]:
    """The versions of AutoAttack and its stages by name, with the settings that they have under a norm."""
    standard = AutoAttack()
    apgd_ce, apgd_t, fab_t, square = standard.stages(norm)
    return {
        "apgd-ce": apgd_ce,
        "apgd-dlr": Apgd(surrogate="dlr", schedule=_schedule(norm)),
        "apgd-t": apgd_t,
        "fab": Fab(targets=0),
        "fab-t": fab_t,
        "square": square,
        "aa": standard,
        "autoattack": standard,
        "aa-plus": AutoAttack(version="plus"),
        "aa-rand": AutoAttack(version="rand"),
    }
