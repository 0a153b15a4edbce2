"""E-AT: adversarial training on one norm per batch, the least robust one most often."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from allrounder.attacks.apgd_train import ApgdTrain
from allrounder.attacks.base import Crafted, perturb
from allrounder.config.fields import Kind, value
from allrounder.objectives.average import Threats
from allrounder.objectives.base import Objective, fit
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Loss, NormLayers, Passes

PerThreat = Int[Tensor, " p"]


@final
@value
class Eat(Objective):
    """Extreme-norm adversarial training (E-AT): loss = CE(f(x'_p), y), one threat p for every batch.

    P(p) = (1 - a_p) / sum_q (1 - a_q), where a_p is the share of training images, over the whole run, that
    the attack under p did not fool at any of its points; equal until every threat had a batch. Called
    extreme because the paper trains on Linf and L1 alone: the norms between get their robustness from the
    hull of those two balls. Costs as much as training on one norm.
    Croce and Hein, 2022, Adversarial robustness against multiple and single lp-threat models via quick
    fine-tuning of robust classifiers.
    """

    reference: ClassVar[str] = "Croce and Hein, 2022"

    against: Threats
    """The threats to choose from, at least two; in the paper, Linf and L1."""
    attack: Annotated[ApgdTrain, Kind(lambda: {"apgd-train": ApgdTrain})] = ApgdTrain()
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting."""

    def threats(self) -> tuple[Threat, ...]:
        """Those it chooses from."""
        return self.against

    def craft_passes(self) -> Passes:
        """The attack's under the one threat."""
        return self.attack.passes()

    def memory(self) -> dict[str, Tensor]:
        """Training images per threat, and those of them that were not fooled."""
        return {
            f"eat.{name}": torch.zeros(len(self.against), dtype=torch.long) for name in ("seen", "robust")
        }

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """Choose a threat, attack under it, and count who withstood."""
        seen, robust = ctx.memory["eat.seen"], ctx.memory["eat.robust"]
        number = chosen(probabilities(robust, seen), ctx.draws.at("threat").uniform(torch.empty(1).double()))
        threat, draws = self.against[number], ctx.draws.at("attack")
        found = perturb(self.attack, model, batch.x, batch.y, threat, draws, norm_layers=self.norm_layers)
        assert found.ever_fooled is not None
        seen[number] += len(batch)
        robust[number] += (~found.ever_fooled).sum()
        return found

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Cross-entropy on the images of highest loss."""
        assert crafted is not None
        return fit(model(crafted.x), batch)


def probabilities(robust: PerThreat, seen: PerThreat) -> Float[Tensor, " p"]:
    """How likely every threat is to be chosen, in float64; equal where nothing tells them apart."""
    weak = (seen - robust).double() / seen.clamp(min=1)
    if bool((seen == 0).any()) or not bool(weak.any()):
        weak = torch.ones_like(weak)
    return weak / weak.sum()


def chosen(odds: Float[Tensor, " p"], u: Float[Tensor, " 1"]) -> int:
    """The threat that a number from [0, 1) falls on, where each has an interval as long as its odds."""
    return min(int((odds.cpu().cumsum(0) <= u).sum()), len(odds) - 1)
