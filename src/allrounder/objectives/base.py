"""What a learner minimises: adversarial images crafted by an attack, and a loss on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, cast

import torch.nn.functional as F
from pydantic import AfterValidator, PlainSerializer, PlainValidator, WithJsonSchema
from torch import Tensor, nn
from typing_extensions import override

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, AttackResult, perturb
from allrounder.config.fields import OneOf
from allrounder.config.phases import Phased
from allrounder.config.time import Clock
from allrounder.rng import Rng
from allrounder.threats.norms import ALL_NORMS, Norm
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Batch, BatchNormMode, Context, ImageKind, Labels, Logits, Loss, Passes


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


AnyAttack = Annotated[Attack, OneOf(lambda: ATTACKS)]
"""An attack, which a recipe writes as a table with its kind."""
Threats = Annotated[tuple[Threat, ...], AfterValidator(_check_distinct)]
"""Two or more different threats."""
ThreatOrUnion = Annotated[
    Threat | AnyOf,
    PlainValidator(_parse_threat_or_union),
    PlainSerializer(_threat_or_union_to_toml),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
"""A threat, or the union of two or more, which a recipe writes as a list."""


class Objective(Phased, ABC):
    """A training method made of `craft`, then `loss`; a frozen value whose state its learner keeps."""

    reference: ClassVar[str]
    """Authors and year, shown by `allrounder list`."""
    norms: ClassVar[frozenset[type[Norm]]] = ALL_NORMS
    """The norms it can train under."""
    whole_batch: ClassVar[bool] = False
    """Whether the loss is more than a mean over images, so that ranks cannot split a batch."""

    @property
    def core(self) -> Objective:
        """The objective itself, or the one that it wraps."""
        return self

    @property
    def num_crafted(self) -> int:
        """The images that `craft` returns for every image of a batch; 0 if it returns None."""
        return 0

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

    def needs_whole_batch(self) -> bool:
        """Whether ranks cannot split a batch; by default `whole_batch`."""
        return self.whole_batch

    def logit_kinds(self) -> frozenset[ImageKind]:
        """The kinds of images whose logits `loss` returns, so that others need not compute them again."""
        return frozenset()

    def teachers(self) -> dict[str, str]:
        """The learners whose weights the loss needs, or "global" for the global weights, by field."""
        return {}

    def refresh_period(self, clock: Clock) -> int | None:
        """The steps after which the teachers get new weights; None without teachers."""
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


class AttackObjective(Objective):
    """An objective that crafts with one attack; subclasses declare the fields."""

    attack: Any
    """An Attack; a subclass may also allow None, for the attack of its variant."""
    norm_layers: Any
    """A BatchNormMode; a subclass may also allow None, for the mode of its variant."""

    def __post_init__(self) -> None:
        for threat in self.threats():
            self.effective_attack.check_supports(threat)
        self.effective_attack.check_batch_norm(self.effective_norm_layers)

    @property
    def effective_attack(self) -> Attack:
        """The attack, or the default of the variant."""
        return self.attack

    @property
    def effective_norm_layers(self) -> BatchNormMode:
        """The mode of batch-norm while crafting, or the default of the variant."""
        return self.norm_layers

    @property
    @override
    def num_crafted(self) -> int:
        return 1

    @override
    def craft_passes(self) -> Passes:
        return self.effective_attack.passes()

    def run_attack(
        self, attack: Attack, model: nn.Module, batch: Batch, threat: Threat | AnyOf, rng: Rng
    ) -> AttackResult:
        """Attack the current network on hard labels."""
        mode = self.effective_norm_layers
        return perturb(attack, model, batch.x, batch.y, threat, rng, norm_layers=mode)

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """Cross-entropy on the crafted images by default."""
        assert crafted is not None
        return cross_entropy_loss(model(crafted.x), batch, "adversarial")


class SingleThreatObjective(AttackObjective):
    """An objective that crafts with one attack under one threat; subclasses declare the fields."""

    threat: Any
    """A Threat; a subclass may also allow a union of threats."""

    @override
    def __post_init__(self) -> None:
        self.effective_attack.check_supports(self.threat)  # a union as a whole, not its members
        self.effective_attack.check_batch_norm(self.effective_norm_layers)

    @property
    def uses_crafted(self) -> bool:
        """Whether it crafts images at all; False where their weight in the loss is zero."""
        return True

    @property
    @override
    def num_crafted(self) -> int:
        return int(self.uses_crafted)

    @override
    def threats(self) -> tuple[Threat, ...]:
        return self.threat.threats

    @override
    def craft_passes(self) -> Passes:
        return self.effective_attack.passes_under(self.threats()) if self.uses_crafted else Passes()

    def attack_of_step(self, model: nn.Module, batch: Batch, ctx: Context) -> Attack:
        """The attack with the settings of this step; by default they never change."""
        return self.effective_attack

    @override
    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> AttackResult | None:
        if not self.uses_crafted:
            return None
        attack = self.attack_of_step(model, batch, ctx)
        return self.run_attack(attack, model, batch, self.threat, ctx.rng.fold_in("attack"))


def cross_entropy(logits: Logits, batch: Batch, reduction: str = "mean") -> Tensor:
    """Cross-entropy with the batch's targets, which are smoothed, and mixed if the images are."""
    if batch.partner is None:
        return F.cross_entropy(logits, batch.y, label_smoothing=batch.label_smoothing, reduction=reduction)
    return F.cross_entropy(logits, batch.targets(logits.shape[1]), reduction=reduction)


def accuracy(logits: Logits, labels: Labels) -> Tensor:
    """The fraction of images whose largest logit is that of the label."""
    return (logits.detach().argmax(1) == labels).float().mean()


def cross_entropy_loss(logits: Logits, batch: Batch, kind: ImageKind | None = None) -> Loss:
    """Mean cross-entropy, and the accuracy, which counts the label with the larger weight. Logits of all
    images of a kind are returned under its name."""
    parts = {"accuracy": accuracy(logits, batch.y)}
    return Loss(cross_entropy(logits, batch), parts, {} if kind is None else {kind: logits})
