"""Curriculum of attacks: a training attacks with one of them first, and with another later."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, cast, final

from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.combined import fixed_length_attacks
from allrounder.config.fields import OneOf, frozen_config
from allrounder.config.time import Duration, Time
from allrounder.rng import Rng
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Classifier, Images, Labels, Passes


@final
@frozen_config
class Curriculum(Attack):
    """A training attacks with `first` until the time `at`, and with `then` afterwards.

    A cheap attack first leaves passes for more epochs; the full attack at the end is meant against gradients
    that short attacks mask. Outside a training, it runs `then`.
    Cai, Liu and Song, 2018, Curriculum adversarial training: attacks with more and more steps.
    """

    first: Annotated[Attack, OneOf(fixed_length_attacks)]
    """The attack until the time `at`."""
    then: Annotated[Attack, OneOf(fixed_length_attacks)]
    """The attack from then on."""
    at: Duration
    """The time of the change: epochs, or a share of the run such as "75%"."""

    def __post_init__(self) -> None:
        takes_union = [any(part.supports_unions for part in attack.walk()) for attack in self.sub_attacks()]
        if takes_union[0] != takes_union[1]:
            problem = "only one of them takes several threats; choose two that do, or none"
            raise ValueError(f"{self.first} and {self.then}: {problem}")

    @override
    def switch_times(self) -> tuple[Time, ...]:
        return (self.at, *super().switch_times())

    @override
    def at_time(self, elapsed: Fraction, epochs: int) -> Attack:
        attack = self.first if elapsed < self.at.to_epochs(epochs) else self.then
        return cast(Attack, attack.at_time(elapsed, epochs))

    @override
    def check_supports(self, threat: Threat | AnyOf) -> None:
        for attack in self.sub_attacks():
            attack.check_supports(threat)

    @override
    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        return self.then.run(model, x, y, threat, rng)

    @override
    def passes(self) -> Passes:
        return max(self.first.passes(), self.then.passes(), key=lambda passes: passes.work)

    @override
    def passes_under(self, threats: Sequence[Threat]) -> Passes:
        each = (attack.passes_under(threats) for attack in self.sub_attacks())
        return max(each, key=lambda passes: passes.work)

    @override
    def sub_attacks(self) -> tuple[Attack, ...]:
        return (self.first, self.then)
