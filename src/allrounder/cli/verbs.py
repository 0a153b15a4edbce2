"""What all verbs share: the options --debug and --quiet, and the exit codes in their help."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Annotated, Any

from typer import Option, Typer
from typer.core import TyperGroup
from typer.main import get_command
from typing_extensions import override

from allrounder.cli.echo import QUIET
from allrounder.errors import AllrounderError
from allrounder.system.signals import EXIT_RESUMABLE

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
EXIT_CODES = (
    f"Exit codes: 0 success, {EXIT_FAILED} failure, {EXIT_USAGE} wrong usage or recipe, {EXIT_RESUMABLE} "
    "interrupted after the state was saved: the same command continues (train with --resume), "
    f"{EXIT_INTERRUPTED} interrupted."
)
DEBUG = ContextVar("debug", default=False)
"""Whether errors are printed with their traceback: the option --debug."""


def _set_debug(value: bool) -> bool:
    DEBUG.set(value)
    return value


def _set_quiet(value: bool) -> bool:
    QUIET.set(value)
    logging.getLogger("allrounder").setLevel(logging.WARNING if value else logging.INFO)
    return value


Debug = Annotated[
    bool,
    Option("--debug", callback=_set_debug, expose_value=False, help="Print the traceback of an error."),
]
Quiet = Annotated[
    bool,
    Option(
        "--quiet",
        "-q",
        callback=_set_quiet,
        expose_value=False,
        help="Print results only: no progress and no notes.",
    ),
]


def _declare_common_options(debug: Debug = False, quiet: Quiet = False) -> None:
    """Declare options as Typer reads them."""


def _common_options() -> list[Any]:
    app = Typer(add_completion=False)
    app.command()(_declare_common_options)
    return list(get_command(app).params)


class VerbGroup(TyperGroup):
    """A group that adds the common options to all its verbs."""

    def __init__(self, **settings: Any):
        """Takes the settings of a Typer group."""
        super().__init__(**settings)
        self.epilog = EXIT_CODES
        for verb in self.commands.values():
            if not isinstance(verb, TyperGroup):
                verb.params += _common_options()
                verb.epilog = EXIT_CODES

    @override
    def invoke(self, ctx: Any) -> Any:
        """Run a verb. Typer would exit without a message if the reader of the output closes it."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            problem = "standard output was closed before everything was printed"
            raise AllrounderError(problem) from error
