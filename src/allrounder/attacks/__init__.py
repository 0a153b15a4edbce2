"""The table of attacks: a new attack is one file here and one line below.

x_adv = craft(model, x, y, attack="pgd-20", threat="L2:128/255")
"""

from __future__ import annotations

import re

from torch import Tensor

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.apgd_train import ApgdTrain
from allrounder.attacks.autoattack import AutoAttack, Version
from allrounder.attacks.base import Attack, AttackResult, perturb
from allrounder.attacks.bpda import Bpda
from allrounder.attacks.cascade import Cascade
from allrounder.attacks.custom_loss import CustomLoss
from allrounder.attacks.cw import Cw
from allrounder.attacks.early_stop_pgd import EarlyStopPgd
from allrounder.attacks.fab import Fab
from allrounder.attacks.mim import Mim
from allrounder.attacks.msd import Msd
from allrounder.attacks.pgd import Pgd
from allrounder.attacks.restarts import Restarts
from allrounder.attacks.square import Square
from allrounder.attacks.transfer import Transfer
from allrounder.attacks.worst_of import WorstOf
from allrounder.config.fields import adapter, did_you_mean
from allrounder.rng import Rng
from allrounder.threats.norms import Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier

ATTACKS: dict[str, type[Attack]] = {
    "pgd": Pgd,
    "mim": Mim,
    "cw": Cw,
    "friendly": EarlyStopPgd,
    "msd": Msd,
    "apgd-train": ApgdTrain,
    "restarts": Restarts,
    "worst-of": WorstOf,
}
"""Attacks for training and evaluation, by their kind in recipes."""

SEARCHES: dict[str, type[Attack]] = {
    "apgd": Apgd,
    "fab": Fab,
    "square": Square,
    "cascade": Cascade,
    "autoattack": AutoAttack,
}
"""Attacks for evaluation only: they stop at the first success, so their cost is not known in advance."""

ATTACK_ALIASES: dict[str, str] = {"pgd": "pgd", "mim": "mim", "mifgsm": "mim", "cw": "cw"}
"""Names of attacks in ATTACKS that `parse_attack` accepts; a number after the name sets the steps."""
AUTOATTACK_STAGES = {"apgdce": 0, "apgdt": 1, "fabt": 2, "square": 3}
"""Names of the stages of AutoAttack, with their positions in the standard version."""
AUTOATTACK_VERSIONS: dict[str, Version] = {
    "aa": "standard",
    "autoattack": "standard",
    "aaplus": "plus",
    "aarand": "rand",
}
"""Names of the versions of AutoAttack."""


def parse_attack(text: str, norm: Norm | None = None) -> Attack:
    """Return the attack with a name: "pgd-20", "MI-FGSM", "apgd-ce", "apgd-t", "fab-t", "square", "aa", ...

    A stage of AutoAttack gets the settings that AutoAttack uses for `norm`: L1 has restarts and other radii.
    """
    plain = re.sub(r"[-_ ]", "", text).lower()
    word = plain.rstrip("0123456789")
    steps = plain[len(word) :]
    if word in ATTACK_ALIASES and (not steps or int(steps) > 0):
        return adapter(ATTACKS[ATTACK_ALIASES[word]]).validate_python({"steps": int(steps)} if steps else {})
    if word in AUTOATTACK_VERSIONS and not steps:
        return AutoAttack(version=AUTOATTACK_VERSIONS[word])
    if word in AUTOATTACK_STAGES and not steps:
        return AutoAttack().stages(norm or Linf())[AUTOATTACK_STAGES[word]]
    if word == "apgddlr" and not steps:
        return Apgd(surrogate="dlr", schedule=AutoAttack().schedule(norm or Linf()))
    if word == "fab" and not steps:
        return Fab(targets=0)
    stages = ["apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square"]
    names = [*ATTACK_ALIASES, *stages, "aa", "aa-plus", "aa-rand"]
    expected = f"(known: {', '.join(names)}, or with steps pgd-20)"
    raise ValueError(f"unknown attack {text!r} {expected}{did_you_mean(word, names)}")


def craft(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    *,
    attack: Attack | str = "pgd-20",
    threat: Threat | str,
    seed: int = 0,
) -> Tensor:
    """Craft adversarial images in one line, with the network in eval mode."""
    parsed = parse_attack(attack) if isinstance(attack, str) else attack
    return perturb(parsed, model, x, y, Threat.parse(threat), Rng(seed)).x


__all__ = [
    "ATTACKS",
    "SEARCHES",
    "Apgd",
    "ApgdTrain",
    "Attack",
    "AttackResult",
    "AutoAttack",
    "Bpda",
    "Cascade",
    "CustomLoss",
    "Cw",
    "EarlyStopPgd",
    "Fab",
    "Mim",
    "Msd",
    "Pgd",
    "Restarts",
    "Square",
    "Transfer",
    "WorstOf",
    "craft",
    "parse_attack",
    "perturb",
]
