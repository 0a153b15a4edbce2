"""The commands that print names: list and schema. They read generated files, without torch and rich."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping
from typing import Annotated

import typer

from allrounder.cli.echo import PIPE_WIDTH, echo
from allrounder.cli.index import check_choice, complete_list, read_index, read_schema


def list_(
    title: Annotated[
        str | None,
        typer.Argument(
            metavar="LIST", help="Print one list only, such as recipes.", autocompletion=complete_list
        ),
    ] = None,
) -> None:
    """List recipes, studies, objectives, attacks, models, datasets and more, one line each."""
    lists = read_index()["lists"]
    if title is not None:
        check_choice(title, lists)
        lists = {title: lists[title]}
    for name, lines in lists.items():
        print_names(name, lines)


def schema() -> None:
    """Print the JSON Schema of recipes, for editors that complete and check TOML."""
    echo(read_schema().rstrip())


def print_names(title: str, lines: Mapping[str, str]) -> None:
    """Print names with one line each, in two columns."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    indent = 4 + max(map(len, lines), default=0)
    typer.secho(title, bold=True)
    for name, line in lines.items():
        first, *others = textwrap.wrap(line, max(width - indent, 20)) or [""]
        typer.echo(f"  {typer.style(name.ljust(indent - 4), fg='cyan')}  {first}".rstrip())
        for other in others:
            typer.echo(" " * indent + other)
