"""The unit of work of an evaluation: one attack of one probe, with its store key and its random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from allrounder.attacks.base import Attack
from allrounder.evaluation.probes import Probe
from allrounder.rng import Rng

SMALL_IMAGE = 1024
"""Values per image up to which a forward pass costs little more than the overhead around it."""


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
        """Images per forward pass, for images of `image_size` values.

        Twice the batch size where images are small and the attack can fill idle slots.
        """
        doubled = image_size <= SMALL_IMAGE and self.attack.fills_idle_slots(classes)
        return 2 * batch_size if doubled else batch_size


def probe_stages(probe: Probe) -> tuple[AttackStage, ...]:
    """The stages of a probe, in the order in which they run."""
    attacks = probe.attack.stages(probe.threat.norm)
    return tuple(AttackStage(probe, attack, number) for number, attack in enumerate(attacks))
