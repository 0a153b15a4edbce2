"""Where training starts: fresh weights, or those of earlier runs."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, final

from allrounder.config.fields import Some, value

PHASES = "phases"
"""Where the trainings of a program lie, below its run folder."""


class Init(ABC):  # noqa: B024
    """The starting point, common to all learners: averages of independent beginnings would mean nothing."""

    def sources(self, beside: Path) -> Sequence[tuple[Path, str]]:
        """The run folders whose weights it is the average of, each with which weights; none by default.

        `beside` is the folder in which the run's own folder lies.
        """
        return ()


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

    def sources(self, beside: Path) -> Sequence[tuple[Path, str]]:
        """That run."""
        return [(Path(self.run), self.which)]


@final
@value
class Soup(Init):
    """The plain average of several runs' weights."""

    runs: Annotated[tuple[str, ...], Some]
    """Their folders."""
    which: str = "global"
    """global, best, last, or a learner's name."""

    def sources(self, beside: Path) -> Sequence[tuple[Path, str]]:
        """Those runs."""
        return [(Path(run), self.which) for run in self.runs]


@final
@value
class Phases(Init):
    """The weights of earlier phases of the same program: of one, or the plain average of several.

    Programs set it. It names folders beside the run's own, so a run folder may be moved and goes on.
    """

    phases: Annotated[tuple[str, ...], Some]
    """Their names."""
    which: str = "global"
    """global, best, last, or a learner's name."""

    def sources(self, beside: Path) -> Sequence[tuple[Path, str]]:
        """Their run folders."""
        return [(beside / phase, self.which) for phase in self.phases]


INITS: dict[str, type[Init]] = {"random": Random, "run": FromRun, "soup": Soup, "phases": Phases}
