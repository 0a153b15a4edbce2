"""What an evaluation asks: an attack under a threat; and the papers' columns as suites of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from allrounder.attacks import attack_named
from allrounder.attacks.base import Attack
from allrounder.threats import Threat
from allrounder.values import Written, nearest


@final
@dataclass(frozen=True)
class Probe(Written):
    """An attack under a threat, written "pgd-20@Linf:8/255"."""

    name: str
    attack: Attack
    threat: Threat

    @classmethod
    def of(cls, attack: str, threat: Threat | str) -> Probe:
        """The attack of a name, in the form it has under this threat."""
        parsed = Threat.read(threat)
        probe = cls(attack, attack_named(attack, parsed.norm), parsed)
        probe.attack.check_supports(parsed)
        return probe

    @classmethod
    def read(cls, raw: object) -> Probe:
        """Parse "attack@threat"."""
        if isinstance(raw, cls):
            return raw
        name, sign, threat = str(raw).partition("@")
        if not isinstance(raw, str) or not sign:
            raise ValueError(f'expected an attack and a threat, such as "pgd-20@Linf:8/255", got {raw!r}')
        return cls.of(name, threat)

    def write(self) -> str:
        """The written form, which is also its key in an outcome."""
        return f"{self.name}@{self.threat}"

    def __str__(self) -> str:
        return self.write()


SUITES: dict[str, tuple[str, ...]] = {
    "standard": ("aa",),
    "papers-plus": ("pgd-20", "aa"),
    "papers-cvpr": (
        "pgd-20",
        "pgd-100",
        "mim",
        "cw",
        "apgd-ce",
        "apgd-dlr",
        "apgd-t",
        "fab-t",
        "square",
        "aa",
    ),
}
"""Attacks by the tables that have them as columns. What AutoAttack shares with a column is not run twice."""


def suite(name: str, threats: Sequence[Threat | str]) -> tuple[Probe, ...]:
    """The probes of a suite under every threat."""
    if name not in SUITES:
        raise ValueError(f"unknown suite {name!r} (known: {', '.join(SUITES)}){nearest(name, SUITES)}")
    return tuple(Probe.of(attack, threat) for threat in threats for attack in SUITES[name])
