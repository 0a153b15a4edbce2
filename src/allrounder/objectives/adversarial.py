"""Adversarial training with any attack under any threat."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import nn

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, Crafted, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Kind, value
from allrounder.objectives.base import Objective, fit
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Loss, NormLayers, Passes


@final
@value
class Adversarial(Objective):
    """Adversarial training (AT): loss = CE(f(x'), y), with x' maximising the attack's loss inside the threat.

    Only adversarial images enter the update. Madry et al., 2018, Towards deep learning models resistant to
    adversarial attacks.
    """

    reference: ClassVar[str] = "Madry et al., 2018"

    threat: Threat
    attack: Annotated[Attack, Kind(lambda: ATTACKS)] = Pgd(steps=10, step=0.25)
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting: eval (as in the papers), train, or train_frozen."""

    def __post_init__(self) -> None:
        self.attack.check_supports(self.threat)

    def threats(self) -> tuple[Threat, ...]:
        """The one threat."""
        return (self.threat,)

    def craft_passes(self) -> Passes:
        """The attack's."""
        return self.attack.passes()

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """Attack the current network on hard labels."""
        draws = ctx.draws.at("attack")
        return perturb(self.attack, model, batch.x, batch.y, self.threat, draws, norm_layers=self.norm_layers)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Cross-entropy on the crafted images."""
        assert crafted is not None
        return fit(model(crafted.x), batch)
