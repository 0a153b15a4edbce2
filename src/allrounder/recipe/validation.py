"""How the best weights of a run are chosen."""

from __future__ import annotations

from typing import Annotated, Literal, final

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import Kind, Whole, value
from allrounder.config.time import Span, Time
from allrounder.threats.threat import Threat


@final
@value
class Validation:
    """How the best weights are chosen: natural plus robust accuracy of the global weights, a few times in a
    run."""

    on: Literal["validation", "test"] = "validation"
    """A split cut from the training set; "test" selects on the test set, as the papers did, and every table
    made from the run says so."""
    images: Whole = 500
    """Images cut from the training set; 0 trains on all of it and selects nothing."""
    train_images: Whole = 200
    """Training images on which the same accuracies are logged, so that robust overfitting shows."""
    every: Span = Time.read("20%")
    attack: Annotated[Attack, Kind(lambda: ATTACKS)] = Pgd(steps=10, step=0.25)
    threats: tuple[Threat, ...] | None = None
    """Robust accuracy is the mean over these; by default over those the tasks train on."""
    also: tuple[Threat, ...] = ()
    """Threats that are measured and logged too, but do not count in the choice."""

    def __post_init__(self) -> None:
        for threat in (*(self.threats or ()), *self.also):
            self.attack.check_supports(threat)
