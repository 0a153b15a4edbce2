"""An attack on one network with images that were crafted on another."""

from __future__ import annotations

from typing import ClassVar, final

from allrounder.attacks.base import Attack, Crafted, perturb
from allrounder.attacks.custom_loss import Name
from allrounder.config.fields import value
from allrounder.rng import Draws
from allrounder.threats.norms import EVERY_NORM, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels


@final
@value
class Transfer(Attack):
    """Images that another attack crafts on another network, the source; the network under attack judges them.

    The source is used as the gateway uses any network: in eval mode, folded where it can be, and left as it
    was. Whether the images fool the network under attack stays unknown here, and the passes are the source's.
    Prefer attacks that go on after a success, such as Pgd or Mim: one that stops at the first leaves images
    that only just fool the source. Papernot et al., 2016, Transferability in machine learning.
    """

    norms: ClassVar[frozenset[type[Norm]]] = EVERY_NORM

    attack: Attack
    """What to run on the source; it is asked for the norms it can work in."""
    source: Classifier
    """The network to craft on, with the same classes in the same order."""
    name: Name
    """What the source is called where this attack is written; another source wants another name."""

    def __repr__(self) -> str:
        return f"Transfer(attack={self.attack!r}, name={self.name!r})"

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, draws: Draws) -> Crafted:
        """Craft on the source, with the draws that `perturb` would use for it; the model is not asked."""
        try:
            found = perturb(self.attack, self.source, x, y, threat, draws)
        except (ValueError, RuntimeError) as error:
            error.add_note(f"This happened on {self.name}, the source of {self}.")
            raise
        return Crafted(x=found.x, passes=found.passes)

    def parts(self) -> tuple[Attack, ...]:
        """The attack that is run on the source."""
        return (self.attack,)
