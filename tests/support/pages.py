"""Pages as a parser of HTML sees them: elements with their texts, and tables as lists of texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import final

from typing_extensions import override

VOID = {"meta", "input", "br", "img", "link", "hr"}


@final
@dataclass(eq=False)
class Element:
    """An element of a page."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    def find_all(self, tag: str, **attributes: str) -> list[Element]:
        """The elements below this one with a tag and attributes; a final _ of a name is dropped."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        found: list[Element] = []
        for child in self.children:
            if isinstance(child, Element):
                matches = child.tag == tag or tag == "*"
                if matches and wanted.items() <= child.attributes.items():
                    found.append(child)
                found += child.find_all(tag, **attributes)
        return found

    def find(self, tag: str, **attributes: str) -> Element:
        """The only such element."""
        (element,) = self.find_all(tag, **attributes)
        return element

    @property
    def text(self) -> str:
        """All text of the element, with single spaces."""
        parts = [child if isinstance(child, str) else child.text for child in self.children]
        return " ".join("".join(parts).split())

    def cells(self) -> list[list[str]]:
        """The texts of a table, row by row."""
        return [
            [cell.text for cell in row.children if isinstance(cell, Element)] for row in self.find_all("tr")
        ]


@final
class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"<{self.open[-1].tag}> is closed by </{tag}>"
        self.open.pop()

    @override
    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse_page(text: str) -> Element:
    """Parse a page; fails unless every element is closed in order."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert parser.open == [parser.root]
    return parser.root
