"""Values with settings that change during a run, such as an attack that takes more steps later."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar, cast

from allrounder.config.time import Time

P = TypeVar("P", bound="Phased")


class Phased:
    """A frozen value whose settings may change at certain times of a run; by default, those of its fields."""

    def switch_times(self) -> tuple[Time, ...]:
        """The times at which a setting changes, in no particular order."""
        return tuple(time for value in _phased_fields(self).values() for time in value.switch_times())

    def at_time(self, elapsed: Fraction, epochs: int) -> Phased:
        """This value with its settings after `elapsed` of `epochs` epochs."""
        old = _phased_fields(self)
        new = {name: value.at_time(elapsed, epochs) for name, value in old.items()}
        changed = {name: value for name, value in new.items() if value is not old[name]}
        return replace(cast(Any, self), **changed) if changed else self


def _phased_fields(value: Phased) -> dict[str, Phased]:
    if not is_dataclass(value):
        return {}
    items = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {name: item for name, item in items if isinstance(item, Phased)}


def find_phases(value: P, epochs: int) -> tuple[tuple[Fraction, P], ...]:
    """The parts of a run of `epochs` epochs, in order: (the epochs before it starts, the value in it).

    A time at or after the end of the run starts no part, nor does one that changes nothing.
    """
    starts = {Fraction(0), *(time.to_epochs(epochs) for time in value.switch_times())}
    phases: list[tuple[Fraction, P]] = []
    for start in sorted(start for start in starts if start < epochs):
        part = cast(P, value.at_time(start, epochs))
        if not phases or part != phases[-1][1]:
            phases.append((start, part))
    return tuple(phases)
