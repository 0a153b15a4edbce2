"""SCORE: squared errors of probabilities in the place of cross-entropy and divergence."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack, Crafted, perturb
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Kind, NonNegative, Share, value
from allrounder.objectives.base import Objective
from allrounder.threats.threat import Threat
from allrounder.types import Batch, Context, Logits, Loss, NormLayers, Passes, PerExample

Variant = Literal["trades-lse", "pgd-lse"]
OF_VARIANT: dict[Variant, tuple[Pgd, NormLayers]] = {
    "trades-lse": (Pgd(steps=10, step=0.25, loss="lse-drift", start="gaussian"), "eval"),
    "pgd-lse": (Pgd(steps=10, step=0.25, loss="lse"), "train"),
}
"""The released search, and batch-norm during it."""


@final
@value
class Score(Objective):
    """Self-consistent robust error (SCORE): TRADES and AT with squared errors (LSE).

    With p = p(x), q = p(x') and the label e_y as a vector, the mean over the batch of
        trades-lse: ||p - e_y||^2 + beta ||q - p||^2, with x' maximising ||q - p||^2;
        pgd-lse:    ||q - e_y||^2, with x' maximising the same.
    Clipping at c subtracts C = c^2 + c^2 / (k - 1), what a prediction of probability 1 - c for its label and
    equal ones for the other k - 1 classes has as its error, and keeps what is above zero. The gradient flows
    through p and q. Pang et al., 2022, Robustness and accuracy could be reconcilable by (proper) definition.
    """

    reference: ClassVar[str] = "Pang et al., 2022"

    threat: Threat
    variant: Variant = "trades-lse"
    attack: Annotated[Attack | None, Kind(lambda: ATTACKS, optional=True)] = None
    """The search; by default the one released for the variant."""
    beta: NonNegative = 6.0
    """The weight of the drift in trades-lse."""
    clip: Share = 0.0
    """How unsure a prediction may be at no cost; 0 clips nothing. Published: 0.3 for trades-lse, 0.4 for
    pgd-lse."""
    clips: Literal["all", "robust"] = "all"
    """Whether an image's whole loss is clipped, or in trades-lse its drift alone, before it is weighted."""
    norm_layers: NormLayers | None = None
    """Batch-norm while crafting; by default as released: eval for trades-lse, train for pgd-lse."""

    def __post_init__(self) -> None:
        self.search.check_supports(self.threat)

    @property
    def search(self) -> Attack:
        """The attack in force."""
        return OF_VARIANT[self.variant][0] if self.attack is None else self.attack

    def threats(self) -> tuple[Threat, ...]:
        """The one threat."""
        return (self.threat,)

    def craft_passes(self) -> Passes:
        """The attack's."""
        return self.search.passes()

    def loss_passes(self) -> Passes:
        """A pair for crafted and, in trades-lse, one for natural images."""
        return Passes(1, 1) * (2 if self.variant == "trades-lse" else 1)

    def craft(self, model: nn.Module, batch: Batch, ctx: Context) -> Crafted:
        """Attack the current network on hard labels."""
        layers = OF_VARIANT[self.variant][1] if self.norm_layers is None else self.norm_layers
        draws = ctx.draws.at("attack")
        return perturb(self.search, model, batch.x, batch.y, self.threat, draws, norm_layers=layers)

    def loss(self, model: nn.Module, batch: Batch, crafted: Crafted | None, ctx: Context) -> Loss:
        """The variant's errors, clipped and averaged; the accuracy is that of the images that are fitted."""
        assert crafted is not None
        if self.variant == "pgd-lse":
            fitted = model(crafted.x)
            errors = self._clipped(_error(fitted, batch), fitted)
        else:
            # Crafted images first, as released: the running statistics see the natural ones last.
            moved, fitted = model(crafted.x), model(batch.x)
            drift = (moved.softmax(dim=1) - fitted.softmax(dim=1)).square().sum(dim=1)
            if self.clips == "robust":
                errors = _error(fitted, batch) + self.beta * self._clipped(drift, fitted)
            else:
                errors = self._clipped(_error(fitted, batch) + self.beta * drift, fitted)
        right = fitted.detach().argmax(1) == batch.y
        return Loss(errors.mean(), {"accuracy": right.float().mean()})

    def _clipped(self, errors: PerExample, logits: Logits) -> Tensor:
        return F.relu(errors - allowed(self.clip, logits.shape[1])) if self.clip else errors


def _error(logits: Logits, batch: Batch) -> PerExample:
    return (logits.softmax(dim=1) - batch.targets(logits.shape[1])).square().sum(dim=1)


def allowed(clip: float, classes: int) -> float:
    """The squared error of a prediction that gives `clip` to the wrong classes, all alike."""
    return clip**2 + clip**2 / max(classes - 1, 1)
