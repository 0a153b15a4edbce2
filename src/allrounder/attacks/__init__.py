"""The table of attacks: a new one is one file here and one line below.

x_adv = craft(model, x, y, attack="pgd-20", threat="L2:128/255")
"""

from __future__ import annotations

import re

from torch import Tensor

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.apgd_train import ApgdTrain
from allrounder.attacks.autoattack import AutoAttack, Cascade, Version
from allrounder.attacks.base import Attack, Crafted, perturb
from allrounder.attacks.custom_loss import Bpda, CustomLoss
from allrounder.attacks.cw import Cw
from allrounder.attacks.early_stop_pgd import Friendly
from allrounder.attacks.fab import Fab
from allrounder.attacks.mim import Mim
from allrounder.attacks.msd import MultiSteepest
from allrounder.attacks.pgd import Pgd
from allrounder.attacks.restarts import Restarts
from allrounder.attacks.square import Square
from allrounder.attacks.transfer import Transfer
from allrounder.config.fields import adapter, nearest
from allrounder.rng import Draws
from allrounder.threats.norms import Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier

ATTACKS: dict[str, type[Attack]] = {
    "pgd": Pgd,
    "mim": Mim,
    "cw": Cw,
    "friendly": Friendly,
    "msd": MultiSteepest,
    "apgd-train": ApgdTrain,
    "restarts": Restarts,
}

SEARCHES: dict[str, type[Attack]] = {
    "apgd": Apgd,
    "fab": Fab,
    "square": Square,
    "cascade": Cascade,
    "autoattack": AutoAttack,
}
"""Attacks of evaluations: they stop at the first success, so they are not for training."""

NAMES: dict[str, str] = {"pgd": "pgd", "mim": "mim", "mifgsm": "mim", "cw": "cw"}
"""What an evaluation may call an attack of ATTACKS; a number behind the name is its steps."""
PARTS = {"apgdce": 0, "apgdt": 1, "fabt": 2, "square": 3}
"""What AutoAttack's stages are called alone."""
VERSIONS: dict[str, Version] = {
    "aa": "standard",
    "autoattack": "standard",
    "aaplus": "plus",
    "aarand": "rand",
}


def attack_named(text: str, norm: Norm | None = None) -> Attack:
    """The attack meant by a name: "pgd-20", "MI-FGSM", "apgd-ce", "apgd-t", "fab-t", "square", "aa", ...

    The parts of AutoAttack have the form they have there under the norm: in L1 with restarts and other radii.
    """
    plain = re.sub(r"[-_ ]", "", text).lower()
    word = plain.rstrip("0123456789")
    steps = plain[len(word) :]
    if word in NAMES and (not steps or int(steps) > 0):
        return adapter(ATTACKS[NAMES[word]]).validate_python({"steps": int(steps)} if steps else {})
    if word in VERSIONS and not steps:
        return AutoAttack(version=VERSIONS[word])
    if word in PARTS and not steps:
        return AutoAttack().stages(norm or Linf())[PARTS[word]]
    if word == "apgddlr" and not steps:
        return Apgd(surrogate="dlr", schedule=AutoAttack().schedule(norm or Linf()))
    if word == "fab" and not steps:
        return Fab(targets=0)
    known = [*NAMES, "apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square", "aa", "aa-plus", "aa-rand"]
    names = f"(known: {', '.join(known)}, or with steps pgd-20)"
    raise ValueError(f"unknown attack {text!r} {names}{nearest(word, known)}")


def label_of(attack: Attack) -> str:
    """The short name of an attack: what `attack_named` would read, without its settings."""
    match attack:
        case Apgd():
            loss = attack.surrogate if isinstance(attack.surrogate, str) else attack.surrogate.name
            return f"apgd-{loss}" if not attack.targets else "apgd-t" if loss == "dlr" else f"apgd-{loss}-t"
        case Fab():
            return "fab-t" if attack.targets else "fab"
        case _:
            return type(attack).__name__.lower()


def craft(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    *,
    attack: Attack | str = "pgd-20",
    threat: Threat | str,
    seed: int = 0,
) -> Tensor:
    """Adversarial images in one line, crafted in eval mode."""
    by = attack_named(attack) if isinstance(attack, str) else attack
    return perturb(by, model, x, y, Threat.read(threat), Draws(seed)).x


__all__ = [
    "ATTACKS",
    "SEARCHES",
    "Apgd",
    "ApgdTrain",
    "Attack",
    "AutoAttack",
    "Bpda",
    "Cascade",
    "Crafted",
    "CustomLoss",
    "Cw",
    "Fab",
    "Friendly",
    "Mim",
    "MultiSteepest",
    "Pgd",
    "Restarts",
    "Square",
    "Transfer",
    "attack_named",
    "craft",
    "label_of",
    "perturb",
]
