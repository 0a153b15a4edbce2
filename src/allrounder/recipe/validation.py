"""How the best weights of a run are selected."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Literal, final

from typing_extensions import override

from allrounder.attacks import ATTACKS
from allrounder.attacks.base import Attack
from allrounder.attacks.pgd import Pgd
from allrounder.config.fields import NonNegativeInt, OneOf, TextValue, frozen_config, parse_fraction
from allrounder.config.time import Duration, Time
from allrounder.threats.threat import Threat

DEFAULT_SHARE = Fraction(1, 10)
DEFAULT_MAX = 500
"""Without a number or share, this share of the training images is held out, at most this number."""
MAX_INHERITED_SHARE = Fraction(1, 3)
"""The largest share of the training images that a recipe may hold out without its author writing so."""


@final
@dataclass(frozen=True)
class HeldOut(TextValue):
    """How many training images are held out: a number, or a share of them such as "10%"."""

    written: int | str
    """The number, or the share as text."""
    inherited_from: str | None = field(default=None, compare=False)
    """The file that a recipe inherits this value from; None if the recipe itself has it."""

    def __post_init__(self) -> None:
        _check_number_or_share(self.written)

    @classmethod
    @override
    def parse(cls, raw: object) -> HeldOut:
        """Parse 500 or "10%"."""
        if isinstance(raw, cls):
            return raw
        return cls(_check_number_or_share(raw.strip() if isinstance(raw, str) else raw))

    @override
    def to_toml(self) -> int | str:
        return self.written

    def count(self, num_images: int) -> int:
        """Return the number of held-out images out of `num_images`; a share gives at least one."""
        if isinstance(self.written, int):
            return self.written
        return _share_of(num_images, parse_fraction(self.written[:-1]) / 100)


@final
@frozen_config
class Validation:
    """How the best weights are selected: by natural plus robust accuracy of the global weights, which is
    measured a few times in a run."""

    on: Literal["validation", "test"] = "validation"
    """"validation" selects on images held out from the training set; "test" on the test set, as the papers
    did, which every table made from the run mentions."""
    images: HeldOut | None = None
    """Images held out from the training set: a number, or a share such as "20%"; by default 10%, but at most
    500. 0 trains on all images and selects nothing."""
    train_images: NonNegativeInt = 200
    """Training images on which the same accuracies are logged, to show robust overfitting."""
    every: Duration = Time.parse("20%")
    attack: Annotated[Attack, OneOf(lambda: ATTACKS)] = Pgd(steps=10, step=0.25)
    threats: tuple[Threat, ...] | None = None
    """Robust accuracy is the mean over these; by default over the threats that the tasks train on."""
    also: tuple[Threat, ...] = ()
    """Threats that are measured and logged, but do not count in the selection."""

    def __post_init__(self) -> None:
        if self.attack.switch_times():
            raise ValueError(f"the attack of validation stays the same for the whole run, got {self.attack}")
        for threat in (*(self.threats or ()), *self.also):
            self.attack.check_supports(threat)

    @property
    def selects(self) -> bool:
        """Whether there are images to select the best weights on."""
        return self.on == "test" or self.images is None or self.images.written != 0

    @property
    def holds_out(self) -> bool:
        """Whether training images are held out."""
        return self.on == "validation" and (self.images is None or self.images.written != 0)

    def num_held_out(self, num_images: int) -> int:
        """Return how many of `num_images` training images are held out. Raises ValueError if they are more
        than a third, and the recipe only inherits the number."""
        if self.on == "test":
            return 0
        if self.images is None:
            return min(_share_of(num_images, DEFAULT_SHARE), DEFAULT_MAX)
        count = self.images.count(num_images)
        source = self.images.inherited_from
        if source is not None and count > MAX_INHERITED_SHARE * num_images:
            problem = f"{count} of {num_images} training images would be held out"
            rule = f"an inherited number (here from {source}) may hold out at most a third"
            raise ValueError(f"{problem}, and {rule}; override it, for example validation.images=10%")
        return count


def _check_number_or_share(raw: object) -> int | str:
    """Return a number or share unchanged; raise ValueError for anything else."""
    if isinstance(raw, str):
        with suppress(ValueError):
            if raw.endswith("%") and 0 < parse_fraction(raw[:-1]) < 100:
                return raw
    elif isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    expected = 'a number of at least 0, or a share of the training images such as "10%"'
    raise ValueError(f"expected {expected}, got {raw!r}")


def _share_of(num_images: int, share: Fraction) -> int:
    return max(1, round(share * num_images))
