"""A transfer attack: images crafted on one network are used to attack another."""

from __future__ import annotations

from typing import ClassVar, final

from typing_extensions import override

from allrounder.attacks.base import Attack, AttackResult, perturb
from allrounder.attacks.custom_loss import Identifier
from allrounder.config.fields import frozen_config
from allrounder.rng import Rng
from allrounder.threats.norms import ALL_NORMS, Norm
from allrounder.threats.threat import Threat
from allrounder.types import Classifier, Images, Labels


@final
@frozen_config
class Transfer(Attack):
    """Images that an attack crafts on another network, the source.

    `perturb` runs the attack on the source: in eval mode, folded where possible, and restored afterwards.
    The network under attack is not evaluated here, and the passes are those of the source. Prefer attacks
    that continue after a success, such as Pgd or Mim: one that stops at its first success returns images that
    barely fool the source. Papernot et al., 2016, Transferability in machine learning.
    """

    norms: ClassVar[frozenset[type[Norm]]] = ALL_NORMS
    is_white_box: ClassVar[bool] = False

    attack: Attack
    """The attack to run on the source; it determines the supported norms."""
    source: Classifier
    """The network to craft on, with the same classes in the same order."""
    name: Identifier
    """The name of the source in the text of this attack; a different source needs a different name."""

    def __repr__(self) -> str:
        return f"Transfer(attack={self.attack!r}, name={self.name!r})"

    def run(self, model: Classifier, x: Images, y: Labels, threat: Threat, rng: Rng) -> AttackResult:
        """Craft on the source, with the random numbers of a direct attack on it; `model` is not used."""
        try:
            result = perturb(self.attack, self.source, x, y, threat, rng)
        except (ValueError, RuntimeError) as error:
            error.add_note(f"This happened on {self.name}, the source of {self}.")
            raise
        return AttackResult(x=result.x, passes=result.passes)

    @override
    def sub_attacks(self) -> tuple[Attack, ...]:
        return (self.attack,)
