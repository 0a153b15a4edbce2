"""Random restarts of another attack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.losses import cross_entropy
from allrounder.config.fields import OneOf, PositiveInt, frozen_config
from allrounder.rng import Rng
from allrounder.threats.norms import ALL_NORMS, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes, PerExample, PerExampleBool


def attack_table() -> Mapping[str, type[Attack]]:
    """The table of attacks, imported on first use because it contains the attacks that use it."""
    from allrounder.attacks import ATTACKS

    return ATTACKS


@final
@frozen_config
class Restarts(Attack):
    """Several runs of an attack with different random starts; keeps the best result for each example.

    The best result is the first that fools the network, otherwise the one of highest loss. Stops as soon as
    all examples are fooled.
    """

    norms: ClassVar[frozenset[type[Norm]]] = ALL_NORMS

    attack: Annotated[Attack, OneOf(attack_table)]
    """The attack to run; it determines the supported norms."""
    count: PositiveInt = 5
    """The number of runs, including the first."""

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        x_adv = x
        passes = Passes()
        loss = torch.full_like(x[:, 0, 0, 0], float("-inf"))
        fooled = torch.zeros_like(y, dtype=torch.bool)
        for i in range(self.count):
            result = self.attack.run(model, x, y, threat, rng.fold_in("restart", i))
            new_loss, new_fooled, extra_passes = loss_and_fooled(result, model, y)
            # Not (new_loss > loss), so that a NaN is kept and `perturb` detects it.
            better = ~fooled & (new_fooled | ~(new_loss <= loss))
            x_adv = torch.where(better[:, None, None, None], result.x, x_adv)
            loss = torch.where(better, new_loss, loss)
            fooled = fooled | new_fooled
            passes = passes + result.passes + extra_passes
            if fooled.all():
                break
        return AttackResult(x=x_adv, loss=loss, fooled=fooled, passes=passes)

    def passes(self) -> Passes:
        """The passes of `count` runs, each with one more forward pass to compare the results."""
        return (self.attack.passes() + Passes(forwards=1)) * self.count

    @override
    def sub_attacks(self) -> tuple[Attack, ...]:
        return (self.attack,)


def loss_and_fooled(
    result: AttackResult, model: Classifier, y: Labels
) -> tuple[PerExample, PerExampleBool, Passes]:
    """Loss, fooled, and the passes spent to compute them: one forward pass if the attack did not report
    them."""
    if result.loss is not None and result.fooled is not None:
        return result.loss, result.fooled, Passes()
    logits = model(result.x)
    return cross_entropy(logits, y), logits.argmax(dim=1) != y, Passes(forwards=1)
