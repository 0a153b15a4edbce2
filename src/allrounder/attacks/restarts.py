"""An attack made of several runs of another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch

from allrounder.attacks.base import Attack, Crafted
from allrounder.attacks.losses import cross_entropy
from allrounder.config.fields import Count, Kind, value
from allrounder.rng import Draws
from allrounder.threats.norms import EVERY_NORM, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels, Passes, PerExample, PerExampleBool


def attack_table() -> Mapping[str, type[Attack]]:
    """The table of attacks, looked up when it is needed: it mentions the attacks made of attacks."""
    from allrounder.attacks import ATTACKS

    return ATTACKS


@final
@value
class Restarts(Attack):
    """Several runs of an attack from fresh random starts; the best result is kept for every example.

    The best is the first that fools the network, else the one of highest loss. Stops once all are fooled.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM

    attack: Annotated[Attack, Kind(attack_table)]
    """What to run; it is asked for the norms it can work in."""
    count: Count = 5
    """The number of runs, the first one included."""

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Run, judge, and keep what is better."""
        x_adv, passes = x, Passes()
        loss, fooled = torch.full_like(x[:, 0, 0, 0], float("-inf")), torch.zeros_like(y, dtype=torch.bool)
        for i in range(self.count):
            found = self.attack.run(model, x, y, threat, draws.at("restart", i))
            found_loss, found_fooled, price = judge(found, model, y)
            # Not (found_loss > loss), so that a NaN is kept and the gateway sees it.
            better = ~fooled & (found_fooled | ~(found_loss <= loss))
            x_adv = torch.where(better[:, None, None, None], found.x, x_adv)
            loss, fooled = torch.where(better, found_loss, loss), fooled | found_fooled
            passes = passes + found.passes + price
            if fooled.all():
                break
        return Crafted(x=x_adv, loss=loss, fooled=fooled, passes=passes)

    def passes(self) -> Passes:
        """Every run, judged; at most, for it stops once all are fooled."""
        return (self.attack.passes() + Passes(forwards=1)) * self.count

    def parts(self) -> tuple[Attack, ...]:
        """The attack that is run."""
        return (self.attack,)


def judge(found: Crafted, model: Classifier, y: Labels) -> tuple[PerExample, PerExampleBool, Passes]:
    """Loss, fooled, and what it cost to learn them: a forward pass where the attack does not say."""
    if found.loss is not None and found.fooled is not None:
        return found.loss, found.fooled, Passes()
    logits = model(found.x)
    return cross_entropy(logits, y), logits.argmax(dim=1) != y, Passes(forwards=1)
