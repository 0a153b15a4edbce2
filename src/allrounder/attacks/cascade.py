"""Attacks in sequence, each on the images that the earlier ones did not fool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from pydantic import Field
from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.restarts import loss_and_fooled
from allrounder.config.fields import OneOf, frozen_config
from allrounder.rng import Rng
from allrounder.threats.norms import ALL_NORMS, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes


def _all_attacks() -> Mapping[str, type[Attack]]:
    from allrounder.attacks import ATTACKS, SEARCHES

    return {**ATTACKS, **SEARCHES}


@final
@frozen_config
class Cascade(Attack):
    """A sequence of attacks; each runs only on the images that are still classified correctly."""

    norms: ClassVar[frozenset[type[Norm]]] = ALL_NORMS
    stops_at_success: ClassVar[bool] = True

    attacks: Annotated[tuple[Annotated[Attack, OneOf(_all_attacks)], ...], Field(min_length=1)]
    """The attacks, in order."""

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        return run_cascade(self.attacks, model, x, y, threat, rng)

    @override
    def stages(self, norm: Norm) -> tuple[Attack, ...]:
        return tuple(stage for attack in self.attacks for stage in attack.stages(norm))

    @override
    def sub_attacks(self) -> tuple[Attack, ...]:
        return self.attacks


def run_cascade(
    attacks: tuple[Attack, ...], model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng
) -> AttackResult:
    """Run attacks in order, each on the images that the earlier ones did not fool."""
    with torch.no_grad():
        fooled = model(x).argmax(1) != y
    x_adv = x.clone()
    passes = Passes(forwards=1)
    for number, attack in enumerate(attacks):
        left = (~fooled).nonzero().flatten()
        if len(left) == 0:
            break
        result = attack.run(model, x[left], y[left], threat, rng.select(left).fold_in("stage", number))
        _, newly_fooled, extra_passes = loss_and_fooled(result, model, y[left])
        x_adv[left[newly_fooled]] = result.x[newly_fooled]
        fooled[left[newly_fooled]] = True
        passes = passes + result.passes + extra_passes
    return AttackResult(x=x_adv, fooled=fooled, passes=passes)
