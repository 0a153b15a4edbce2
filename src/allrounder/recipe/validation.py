"""How the best weights of a run are selected."""

from __future__ import annotations

from typing import Annotated, Literal, final

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import NonNegativeInt, OneOf, frozen_config
from allrounder.config.time import Duration, Time
from allrounder.threats.threat import Threat


@final
@frozen_config
class Validation:
    """How the best weights are selected: by natural plus robust accuracy of the global weights, which is
    measured a few times in a run."""

    on: Literal["validation", "test"] = "validation"
    """"validation" selects on images held out from the training set; "test" on the test set, as the papers
    did, which every table made from the run mentions."""
    images: NonNegativeInt = 500
    """Images held out from the training set; 0 trains on all of it and selects nothing."""
    train_images: NonNegativeInt = 200
    """Training images on which the same accuracies are logged, to show robust overfitting."""
    every: Duration = Time.parse("20%")
    attack: Annotated[Attack, OneOf(lambda: ATTACKS)] = Pgd(steps=10, step=0.25)
    threats: tuple[Threat, ...] | None = None
    """Robust accuracy is the mean over these; by default over the threats that the tasks train on."""
    also: tuple[Threat, ...] = ()
    """Threats that are measured and logged, but do not count in the selection."""

    def __post_init__(self) -> None:
        for threat in (*(self.threats or ()), *self.also):
            self.attack.check_supports(threat)
