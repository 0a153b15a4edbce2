"""Where training starts: random weights, or those of earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, final

from pydantic import Field
from typing_extensions import override

from allrounder.config.fields import NonEmpty, frozen_config

Which = Annotated[str, Field(description="global, best, last, or a learner's name.")]
STAGES_DIR = "stages"
"""The folder, inside a pipeline's run folder, that contains the run folders of its stages."""


class Init:
    """The initial weights, common to all learners: averages of independently initialised networks are
    useless."""

    def sources(self, parent: Path) -> Sequence[tuple[Path, str]]:
        """Return the run folders whose weights are averaged, each with which weights; none by default.

        `parent` is the folder that contains the run folder.
        """
        return ()


@final
@frozen_config
class Random(Init):
    """Random weights, drawn from the recipe's seed."""


@final
@frozen_config
class FromRun(Init):
    """The weights of another run, for fine-tuning."""

    run: str
    """Its folder, relative to the working directory."""
    which: Which = "global"

    @override
    def sources(self, parent: Path) -> Sequence[tuple[Path, str]]:
        return [(Path(self.run), self.which)]


@final
@frozen_config
class Soup(Init):
    """The plain average of several runs' weights."""

    runs: Annotated[tuple[str, ...], NonEmpty]
    """Their folders."""
    which: Which = "global"

    @override
    def sources(self, parent: Path) -> Sequence[tuple[Path, str]]:
        return [(Path(run), self.which) for run in self.runs]


@final
@frozen_config
class FromStages(Init):
    """The weights of earlier stages of the same pipeline: of one, or the plain average of several.

    Pipelines set it. It names folders next to the run folder, so a pipeline's run folder can be moved and
    resumed.
    """

    stages: Annotated[tuple[str, ...], NonEmpty]
    """Their names."""
    which: Which = "global"

    @override
    def sources(self, parent: Path) -> Sequence[tuple[Path, str]]:
        return [(parent / stage, self.which) for stage in self.stages]


INITS: dict[str, type[Init]] = {"random": Random, "run": FromRun, "soup": Soup, "stages": FromStages}
