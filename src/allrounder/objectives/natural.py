"""Natural training."""

from __future__ import annotations

from typing import ClassVar, final

from torch import nn

from allrounder.attacks.base import Crafted
from allrounder.config.fields import value
from allrounder.objectives.base import Objective, fit
from allrounder.threats.norms import Norm
from allrounder.types import Batch, Context, Loss


@final
@value
class Natural(Objective):
    """Natural training (NT): loss = CE(f(x), y)."""

    reference: ClassVar[str] = "-"
    norms: ClassVar[frozenset[type[Norm]]] = frozenset()

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Cross-entropy on the images as they are."""
        return fit(model(batch.x), batch)
