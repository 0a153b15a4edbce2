"""Pages whose tables and figures are made from published studies.

A page has blocks between two comments, and only what is within a block is written:

<!-- table results/NAME columns="natural, aa worst" rows="NT; AT" notes=short -->
<!-- end -->

<!-- figure tradeoff results/NAME docs/images/NAME.svg charts="tradeoff" rows="AT" alt="..." -->
<!-- end -->

<!-- hard results/NAME classes=3 columns="natural, aa worst" -->
<!-- end -->

A table has all columns, all rows and short notes unless the comment names others. `hard` is a table of the
accuracies on the hardest classes and on the others. Paths start at the folder of the project. Comments in
code blocks are text.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from allrounder.config.fields import did_you_mean
from allrounder.errors import AllrounderError, InputError
from allrounder.experiments.manifest import Manifest, collect_results
from allrounder.experiments.published import PUBLISHED_FILE, is_published
from allrounder.report.excerpt import Excerpt
from allrounder.report.hard_classes import hard_class_table
from allrounder.report.study import StudyResults
from allrounder.report.tables import to_markdown

START = re.compile(r"<!-- (table|figure|hard)\s(.*)-->\s*")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
"""The first or the last line of a code block."""
END = "<!-- end -->"
RESULTS = "results"
"""The folder of the published studies of a project."""
WORDS = {
    "table": ("the folder of a published study",),
    "figure": ("a figure", "a study", "the file"),
    "hard": ("the folder of a published study",),
}
OPTIONS = {
    "table": ("columns", "rows", "notes"),
    "figure": ("charts", "rows", "alt"),
    "hard": ("classes", "columns"),
}
DEFAULT_HARD = "3"
"""The number of hard classes."""


@final
@dataclass(frozen=True)
class Block:
    """The comment that begins a block."""

    kind: str
    words: tuple[str, ...]
    options: Mapping[str, str]

    @classmethod
    def parse(cls, kind: str, text: str) -> Block:
        """Read what follows the kind in the comment."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise InputError(f"{kind}: cannot be read ({error}); put texts with spaces into quotes") from None
        plain = tuple(word for word in words if not re.match(r"[a-z]+=", word))
        options: dict[str, str] = {}
        known = OPTIONS[kind]
        for name, value in (word.split("=", 1) for word in words if re.match(r"[a-z]+=", word)):
            if name not in known:
                raise InputError(
                    f"{kind}: got {name}=, expected {', '.join(known)}{did_you_mean(name, known)}"
                )
            if name in options:
                raise InputError(f"{kind}: got {name}= twice, expected it once")
            options[name] = value
        if len(plain) != len(WORDS[kind]):
            got = " ".join(plain) or "nothing"
            raise InputError(f"{kind}: got {got}, expected {', '.join(WORDS[kind])}")
        return cls(kind, plain, options)

    def split_option(self, name: str) -> list[str]:
        """Return the texts of an option, which semicolons separate."""
        return [part.strip() for part in self.options.get(name, "").split(";") if part.strip()]


Draw = Callable[[str, Path, Path, list[str], list[str]], None]
"""Draws a figure: its name, a folder of results, the file to write, and the charts and rows to draw."""


def read_page(file: Path) -> str:
    """Read a page and keep the ends of its lines, which may be those of Windows."""
    return file.read_bytes().decode("utf-8")


def _follow_fence(fence: str, line: str) -> str:
    """Return the marks of the code block that goes on after a line; empty outside of code blocks. `fence` is
    that before the line."""
    found = FENCE.fullmatch(line.rstrip())
    if found is None:
        return fence
    marks, rest = found.groups()
    if not fence:
        return "" if "`" in marks and "`" in rest else marks
    return "" if marks.startswith(fence) and not rest else fence


@final
@dataclass(frozen=True, eq=False)
class PageWriter:
    """Writes the blocks of pages; every study is read once."""

    root: Path
    """The folder of the project."""
    draw: Draw
    studies: dict[str, StudyResults] = field(default_factory=dict[str, StudyResults])

    def update(self, page: Path) -> str:
        """Return the text of a page, a path below the root, with the content of its blocks replaced."""
        lines: list[str] = []
        number, start_line, fence = 0, 0, ""
        for number, line in enumerate(read_page(self.root / page).split("\n"), start=1):
            fence = "" if start_line else _follow_fence(fence, line)
            start, is_end = START.fullmatch(line), line.strip() == END
            if fence:
                start, is_end = None, False
            if (start and start_line) or (is_end and not start_line):
                expected = f'expected "{END}" first' if start else "there is no block that it ends"
                raise InputError(f"{page}, line {number}: got {line.strip()}, {expected}; correct the page")
            if not start_line or is_end:
                lines.append(line)
            if start:
                start_line = number
                end = "\r" if line.endswith("\r") else ""
                lines += [f"{text}{end}" for text in self._render(page, number, start[1], start[2])]
            start_line = 0 if is_end else start_line
        if start_line:
            raise InputError(f'{page}, line {start_line}: the block has no end; write "{END}" below it')
        if fence:
            raise InputError(f"{page}, line {number}: a code block has no end; write {fence} below it")
        return "\n".join(lines)

    def _render(self, page: Path, number: int, kind: str, text: str) -> list[str]:
        """Return the lines of a block; errors name the page and the line."""
        try:
            block = Block.parse(kind, text)
            match kind:
                case "table":
                    content = self._render_table(block)
                case "hard":
                    content = self._render_hard_classes(block)
                case _:
                    content = self._render_figure(block, page)
        except AllrounderError as error:
            raise InputError(f"{page}, line {number}: {error}") from error
        return ["", *content.rstrip().splitlines(), ""]

    def _render_table(self, block: Block) -> str:
        (name,) = block.words
        excerpt = Excerpt.parse(**{"notes": "short", **block.options})
        table = excerpt.to_table(self._read_study(name))
        return to_markdown(replace(table, notes=[f"- {note}" for note in table.notes]))

    def _render_hard_classes(self, block: Block) -> str:
        (name,) = block.words
        count = block.options.get("classes", DEFAULT_HARD)
        if not count.isdecimal():
            raise InputError(f"classes: got {count!r}, expected a number")
        titles = Excerpt.parse(columns=block.options.get("columns", "")).columns
        table = hard_class_table(self._read_study(name), int(count), titles)
        return to_markdown(replace(table, notes=[f"- {note}" for note in table.notes]))

    def _render_figure(self, block: Block, page: Path) -> str:
        name, study, file = block.words
        self._check_published(study)
        charts, rows = (block.split_option(option) for option in ("charts", "rows"))
        self.draw(name, self.root / study, self.root / file, charts, rows)
        link = Path(os.path.relpath(file, page.parent)).as_posix()
        return f"![{block.options.get('alt', f'{name} of {study}')}]({link})"

    def _read_study(self, name: str) -> StudyResults:
        if name not in self.studies:
            self._check_published(name)
            folder = self.root / name
            self.studies[name] = collect_results(Manifest.load(folder), folder)
        return self.studies[name]

    def _check_published(self, name: str) -> None:
        """Raise InputError unless a path below the root is a published study; list those that there are."""
        if not is_published(self.root / name):
            files = sorted((self.root / RESULTS).glob(f"**/{PUBLISHED_FILE}"))
            known = [file.parent.relative_to(self.root).as_posix() for file in files]
            there = f"expected one of {', '.join(known)}" if known else f"{RESULTS}/ has none"
            advice = "publish one with: allrounder publish"
            raise InputError(f"{name}: not a published study, {there}{did_you_mean(name, known)}; {advice}")
