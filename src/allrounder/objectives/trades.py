"""TRADES: a natural loss, and a term that keeps predictions from moving inside the ball."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import nn

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, Crafted, perturb
from allrounder.attacks.losses import kl
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Kind, NonNegative, value
from allrounder.objectives.base import Objective, fit
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Logits, Loss, NormLayers, Passes


@final
@value
class Trades(Objective):
    """TRADES: loss = CE(f(x), y) + beta KL(p(x) || p(x')), with x' maximising the same divergence.

    The gradient flows through both predictions. beta is what tables call lambda, one over the lambda of the
    paper's formula; at beta = 0 this is natural training and nothing is crafted. Zhang et al., 2019,
    Theoretically principled trade-off between robustness and accuracy.
    """

    reference: ClassVar[str] = "Zhang et al., 2019"

    threat: Threat
    attack: Annotated[Attack, Kind(lambda: ATTACKS)] = Pgd(steps=10, step=0.25, loss="kl", start="gaussian")
    beta: NonNegative = 6.0
    """The weight of the divergence."""
    norm_layers: NormLayers = "eval"
    """Batch-norm while crafting: eval (as released), train, or train_frozen."""

    def __post_init__(self) -> None:
        self.attack.check_supports(self.threat)

    def threats(self) -> tuple[Threat, ...]:
        """The one threat."""
        return (self.threat,)

    def craft_passes(self) -> Passes:
        """The attack's, unless nothing depends on it."""
        return Passes() if self.beta == 0 else self.attack.passes()

    def loss_passes(self) -> Passes:
        """Two pairs; one where the divergence has no weight."""
        return Passes(1, 1) * (1 if self.beta == 0 else 2)

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted | None:
        """Move the prediction of the current network, unless nothing depends on it."""
        if self.beta == 0:
            return None
        draws = ctx.draws.at("attack")
        return perturb(self.attack, model, batch.x, batch.y, self.threat, draws, norm_layers=self.norm_layers)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """Natural cross-entropy, and the weighted divergence of the crafted images."""
        # Differs: released code passes the natural images a second time for the divergence, which moves the
        # running statistics once more and nothing else (ADR 0021).
        natural = model(batch.x)
        return fit(natural, batch) if crafted is None else traded(natural, model(crafted.x), batch, self.beta)


def traded(natural: Logits, robust: Logits, batch: Batch, beta: float) -> Loss:
    """CE(natural, targets) + beta KL(natural || robust); the accuracy is that of natural images."""
    fitted, moved = fit(natural, batch), kl(natural, robust).mean()
    return Loss(fitted.total + beta * moved, {**fitted.parts, "divergence": moved.detach()})
