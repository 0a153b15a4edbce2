"""Hooks of MkDocs, which mkdocs.yml names: pages from outside of docs/, their links, and the navigation.

The documents are written for readers of the repository, with relative links between any of its files. The
site contains docs/ and the files of OUTSIDE. A link to any other file of the repository becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, Union

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "dev/LOG.md": "log.md",
    "results/README.md": "evidence.md",
}
"""Documents outside of docs/, and their names on the site."""
SOURCE_OF = {page: source for source, page in OUTSIDE.items()}
CODE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
Nav: TypeAlias = "list[Entry]"
Entry: TypeAlias = str | dict[str, Union[str, "Nav"]]


def on_config(config: Any) -> Any:
    """Replace folders in the navigation by their pages that it does not name."""
    nav: Nav = config.nav or []
    config.nav = expand_folders(nav, set(list_pages(nav)), Path(config.docs_dir))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the documents from outside of docs/."""
    file_type: Any = import_module("mkdocs.structure.files").File  # the checks run without MkDocs, too
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(file_type.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let the links of a page lead to pages of the site."""
    return rewrite_links(markdown, page.file.src_uri)


def list_pages(nav: Nav) -> list[str]:
    """Return the pages and folders that a navigation names, in order."""
    pages: list[str] = []
    for entry in nav:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            pages += list_pages(target) if isinstance(target, list) else [target]
    return pages


def expand_folders(nav: Nav, named: set[str], docs: Path) -> Nav:
    """Replace every folder (`adr/`) by its pages that are not named, by name."""
    result: Nav = []
    for entry in nav:
        if isinstance(entry, dict):
            sections = {
                title: expand_folders(target, named, docs) if isinstance(target, list) else target
                for title, target in entry.items()
            }
            result.append(sections)
        elif entry.endswith("/"):
            pages = sorted(path.relative_to(docs).as_posix() for path in (docs / entry).glob("*.md"))
            result += [page for page in pages if page not in named]
        else:
            result.append(entry)
    return result


def rewrite_links(markdown: str, page: str) -> str:
    """Let the links of a page of the site lead to pages of the site; code stays as it is."""
    source = SOURCE_OF.get(page, f"docs/{page}")

    def rewrite(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or re.match(r"\w+:", path):
            return link[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if file in OUTSIDE:
            file = OUTSIDE[file]
        elif file.startswith("docs/") and not (ROOT / file).is_dir():
            file = file.removeprefix("docs/")
        else:
            return text if (ROOT / file).exists() else link[0]
        relative = posixpath.relpath(file, posixpath.dirname(page) or ".")
        return f"{mark}[{text}]({relative}{hash_sign}{anchor})"

    parts = CODE.split(markdown)  # text and code in turn
    return "".join(part if number % 2 else LINK.sub(rewrite, part) for number, part in enumerate(parts))
