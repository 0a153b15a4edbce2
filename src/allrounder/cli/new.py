"""The command that writes a new recipe file: new."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from allrounder.cli.echo import echo
from allrounder.cli.index import complete_recipe
from allrounder.config.interrupts import delay_interrupts
from allrounder.errors import RecipeError

Name = Annotated[str, Argument(metavar="NAME", help="The file to write; .toml is added if it is missing.")]
Source = Annotated[
    str,
    Option(
        "--from",
        metavar="RECIPE",
        help="The recipe to start from: a file, or the name of a shipped recipe.",
        autocompletion=complete_recipe,
    ),
]


def new(name: Name, source: Source) -> None:
    """Write a short recipe file that extends another recipe, with the most useful keys as comments.

    The file gives the same training as the other recipe until you change it. An existing file is not
    overwritten.
    """
    with delay_interrupts():
        from allrounder.recipe.template import recipe_template

    file = Path(name if name.endswith(".toml") else f"{name}.toml")
    text = recipe_template(source, file)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise RecipeError(f"{file}: exists already; choose another name, or delete it first") from None
    except OSError as error:
        raise RecipeError(f"{file}: cannot be written: {error}") from None
    echo(f"wrote {file}, which extends {source}; edit it, then run: allrounder train {file}")
