"""The entry point: the verbs, and one message for every error.

No option belongs to a method: settings of a method are fields of the recipe, which --set reaches.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, cast

from typer import Exit, Option, Typer

from allrounder.cli.data import app as data_app
from allrounder.cli.dial import dial
from allrounder.cli.echo import echo, echo_error
from allrounder.cli.evaluate import doctor_, eval_
from allrounder.cli.export import export
from allrounder.cli.failures import describe_os_error, explain
from allrounder.cli.figure import figure
from allrounder.cli.index import schema
from allrounder.cli.listing import list_
from allrounder.cli.new import new
from allrounder.cli.report import report
from allrounder.cli.runs import log, ls
from allrounder.cli.study import compare, demo, publish, sweep, table
from allrounder.cli.theory import theory
from allrounder.cli.train import plan, show, train
from allrounder.cli.verbs import DEBUG, EXIT_FAILED, EXIT_INTERRUPTED, VerbGroup
from allrounder.cli.watch import watch

app = Typer(
    help="Train image classifiers that are accurate and robust under several norms, and evaluate them.",
    cls=VerbGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> bool:
    if asked:
        from importlib.metadata import version
        from platform import python_version

        echo(f"allrounder {version('allrounder')} (torch {version('torch')}, Python {python_version()})")
        raise Exit
    return asked


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)


app.command()(train)
app.command()(new)
app.command("list")(list_)
app.command()(show)
app.command()(plan)
app.command()(schema)
app.command()(demo)
app.command()(ls)
app.command()(log)
app.command()(watch)
app.command("eval")(eval_)
app.command("doctor")(doctor_)
app.command()(dial)
app.command()(theory)
app.command()(sweep)
app.command()(compare)
app.command()(table)
app.command()(publish)
app.command()(report)
app.command()(figure)
app.command()(export)
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command line; print an error as one sentence, and exit with a code of `verbs.EXIT_CODES`."""
    if cast(object, sys.stdout) is None:
        echo_error("error: standard output is closed; redirect it to a file or to /dev/null")
        sys.exit(EXIT_FAILED)
    code = _run()
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        if not code:  # else an error is printed already
            echo_error(f"error: standard output: {describe_os_error(error)}")
            code = EXIT_FAILED
    sys.exit(code)


def _run() -> int | str | None:
    """Run a verb and return its exit code."""
    try:
        app(prog_name="allrounder")
    except SystemExit as stop:
        return stop.code
    except KeyboardInterrupt:  # Typer handles it only while a verb runs
        return EXIT_INTERRUPTED
    except Exception as error:
        if DEBUG.get():
            traceback.print_exc()
        message, code = explain(error)
        echo_error(message)
        return code
