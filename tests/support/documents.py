"""The documents of the project: their code blocks, commands, headings and links."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from tests.support.paths import PROJECT

DOCUMENTS = sorted([PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *(PROJECT / "docs").rglob("*.md")])
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


def read_document(page: str) -> str:
    """The text of a document, named by its path in the repository."""
    return (PROJECT / page).read_text(encoding="utf-8")


def name_of(document: Path) -> str:
    return document.relative_to(PROJECT).as_posix()


def find_blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language; "" for blocks that name none."""
    return [block[3] for block in FENCE.finditer(text) if block[2] == language]


def run_blocks(
    page: str, names: Mapping[str, object] | None = None, replace: Sequence[tuple[str, str]] = ()
) -> None:
    """Run the Python blocks of a page one after the other, with names that the page leaves to its reader.

    `replace` has texts of the page and shorter settings instead of them; each must occur.
    """
    text = read_document(page)
    module = ModuleType("page")
    vars(module).update(names or {})
    for old, new in replace:
        assert old in text, f"{page} has no {old}"
        text = text.replace(old, new)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        for block in FENCE.finditer(text):
            if block[2] == "python":
                # Empty lines in front, so that an error points at the line of the page.
                source = "\n" * text.count("\n", 0, block.start(3)) + block[3]
                exec(compile(source, str(PROJECT / page), "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]


def shell_lines(text: str) -> list[str]:
    """The lines of the shell blocks, without comments; a line that ends with a backslash goes on."""
    blocks = [*find_blocks(text, ""), *find_blocks(text, "sh")]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.partition("  #")[0].strip() for line in lines]


def remove_code(text: str) -> str:
    """The text without code, in which brackets are no links."""
    return INLINE_CODE.sub("code", FENCE.sub("", text))


def find_links(text: str) -> list[str]:
    """The relative links of a document."""
    targets = LINK.findall(remove_code(text))
    return [target for target in targets if not re.match(r"\w+:", target)]


def find_anchors(text: str) -> set[str]:
    """The anchors of a document, as code hosts make them from its headings."""
    anchors: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        word = unicodedata.normalize("NFC", plain).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", word).replace(" ", "-")
        anchors.add(anchor if not seen[anchor] else f"{anchor}-{seen[anchor]}")
        seen[anchor] += 1
    return anchors
