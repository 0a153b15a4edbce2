"""Adversarial training under several threats at once: their average, or the worst of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, final

import torch
from pydantic import AfterValidator
from torch import Tensor, nn

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, Crafted, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.attacks.worst_of import Hardest
from allrounder.config.fields import Kind, value
from allrounder.objectives.base import Objective, fit
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Batch, Context, Loss, NormLayers, Passes


def _several(threats: tuple[Threat, ...]) -> tuple[Threat, ...]:
    told = ", ".join(str(threat) for threat in threats) or "none"
    if len(set(threats)) < 2 or len(set(threats)) < len(threats):
        raise ValueError(f"expected two or more different threats, got {told}; add one, or train one norm")
    return threats


Threats = Annotated[tuple[Threat, ...], AfterValidator(_several)]
"""Two or more different threats."""


@final
@value
class Average(Objective):
    """Averaged adversarial training (AVG): loss = mean over threats p of CE(f(x'_p), y).

    Every x'_p is crafted on its own from the same images. One training pass sees all of them together, so
    batch-norm takes its statistics over every kind of perturbation. Tramer and Boneh, 2019, Adversarial
    training and robustness for multiple perturbations; their attack climbs the margin.
    """

    reference: ClassVar[str] = "Tramer and Boneh, 2019"

    against: Threats
    """The threats to train against, at least two."""
    attack: Annotated[Attack, Kind(lambda: ATTACKS)] = Pgd(steps=10, step=0.25)
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting."""

    def __post_init__(self) -> None:
        for threat in self.against:
            self.attack.check_supports(threat)

    def threats(self) -> tuple[Threat, ...]:
        """Those it averages over."""
        return self.against

    def craft_passes(self) -> Passes:
        """An attack for every threat."""
        return self.attack.passes() * len(self.against)

    def loss_passes(self) -> Passes:
        """A pair for every threat."""
        return Passes(1, 1) * len(self.against)

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """The images of all threats, one threat after the other."""
        found = [
            perturb(
                self.attack,
                model,
                batch.x,
                batch.y,
                threat,
                ctx.draws.at("attack", number),
                norm_layers=self.norm_layers,
            )
            for number, threat in enumerate(self.against)
        ]
        return together(found)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Mean cross-entropy over the images of all threats, in one pass."""
        assert crafted is not None
        return fit(model(crafted.x), repeated(batch, len(self.against)))


@final
@value
class Worst(Objective):
    """Adversarial training on the worst threat (MAX): loss = CE(f(x'), y), x' = argmax_p CE(f(x'_p), y).

    Every x'_p is crafted on its own, and compared where it was crafted, so by default in eval mode; each
    image trains on its hardest one alone. Of the same paper as AVG.
    """

    reference: ClassVar[str] = "Tramer and Boneh, 2019"

    against: Threats
    """The threats to train against, at least two."""
    attack: Annotated[Attack, Kind(lambda: ATTACKS)] = Pgd(steps=10, step=0.25)
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting and comparing."""

    def __post_init__(self) -> None:
        Hardest(attack=self.attack).check_supports(AnyOf(self.against))

    def threats(self) -> tuple[Threat, ...]:
        """Those of which the worst counts."""
        return self.against

    def craft_passes(self) -> Passes:
        """For every threat an attack and a comparison."""
        return Hardest(attack=self.attack).passes_under(len(self.against))

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """The hardest image of all threats."""
        return perturb(
            Hardest(attack=self.attack),
            model,
            batch.x,
            batch.y,
            AnyOf(self.against),
            ctx.draws.at("attack"),
            norm_layers=self.norm_layers,
        )

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Cross-entropy on the hardest images."""
        assert crafted is not None
        return fit(model(crafted.x), batch)


def together(found: Sequence[Crafted]) -> Crafted:
    """What several attacks found, one behind the other."""
    return Crafted(x=torch.cat([one.x for one in found]), passes=sum((one.passes for one in found), Passes()))


def repeated(batch: Batch, times: int) -> Batch:
    """The batch so many times behind itself."""

    def tiled(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else torch.cat([tensor] * times)

    return replace(
        batch,
        x=torch.cat([batch.x] * times),
        y=torch.cat([batch.y] * times),
        index=torch.cat([batch.index] * times),
        partner=tiled(batch.partner),
        weight=tiled(batch.weight),
        extra=tiled(batch.extra),
    )
