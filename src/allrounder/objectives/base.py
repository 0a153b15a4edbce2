"""What a learner minimises: an inner search for hard inputs, and a loss on what it found."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.attacks.base import Crafted
from allrounder.threats.norms import EVERY_NORM, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Logits, Loss, Passes


class Objective(ABC):
    """A training method that fits `craft`, then `loss`; frozen, with any memory kept by its learner."""

    reference: ClassVar[str]
    """Authors and year, for lists."""
    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM
    """The norms it can be trained under."""
    whole_batch: ClassVar[bool] = False
    """Whether the loss is more than a mean over images, so that several ranks cannot share a batch."""

    def threats(self) -> tuple[Threat, ...]:
        """What it trains robustness against; nothing by default."""
        return ()

    def craft_passes(self) -> Passes:
        """What crafting takes, counted in whole batches; at most, where it stops early."""
        return Passes()

    def loss_passes(self) -> Passes:
        """What the loss takes; by default a pair."""
        return Passes(1, 1)

    def passes(self) -> Passes:
        """What a step takes."""
        return self.craft_passes() + self.loss_passes()

    def problems(self, epochs: int) -> list[tuple[str, str]]:
        """Fields that make no sense in a run of so many epochs, each with what is wrong."""
        return []

    def without_extra(self) -> tuple[str, str] | None:
        """A field that makes no sense without a second set of images, and why; none by default."""
        return None

    def memory(self) -> dict[str, Tensor]:
        """Tensors the method carries from step to step; the learner owns and saves them."""
        return {}

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted | None:
        """Search for inputs to train on; none by default."""
        return None

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """The loss to descend, with the network in training mode."""


def fit(logits: Logits, batch: Batch) -> Loss:
    """Mean cross-entropy with the batch's targets, and the accuracy that comes with it for free.

    Targets are smoothed, and mixed where images are; the accuracy counts the label of the larger part.
    """
    if batch.partner is None:
        total = F.cross_entropy(logits, batch.y, label_smoothing=batch.smoothing)
    else:
        total = F.cross_entropy(logits, batch.targets(logits.shape[1]))
    return Loss(total, {"accuracy": (logits.detach().argmax(1) == batch.y).float().mean()})
