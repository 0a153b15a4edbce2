"""The table of attacks: a new one is one file here and one line below.

x_adv = craft(model, x, y, attack="pgd-20", threat="L2:128/255")
"""

from __future__ import annotations

import re

from torch import Tensor

from allrounder.attacks.base import Attack, Crafted, perturb
from allrounder.attacks.cw import Cw
from allrounder.attacks.mim import Mim
from allrounder.attacks.pgd import Pgd
from allrounder.attacks.restarts import Restarts
from allrounder.rng import Draws
from allrounder.threats import Threat
from allrounder.types import Classifier
from allrounder.values import adapter, nearest

ATTACKS: dict[str, type[Attack]] = {"pgd": Pgd, "mim": Mim, "cw": Cw, "restarts": Restarts}

NAMES: dict[str, str] = {"pgd": "pgd", "mim": "mim", "mifgsm": "mim", "cw": "cw"}
"""What an evaluation may call an attack, with its kind; a number behind the name is its steps."""


def attack_named(text: str) -> Attack:
    """The attack meant by a name such as "pgd-20", "PGD100", "mim" or "MI-FGSM"."""
    plain = re.sub(r"[-_ ]", "", text).lower()
    word = plain.rstrip("0123456789")
    steps = plain[len(word) :]
    if word not in NAMES or (steps and int(steps) == 0):
        known = ", ".join(NAMES)
        raise ValueError(
            f"unknown attack {text!r} (known: {known}, or with steps pgd-20){nearest(word, NAMES)}"
        )
    return adapter(ATTACKS[NAMES[word]]).validate_python({"steps": int(steps)} if steps else {})


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


__all__ = ["ATTACKS", "Attack", "Crafted", "Cw", "Mim", "Pgd", "Restarts", "attack_named", "craft", "perturb"]
