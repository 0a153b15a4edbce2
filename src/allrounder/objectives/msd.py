"""Adversarial training against the union of several threats, by multi steepest descent."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import nn

from allrounder.attacks.base import Crafted, perturb
from allrounder.attacks.msd import MultiSteepest
from allrounder.config.fields import Kind, value
from allrounder.objectives.average import Threats
from allrounder.objectives.base import Objective, fit
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Batch, Context, Loss, NormLayers, Passes


@final
@value
class Msd(Objective):
    """Multi steepest descent training (MSD): loss = CE(f(x'), y), x' found in the union of the threats.

    The search goes through all balls at once, see `MultiSteepest`, and so costs a gradient and a forward pass
    per threat in every step. As released it runs with batch statistics, and every one of its passes moves the
    running ones. Maini et al., 2020, Adversarial robustness against the union of multiple perturbation
    models.
    """

    reference: ClassVar[str] = "Maini et al., 2020"

    against: Threats
    """The threats whose union is searched, at least two."""
    attack: Annotated[MultiSteepest, Kind(lambda: {"msd": MultiSteepest})] = MultiSteepest()
    norm_layers: NormLayers = "train"
    """Batch-norm while crafting: train, as released, eval, or train_frozen."""

    def threats(self) -> tuple[Threat, ...]:
        """Those of the union."""
        return self.against

    def craft_passes(self) -> Passes:
        """The search's."""
        return self.attack.passes_under(len(self.against))

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """Search the union around every image."""
        union, draws = AnyOf(self.against), ctx.draws.at("attack")
        return perturb(self.attack, model, batch.x, batch.y, union, draws, norm_layers=self.norm_layers)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Cross-entropy on the images that were found."""
        assert crafted is not None
        return fit(model(crafted.x), batch)
