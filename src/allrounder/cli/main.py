"""The entry point: the verbs, the exit codes, and one message for every error of a user.

No option belongs to a method: settings of a method are fields of the recipe, which --set reaches.
"""

from __future__ import annotations

import sys
from typing import Annotated

from typer import Exit, Option, Typer

from allrounder import errors
from allrounder.cli.data import app as data_app
from allrounder.cli.echo import echo, echo_error
from allrounder.cli.evaluate import doctor_, eval_
from allrounder.cli.index import list_, schema
from allrounder.cli.new import new
from allrounder.cli.study import compare, demo, sweep, table
from allrounder.cli.train import plan, show, train

EXIT_FAILED, EXIT_USAGE, EXIT_RESUMABLE = 1, 2, 75

app = Typer(
    help="Train image classifiers that are accurate and robust under several norms, and evaluate them.",
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
app.command("eval")(eval_)
app.command("doctor")(doctor_)
app.command()(sweep)
app.command()(compare)
app.command()(table)
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command line; an error of the user is printed as one message, and sets the exit code."""
    try:
        app(prog_name="allrounder")
    except errors.Interrupted as stop:
        echo_error(str(stop))
        sys.exit(EXIT_RESUMABLE)
    except errors.RecipeError as error:
        echo_error(str(error))
        sys.exit(EXIT_USAGE)
    except errors.AllrounderError as error:
        echo_error(f"error: {error}")
        sys.exit(EXIT_RESUMABLE if error.resumable else EXIT_FAILED)
