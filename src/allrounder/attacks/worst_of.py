"""One attack in every ball of a union, and the hardest image of all of them."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch

from allrounder.attacks.base import Attack, Crafted
from allrounder.attacks.losses import cross_entropy
from allrounder.attacks.restarts import attack_table
from allrounder.config.fields import Kind, value
from allrounder.rng import Draws
from allrounder.threats.norms import EVERY_NORM, Norm
from allrounder.threats.threat import AnyOf, Threat
from allrounder.types import Classifier, Images, Labels, Passes


@final
@value
class Hardest(Attack):
    """Runs an attack under every threat on its own, and keeps the candidate of largest cross-entropy.

    x' = argmax_p CE(f(x'_p), y) for every image, x'_p found within threat p; of equals, the first. Another
    forward pass for every threat tells the cross-entropies, because an attack may climb another loss.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM
    unions: ClassVar[bool] = True

    attack: Annotated[Attack, Kind(attack_table)]
    """What to run; it is asked for the norms it can work in."""

    def check_supports(self, threat: Threat | AnyOf) -> None:
        """Raise ValueError if the attack cannot work under one of the threats."""
        for one in balls(threat):
            self.attack.check_supports(one)

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat | AnyOf, draws: Draws) -> Crafted:
        """Craft under one threat after the other, and compare."""
        x_adv, passes = x, Passes()
        loss, fooled = torch.full_like(x[:, 0, 0, 0], float("-inf")), torch.zeros_like(y, dtype=torch.bool)
        for number, one in enumerate(balls(threat)):
            found = self.attack.run(model, x, y, one, draws.at("threat", number))
            logits = model(found.x)
            passes = passes + found.passes + Passes(forwards=1)
            rival = cross_entropy(logits, y)
            # Not (rival > loss), so that a NaN is kept and the gateway sees it.
            harder = ~(rival <= loss)
            x_adv = torch.where(harder[:, None, None, None], found.x, x_adv)
            loss, fooled = (
                torch.where(harder, rival, loss),
                torch.where(harder, logits.argmax(1) != y, fooled),
            )
        return Crafted(x=x_adv, loss=loss, fooled=fooled, passes=passes)

    def passes(self) -> Passes:
        """Under one threat."""
        return self.passes_under(1)

    def passes_under(self, threats: int) -> Passes:
        """Under a union of so many threats."""
        return (self.attack.passes() + Passes(forwards=1)) * threats


def balls(threat: Threat | AnyOf) -> tuple[Threat, ...]:
    """The threats of a union; a single threat is a union of one."""
    return threat.threats if isinstance(threat, AnyOf) else (threat,)
