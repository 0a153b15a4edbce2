"""What an evaluation runs: probes, which are attacks under threats, and the stages of each probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias, cast, final

from torch import nn

from allrounder.attacks import Transfer, parse_attack
from allrounder.attacks.base import Attack
from allrounder.config.fields import TextValue, did_you_mean
from allrounder.config.text import quote
from allrounder.errors import InputError, RecipeError
from allrounder.rng import Rng
from allrounder.threats.threat import Threat

Eps: TypeAlias = float | int | str
"""The radius of a ball, as a number or a fraction such as 8/255."""
SMALL_IMAGE = 1024
"""Values per image up to which a forward pass costs little more than the overhead around it."""
SUITES: dict[str, tuple[str, ...]] = {
    "standard": ("aa",),
    "papers-plus": ("pgd-20", "aa"),
    "papers-cvpr": (
        *("pgd-20", "pgd-100", "mim", "cw", "apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square", "aa"),
    ),
}
"""Attacks by the paper whose tables have them as columns; a stage that two columns share runs once."""


@final
@dataclass(frozen=True)
class Probe(TextValue):
    """An attack under a threat, written "pgd-20@Linf:8/255"."""

    name: str
    attack: Attack
    threat: Threat

    @classmethod
    def of(cls, attack: str, threat: Threat | str) -> Probe:
        """Look up an attack by name, in the form that it has under this threat."""
        parsed = Threat.parse(threat)
        probe = cls(attack, parse_attack(attack, parsed.norm), parsed)
        probe.attack.check_supports(parsed)
        return probe

    @classmethod
    def parse(cls, raw: object) -> Probe:
        """Parse "attack@threat"."""
        if isinstance(raw, cls):
            return raw
        name, sign, threat = raw.partition("@") if isinstance(raw, str) else ("", "", "")
        if not sign:
            expected = 'expected an attack and a threat, such as "pgd-20@Linf:8/255"'
            raise RecipeError(f"{expected}, got {quote(raw)}")
        return cls.of(name, threat)

    def to_toml(self) -> str:
        """The name of the probe in recipes and outcomes: "attack@threat"."""
        return f"{self.name}@{self.threat}"

    __str__ = to_toml

    def with_eot(self, eot: int) -> Probe:
        """The same attack with the mean of `eot` gradients in every step, for random networks."""
        if "eot" not in {field.name for field in fields(cast(Any, self.attack))}:
            hint = "use pgd or an apgd, or aa-rand, which averages 20 gradients"
            raise ValueError(f"{self.name}: cannot average gradients, got eot {eot}; {hint}")
        return replace(self, name=f"{self.name}-eot-{eot}", attack=replace(cast(Any, self.attack), eot=eot))

    def transfer_from(self, source: nn.Module, name: str) -> Probe:
        """The same attack on a source network, whose images are evaluated on the network under test.

        The name of the probe contains a digest of the source: other weights are another probe.
        """
        transfer = Transfer(attack=self.attack, source=source, name=name)
        return replace(self, name=f"transfer-{self.name}-{name}-{transfer.digest[:8]}", attack=transfer)


@final
@dataclass(frozen=True)
class AttackStage:
    """One attack of a probe. AutoAttack and other cascades have several stages, most attacks only one.

    A search has the same key and the same random numbers alone and in every cascade, so its results are
    shared, and the result of a cascade is that of its stages combined.
    """

    probe: Probe
    attack: Attack
    number: int = 0
    """The position in the cascade, from 0."""

    def key(self) -> str:
        """The key of its results in a `ResultStore`."""
        if (address := self.attack.address()) is not None:
            return f"{address}@{self.probe.threat}"
        return f"{self.attack} as {self.probe}" + (f" stage {self.number}" if self.number else "")

    def rng(self, rng: Rng) -> Rng:
        """The random numbers of this stage, derived from those of the evaluation."""
        if (address := self.attack.address()) is not None:
            return rng.fold_in("search", address, str(self.probe.threat))
        return rng.fold_in("probe", str(self.probe), *(("stage", self.number) if self.number else ()))

    def label(self) -> str:
        """The name in progress reports: that of the probe, or of the attack inside a cascade."""
        if self.attack is self.probe.attack:
            return str(self.probe)
        return f"{self.attack.label()}@{self.probe.threat}"

    def batch_width(self, classes: int, image_size: int, batch_size: int) -> int:
        """Images per forward pass: doubled if images are small and the attack can fill idle slots."""
        doubled = image_size <= SMALL_IMAGE and self.attack.fills_idle_slots(classes)
        return 2 * batch_size if doubled else batch_size


def probe_stages(probe: Probe) -> tuple[AttackStage, ...]:
    """The stages of a probe, in the order in which they run."""
    attacks = probe.attack.stages(probe.threat.norm)
    return tuple(AttackStage(probe, attack, number) for number, attack in enumerate(attacks))


def suite(name: str, threats: Sequence[Threat | str]) -> tuple[Probe, ...]:
    """The probes of a suite under every threat."""
    if name not in SUITES:
        raise InputError(f"unknown suite {name!r} (known: {', '.join(SUITES)}){did_you_mean(name, SUITES)}")
    return tuple(Probe.of(attack, threat) for threat in threats for attack in SUITES[name])


def select_probes(
    probes: Sequence[Probe | str] | str,
    *,
    norm: str | None = None,
    eps: Eps | Sequence[Eps] | None = None,
    threats: Sequence[Threat | str] | str = (),
    attacks: Sequence[str] | str = (),
) -> tuple[Probe, ...]:
    """The probes to run, each once: those given, and every attack under every threat; a text is one of them.

    A norm with several eps gives one threat for each. Without an attack it is AutoAttack.
    """
    if (norm is None) != (eps is None):
        raise InputError(f"norm is {norm} and eps is {eps}, expected both or none: no default suits all data")
    probes = [probes] if isinstance(probes, str) else probes
    threats = [threats] if isinstance(threats, str) else threats
    attacks = [attacks] if isinstance(attacks, str) else attacks
    all_threats = [Threat.parse(threat) for threat in threats]
    if norm is not None and eps is not None:
        radii = [eps] if isinstance(eps, int | float | str) else eps
        all_threats += [Threat.parse(f"{norm}:{_format_eps(radius)}") for radius in radii]
    if attacks and not all_threats:
        raise InputError(f"attacks are {', '.join(attacks)}, threats none; expected some, such as Linf:8/255")
    combinations = [Probe.of(attack, threat) for attack in attacks or ("aa",) for threat in all_threats]
    by_name: dict[str, Probe] = {}
    for probe in (*map(Probe.parse, probes), *combinations):
        if by_name.setdefault(str(probe), probe) != probe:
            raise InputError(f"two probes are called {probe}, expected different names; rename one")
    return tuple(by_name.values())


def _format_eps(eps: Eps) -> Eps:
    """Write a number that is exactly k/255 as a fraction, as papers do."""
    k = round(255 * eps) if isinstance(eps, float) else 0
    return f"{k}/255" if k and k / 255 == eps and len(repr(eps)) > 8 else eps
