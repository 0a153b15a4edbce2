"""What an evaluation asks: an attack under a threat; and the papers' columns as suites of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from allrounder.attacks import attack_named
from allrounder.attacks.base import Attack
from allrounder.config.fields import Written, nearest
from allrounder.threats.threat import Threat

Budget: TypeAlias = float | int | str
"""The radius of a ball, as a number or a fraction such as 8/255."""


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


def chosen(
    probes: Sequence[Probe | str],
    *,
    norm: str | None = None,
    eps: Budget | Sequence[Budget] | None = None,
    threats: Sequence[Threat | str] = (),
    attacks: Sequence[str] = (),
) -> tuple[Probe, ...]:
    """The probes that are meant, each once: those given, and every attack under every threat.

    A norm with one or several budgets is a threat for each. Without an attack it is AutoAttack.
    """
    if (norm is None) != (eps is None):
        raise ValueError(f"norm is {norm} and eps is {eps}, expected both or none: no default suits all data")
    against = [Threat.read(threat) for threat in threats]
    if norm is not None and eps is not None:
        several = [eps] if isinstance(eps, int | float | str) else eps
        against += [Threat.parse(f"{norm}:{_written(one)}") for one in several]
    if attacks and not against:
        raise ValueError(f"attacks are {', '.join(attacks)}, threats none; expected some, such as Linf:8/255")
    crossed = [Probe.of(attack, threat) for attack in attacks or ("aa",) for threat in against]
    found: dict[str, Probe] = {}
    for probe in (*map(Probe.read, probes), *crossed):
        if found.setdefault(str(probe), probe) != probe:
            raise ValueError(f"two probes are called {probe}, expected different names; rename one")
    return tuple(found.values())


def _written(eps: Budget) -> Budget:
    """A number that is exactly k/255 is written so, because people do."""
    k = round(255 * eps) if isinstance(eps, float) else 0
    return f"{k}/255" if k and k / 255 == eps and len(repr(eps)) > 8 else eps
