"""Natural training."""

from __future__ import annotations

from typing import ClassVar, final

from torch import nn
from typing_extensions import override

from allrounder.attacks.base import AttackResult
from allrounder.config.fields import frozen_config
from allrounder.objectives.base import Objective, cross_entropy_loss
from allrounder.threats.norms import Norm
from allrounder.types import Batch, Context, ImageKind, Loss


@final
@frozen_config
class Natural(Objective):
    """Natural training (NT): loss = CE(f(x), y)."""

    reference: ClassVar[str] = ""
    norms: ClassVar[frozenset[type[Norm]]] = frozenset()

    @override
    def logit_kinds(self) -> frozenset[ImageKind]:
        return frozenset({"natural"})

    def loss(self, model: nn.Module, batch: Batch, crafted: AttackResult | None, ctx: Context) -> Loss:
        """Cross-entropy on natural images."""
        return cross_entropy_loss(model(batch.x), batch, "natural")
