"""Where training starts: fresh weights, or those of earlier runs."""

from __future__ import annotations

from abc import ABC
from typing import Annotated, final

from allrounder.values import Some, value


class Init(ABC):  # noqa: B024
    """The starting point, common to all learners: averages of independent beginnings would mean nothing."""


@final
@value
class Random(Init):
    """Fresh weights, drawn from the recipe's seed."""


@final
@value
class FromRun(Init):
    """The weights of another run, for fine-tuning."""

    run: str
    """Its folder, relative to where the command is given."""
    which: str = "global"
    """global, best, last, or a learner's name."""


@final
@value
class Soup(Init):
    """The plain average of several runs' weights."""

    runs: Annotated[tuple[str, ...], Some]
    """Their folders."""
    which: str = "global"
    """global, best, last, or a learner's name."""


INITS: dict[str, type[Init]] = {"random": Random, "run": FromRun, "soup": Soup}
