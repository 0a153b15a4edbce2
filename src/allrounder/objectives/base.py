"""What a learner minimises: adversarial images crafted by an attack, and a loss on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, cast

import torch.nn.functional as F
from pydantic import AfterValidator, PlainSerializer, PlainValidator, WithJsonSchema
from torch import Tensor, nn
from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult, perturb
from allrounder.threats.norms import ALL_NORMS, Norm
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Batch, BatchNormMode, Context, Logits, Loss, Passes


def _check_distinct(threats: tuple[Threat, ...]) -> tuple[Threat, ...]:
    if len(set(threats)) < 2 or len(set(threats)) < len(threats):
        got = ", ".join(str(threat) for threat in threats) or "none"
        raise ValueError(f"expected two or more different threats, got {got}; add one, or train one norm")
    return threats


def _parse_threat_or_union(raw: object) -> Threat | AnyOf:
    if isinstance(raw, AnyOf):
        return AnyOf(_check_distinct(raw.threats))
    if isinstance(raw, list | tuple):
        members = cast(list[object], raw)
        return AnyOf(_check_distinct(tuple(Threat.parse(member) for member in members)))
    return Threat.parse(raw)


def _threat_or_union_to_toml(threat: Threat | AnyOf) -> str | list[str]:
    if isinstance(threat, AnyOf):
        return [member.to_toml() for member in threat.threats]
    return threat.to_toml()


Threats = Annotated[tuple[Threat, ...], AfterValidator(_check_distinct)]
"""Two or more different threats."""
ThreatOrUnion = Annotated[
    Threat | AnyOf,
    PlainValidator(_parse_threat_or_union),
    PlainSerializer(_threat_or_union_to_toml),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
"""A threat, or the union of two or more, which a recipe writes as a list."""


class Objective(ABC):
    """A training method made of `craft`, then `loss`; a frozen value whose state its learner keeps."""

    reference: ClassVar[str]
    """Authors and year, shown by `allrounder list`."""
    norms: ClassVar[frozenset[type[Norm]]] = ALL_NORMS
    """The norms it can train under."""
    whole_batch: ClassVar[bool] = False
    """Whether the loss is more than a mean over images, so that ranks cannot split a batch."""

    def threats(self) -> tuple[Threat, ...]:
        """The threats it trains robustness against; none by default."""
        return ()

    def craft_passes(self) -> Passes:
        """The passes of `craft`, counted in whole batches; an upper bound if crafting stops early."""
        return Passes()

    def loss_passes(self) -> Passes:
        """The passes of `loss`; one forward and one backward by default."""
        return Passes(1, 1)

    def passes(self) -> Passes:
        """The passes of one step."""
        return self.craft_passes() + self.loss_passes()

    def problems(self, epochs: int) -> list[tuple[str, str]]:
        """Fields that are invalid in a run of `epochs` epochs, each with a message."""
        return []

    def problem_without_extra(self) -> tuple[str, str] | None:
        """A field that is invalid without extra images, with a message; None by default."""
        return None

    def memory(self) -> dict[str, Tensor]:
        """The initial state that the method carries from step to step; the learner owns and saves it."""
        return {}

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> AttackResult | None:
        """Craft the images to train on; None by default."""
        return None

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """The loss to minimise, with the network in training mode."""


class SingleThreatObjective(Objective):
    """An objective that crafts with one attack under one threat; subclasses declare the fields."""

    threat: Threat
    attack: Attack
    norm_layers: BatchNormMode

    def __post_init__(self) -> None:
        self.attack.check_supports(self.threat)

    @override
    def threats(self) -> tuple[Threat, ...]:
        return (self.threat,)

    @override
    def craft_passes(self) -> Passes:
        return self.attack.passes()

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> AttackResult | None:
        """Attack the current network on hard labels."""
        rng = ctx.rng.fold_in("attack")
        return perturb(self.attack, model, batch.x, batch.y, self.threat, rng, norm_layers=self.norm_layers)


def cross_entropy_loss(logits: Logits, batch: Batch) -> Loss:
    """Mean cross-entropy with the batch's targets, and the accuracy.

    Targets are smoothed, and mixed if the images are; the accuracy counts the label with the larger weight.
    """
    if batch.partner is None:
        total = F.cross_entropy(logits, batch.y, label_smoothing=batch.label_smoothing)
    else:
        total = F.cross_entropy(logits, batch.targets(logits.shape[1]))
    return Loss(total, {"accuracy": (logits.detach().argmax(1) == batch.y).float().mean()})
