"""The worst case over a union of threats: attack each ball, keep the image of highest loss."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.losses import cross_entropy
from allrounder.attacks.restarts import attack_table
from allrounder.config.fields import OneOf, frozen_config
from allrounder.rng import Rng
from allrounder.threats.norms import ALL_NORMS, Norm
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Classifier, Images, Labels, Passes


@final
@frozen_config
class WorstOf(Attack):
    """Runs an attack under each threat and keeps the candidate of highest cross-entropy for each image.

    x' = argmax_p CE(f(x'_p), y), where x'_p is the result under threat p; the first one wins ties. Each
    threat costs one more forward pass for the cross-entropy, because the attack may use another loss.
    """

    norms: ClassVar[frozenset[type[Norm]]] = ALL_NORMS
    supports_unions: ClassVar[bool] = True

    attack: Annotated[Attack, OneOf(attack_table)]
    """The attack to run; it determines the supported norms."""

    @override
    def check_supports(self, threat: Threat | AnyOf) -> None:
        for member in split_union(threat):
            self.attack.check_supports(member)

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat | AnyOf, rng: Rng) -> AttackResult:
        x_adv = x
        passes = Passes()
        loss = torch.full_like(x[:, 0, 0, 0], float("-inf"))
        fooled = torch.zeros_like(y, dtype=torch.bool)
        for number, member in enumerate(split_union(threat)):
            result = self.attack.run(model, x, y, member, rng.fold_in("threat", number))
            logits = model(result.x)
            passes = passes + result.passes + Passes(forwards=1)
            new_loss = cross_entropy(logits, y)
            # Not (new_loss > loss), so that a NaN is kept and `perturb` detects it.
            worse = ~(new_loss <= loss)
            x_adv = torch.where(worse[:, None, None, None], result.x, x_adv)
            loss = torch.where(worse, new_loss, loss)
            fooled = torch.where(worse, logits.argmax(1) != y, fooled)
        return AttackResult(x=x_adv, loss=loss, fooled=fooled, passes=passes)

    @override
    def passes(self) -> Passes:
        return self.passes_under(1)

    @override
    def passes_under(self, num_threats: int) -> Passes:
        return (self.attack.passes() + Passes(forwards=1)) * num_threats


def split_union(threat: Threat | AnyOf) -> tuple[Threat, ...]:
    """The threats in a union; a single threat is a union of one."""
    return threat.threats if isinstance(threat, AnyOf) else (threat,)
