"""SCORE: squared errors of probabilities instead of cross-entropy and divergence."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, AttackResult
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import NonNegativeFloat, OneOf, Share, frozen_config
from allrounder.objectives.base import SingleThreatObjective, accuracy
from allrounder.threats.threat import Threat
from allrounder.types import Batch, BatchNormMode, Context, Logits, Loss, Passes, PerExample

Variant = Literal["trades-lse", "pgd-lse"]
VARIANT_DEFAULTS: dict[Variant, tuple[Pgd, BatchNormMode]] = {
    "trades-lse": (Pgd(steps=10, step=0.25, loss="lse-drift", start="gaussian"), "eval"),
    "pgd-lse": (Pgd(steps=10, step=0.25, loss="lse"), "train"),
}
"""The released attack, and batch-norm while crafting."""


@final
@frozen_config
class Score(SingleThreatObjective):
    """Self-consistent robust error (SCORE): TRADES and AT with squared errors (LSE).

    With p = p(x), q = p(x') and the one-hot label e_y, the loss is the mean over the batch of
        trades-lse: ||p - e_y||^2 + beta ||q - p||^2, with x' maximising ||q - p||^2;
        pgd-lse:    ||q - e_y||^2, with x' maximising the same.
    Clipping at c subtracts C = c^2 + c^2 / (k - 1) and keeps the positive part. C is the error of a
    prediction with probability 1 - c for the label and equal ones for the other k - 1 classes. The gradient
    flows through p and q. Pang et al., 2022, Robustness and accuracy could be reconcilable by (proper)
    definition.
    """

    reference: ClassVar[str] = "Pang et al., 2022"

    threat: Threat
    variant: Variant = "trades-lse"
    attack: Annotated[Attack | None, OneOf(lambda: ATTACKS, optional=True)] = None
    """The attack; by default the one released for the variant."""
    beta: NonNegativeFloat = 6.0
    """The weight of the drift ||q - p||^2 in trades-lse."""
    clip: Share = 0.0
    """The c of the clipping; 0 clips nothing. Published: 0.3 for trades-lse, 0.4 for pgd-lse."""
    clips: Literal["all", "robust"] = "all"
    """Whether the whole loss of an image is clipped, or in trades-lse only its drift, before weighting."""
    norm_layers: BatchNormMode | None = None
    """Batch-norm while crafting; by default as released: eval for trades-lse, train for pgd-lse."""

    @property
    @override
    def effective_attack(self) -> Attack:
        return VARIANT_DEFAULTS[self.variant][0] if self.attack is None else self.attack

    @property
    @override
    def effective_norm_layers(self) -> BatchNormMode:
        return VARIANT_DEFAULTS[self.variant][1] if self.norm_layers is None else self.norm_layers

    def loss_passes(self) -> Passes:
        """One forward and backward for crafted images and, in trades-lse, one for natural images."""
        return Passes(1, 1) * (2 if self.variant == "trades-lse" else 1)

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """The variant's errors, clipped and averaged; the accuracy is that of the logits fitted to labels."""
        assert crafted is not None
        if self.variant == "pgd-lse":
            logits = model(crafted.x)
            errors = self._clip(_squared_error(logits, batch), logits)
        else:
            # Crafted images first, as released: the natural images update the running statistics last.
            robust_logits, logits = model(crafted.x), model(batch.x)
            drift = (robust_logits.softmax(dim=1) - logits.softmax(dim=1)).square().sum(dim=1)
            if self.clips == "robust":
                errors = _squared_error(logits, batch) + self.beta * self._clip(drift, logits)
            else:
                errors = self._clip(_squared_error(logits, batch) + self.beta * drift, logits)
        return Loss(errors.mean(), {"accuracy": accuracy(logits, batch.y)})

    def _clip(self, errors: PerExample, logits: Logits) -> Tensor:
        return F.relu(errors - clip_constant(self.clip, logits.shape[1])) if self.clip else errors


def _squared_error(logits: Logits, batch: Batch) -> PerExample:
    return (logits.softmax(dim=1) - batch.targets(logits.shape[1])).square().sum(dim=1)


def clip_constant(clip: float, classes: int) -> float:
    """The squared error of a prediction that spreads probability `clip` evenly over the wrong classes."""
    return clip**2 + clip**2 / max(classes - 1, 1)
