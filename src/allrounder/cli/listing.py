"""`allrounder list`: an overview of everything that has a name, and lists filtered by words and by method."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import typer

from allrounder.cli.echo import echo_note, output_width
from allrounder.cli.index import (
    check_choice,
    complete_list,
    complete_method,
    list_folders,
    list_methods,
    read_index,
)

Lists = Mapping[str, Mapping[str, str]]
MIN_TEXT_WIDTH = 40
"""Descriptions that would be narrower go below the name."""
MORE = """
allrounder list attacks             one list, with a line for each name
allrounder list embedded            the recipes and studies of a folder
allrounder list generalist wrn      everything that mentions all of these words
allrounder list --method trades     the recipes that use a method
allrounder show embedded/nt         one recipe"""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORD",
        help="A list such as attacks, a folder such as embedded, or any words. Default: an overview.",
        autocompletion=complete_list,
    ),
]
Method = Annotated[
    str | None,
    typer.Option(help="Recipes with a method, such as trades or generalist.", autocompletion=complete_method),
]


def list_(words: Words = None, method: Method = None) -> None:
    """List recipes, studies, objectives, attacks, models, datasets and more.

    Recipes are shown with their methods, norms, and forward/backward passes per image and step.
    """
    lists: Lists = read_index()["lists"]
    if not words and method is None:
        _print_overview(lists)
        return
    if method is not None:
        check_choice(method, list_methods(), "--method")
        facts = read_index()["recipes"]
        recipes = lists["recipes"].items()
        lists = {
            "recipes": {name: line for name, line in recipes if method in facts[name]["methods"].split()}
        }
    for word in words or ():
        lists = select(lists, word)
    if not lists:
        raise typer.BadParameter(_describe_no_match(words or (), method))
    for title, lines in lists.items():
        typer.secho(f"{title} ({len(lines)})", bold=True)
        for row in _format_recipes(lines) if title == "recipes" else _format_lines(lines):
            typer.echo(row)


def select(lists: Lists, word: str) -> Lists:
    """Return the list with this title; else the names in this folder; else the names, and recipes with
    methods, that contain the word; else the lines that contain it."""
    if word in lists:
        return {word: lists[word]}
    word = word.lower().rstrip("/")
    recipes = read_index()["recipes"]

    def in_methods(name: str) -> bool:
        return name in recipes and word in recipes[name]["methods"]

    if word in list_folders():
        return _filter(lists, lambda name, line: name.startswith(f"{word}/"))
    by_name = _filter(lists, lambda name, line: word in name or in_methods(name))
    return by_name or _filter(lists, lambda name, line: word in line.lower())


def _filter(lists: Lists, matches: Callable[[str, str], bool]) -> Lists:
    selected = {
        title: {name: line for name, line in lines.items() if matches(name, line)}
        for title, lines in lists.items()
    }
    return {title: lines for title, lines in selected.items() if lines}


def _describe_no_match(words: Sequence[str], method: str | None) -> str:
    from allrounder.config.fields import did_you_mean

    lists = read_index()["lists"]
    names = [*lists, *list_folders(), *(name for lines in lists.values() for name in lines)]
    suggestions = "".join(did_you_mean(word, names) for word in words if not select(lists, word))
    among = "" if method is None else f" among the recipes with the method {method}"
    return (
        f"{' '.join(words)}: nothing has this name or mentions it{among}{suggestions} (see: allrounder list)"
    )


def _print_overview(lists: Lists) -> None:
    for title, lines in lists.items():
        folders = Counter(name.split("/")[0] for name in lines if "/" in name)
        names = [f"{folder} ({count})" for folder, count in folders.items()] or list(lines)
        typer.secho(f"{title} ({len(lines)})", bold=True)
        for row in _wrap(", ".join(names), 4, output_width()):
            typer.echo(row)
    for row in MORE.splitlines():
        echo_note(row)


def _format_lines(lines: Mapping[str, str]) -> Iterator[str]:
    """Format names with one line each, in two columns."""
    indent = 4 + max(map(len, lines))
    for name, line in lines.items():
        yield from _format_row(f"  {_color(name.ljust(indent - 4))}  ", indent, line)


def _format_recipes(lines: Mapping[str, str]) -> Iterator[str]:
    """Format recipes in columns: name, norms, passes, and the methods with the line."""
    facts = read_index()["recipes"]
    rows = [
        ("name", "norms", "passes"),
        *((name, facts[name]["norms"], facts[name]["passes"]) for name in lines),
    ]
    texts = ["method: description", *(f"{_shorten(facts[name]['methods'])}: {lines[name]}" for name in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    indent = 2 + sum(width + 2 for width in widths)
    for row, text in zip(rows, texts, strict=True):
        name, *cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield from _format_row("  ".join(["", _color(name), *cells, ""]), indent, text)


def _shorten(methods: str) -> str:
    """Leave out the plain objectives, unless they are all there is."""
    words = methods.split()
    return ", ".join([word for word in words if word not in ("natural", "adversarial")] or words)


def _format_row(start: str, indent: int, line: str) -> Iterator[str]:
    """Format a line beside the columns before it, or below them if the output is too narrow."""
    width = output_width()
    if width - indent >= MIN_TEXT_WIDTH:
        first, *others = _wrap(line, indent, width) or [""]
        yield f"{start}{first.lstrip()}".rstrip()
        yield from others
    else:
        yield start.rstrip()
        yield from _wrap(line, 6, width)


def _wrap(text: str, indent: int, width: int) -> list[str]:
    space = " " * indent
    width = max(width, indent + MIN_TEXT_WIDTH)
    return textwrap.wrap(
        text,
        width,
        initial_indent=space,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _color(name: str) -> str:
    return typer.style(name, fg="cyan")
