"""The table of attacks: a new attack is one file here and one line below.

x_adv = craft(model, x, y, attack="pgd-20", threat="L2:128/255")
"""

from __future__ import annotations

import re
import warnings
from dataclasses import fields
from typing import Any, cast

from torch import Tensor

from allrounder.attacks.apgd import Apgd
from allrounder.attacks.apgd_train import ApgdTrain
from allrounder.attacks.autoattack import AutoAttack, named_attacks
from allrounder.attacks.base import Attack, perturb
from allrounder.attacks.base import AttackResult as AttackResult
from allrounder.attacks.bpda import Bpda as Bpda
from allrounder.attacks.combined import Cascade, PerNorm, RandomOf, Restarts, WorstOf
from allrounder.attacks.combined import Transfer as Transfer
from allrounder.attacks.curriculum import Curriculum as Curriculum
from allrounder.attacks.early_stop_pgd import EarlyStopPgd
from allrounder.attacks.fab import Fab
from allrounder.attacks.losses import CustomLoss as CustomLoss
from allrounder.attacks.mim import Mim
from allrounder.attacks.msd import Msd
from allrounder.attacks.pgd import Cw, Pgd
from allrounder.attacks.square import Square
from allrounder.config.fields import adapter, did_you_mean
from allrounder.config.text import quote
from allrounder.errors import RecipeError
from allrounder.rng import Rng
from allrounder.threats.norms import Linf, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier

ATTACKS: dict[str, type[Attack]] = {
    "pgd": Pgd,
    "mim": Mim,
    "cw": Cw,
    "early-stop-pgd": EarlyStopPgd,
    "msd": Msd,
    "apgd-train": ApgdTrain,
    "restarts": Restarts,
    "worst-of": WorstOf,
    "random-of": RandomOf,
    "per-norm": PerNorm,
    "curriculum": Curriculum,
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

MAX_STEP_DIGITS = 9
"""Digits of the steps in the name of an attack."""


def parse_attack(text: str, norm: Norm | None = None) -> Attack:
    """Return the attack with a name: "pgd-20", "MI-FGSM", "apgd-ce", "apgd-t", "fab-t", "square", "aa", ...

    A stage of AutoAttack gets the settings that AutoAttack uses for `norm`: L1 has restarts and other radii.
    """
    plain = _without_separators(text)
    word = plain.rstrip("0123456789")
    steps = plain[len(word) :]
    if len(steps) > MAX_STEP_DIGITS:
        raise RecipeError(f"attack {quote(text)}: expected steps of at most {MAX_STEP_DIGITS} digits")
    fixed_length = {name: attack for attack in ATTACKS.values() for name in attack.names}
    for name, attack in fixed_length.items():
        if word == _without_separators(name) and (not steps or int(steps) > 0):
            if steps and "steps" not in {field.name for field in fields(cast(Any, attack))}:
                raise RecipeError(
                    f"attack {quote(text)}: {name} has no steps, got {steps}; leave out the number"
                )
            return adapter(attack).validate_python({"steps": int(steps)} if steps else {})
    searches = named_attacks(norm or Linf())
    for name, attack in searches.items():
        if plain == _without_separators(name):
            return attack
    names = [*fixed_length, *searches]
    expected = f"(known: {', '.join(names)}, or with steps pgd-20)"
    raise RecipeError(f"unknown attack {quote(text)} {expected}{did_you_mean(word, names)}")


def _without_separators(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def craft(
    model: Classifier,
    x: Tensor,
    y: Tensor,
    *,
    attack: Attack | str = "pgd-20",
    threat: Threat | str,
    seed: int = 0,
) -> Tensor:
    """Craft adversarial images in one line, with the network in eval mode; warns of a very large budget."""
    parsed = parse_attack(attack) if isinstance(attack, str) else attack
    ball = Threat.parse(threat)
    if (problem := ball.size_problem(x.shape[1:])) is not None:
        warnings.warn(problem, stacklevel=2)
    return perturb(parsed, model, x, y, ball, Rng(seed)).x
