"""Links, commands and names in the documents, and the site that is made of them."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

import allrounder
from allrounder.cli.main import app
from tests.support.documents import DOCUMENTS, find_anchors, find_links, name_of, read_document, shell_lines
from tests.support.paths import PROJECT

NAMES = [name_of(document) for document in DOCUMENTS]


def load_hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", PROJECT / "scripts" / "docs_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load_hooks()
COMMAND: Any = get_command(app)


@pytest.mark.parametrize("name", NAMES)
def test_every_relative_link_resolves(name: str):
    wrong: list[str] = []
    for target in find_links(read_document(name)):
        path, _, anchor = target.partition("#")
        file = (PROJECT / name).parent / path if path else PROJECT / name
        if not file.exists():
            wrong.append(f"{target}: no such file")
        elif anchor and anchor not in find_anchors(file.read_text(encoding="utf-8")):
            wrong.append(f"{target}: no such heading")
    assert not wrong


def test_wrong_links_would_be_found():
    text = (
        "# A `b`, c\n## A b, c\n[x](y.md#z) ![i](i.svg) `[no](code)` [out](https://a.b)\n```\n[no](x)\n```\n"
    )
    assert find_links(text) == ["y.md#z", "i.svg"]
    assert find_anchors(text) == {"a-b-c", "a-b-c-1"}


def commands_of(name: str) -> list[list[str]]:
    """The words of every command of this package on a page, also behind torchrun."""
    found = [
        re.search(r"(?:^| -m (?:-- )?)allrounder (.*)", line) for line in shell_lines(read_document(name))
    ]
    return [shlex.split(match[1], comments=True) for match in found if match]


def parse(words: list[str]) -> None:
    """Parse words with the real command line; run nothing."""
    command = COMMAND
    context = command.make_context("allrounder", list(words))
    while True:
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
        if not hasattr(command, "resolve_command"):
            return


@pytest.mark.parametrize("name", [name for name in NAMES if commands_of(name)])
def test_every_command_is_one_of_the_command_line(name: str):
    for words in commands_of(name):
        try:
            parse(words)
        except Exception as error:
            pytest.fail(f"{name}: allrounder {' '.join(words)}: {error}")


@pytest.mark.parametrize("words", ["trian x", "train x --no-such-option", "train", "data gte cifar10"])
def test_a_wrong_command_would_be_found(words: str):
    with pytest.raises(Exception, match=r"(?i)no such|missing|required"):
        parse(words.split())


def test_every_target_of_make_exists():
    targets = set(
        re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for name in NAMES:
        text = read_document(name)
        named = re.findall(r"`make ([a-z-]+)`", text) + re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
        assert set(named) <= targets, name


def test_every_script_exists():
    for name in NAMES:
        for script in re.findall(r"\b(?:scripts|benchmarks)/\w+\.py", read_document(name)):
            assert (PROJECT / script).is_file(), f"{name}: {script}"


def test_the_reference_has_every_public_name_once():
    pages = sorted((PROJECT / "docs" / "api").glob("*.md"))
    named = [
        name for page in pages for name in re.findall(r"^::: allrounder\.(\w+)$", page.read_text(), re.M)
    ]
    assert sorted(named) == sorted(allrounder.__all__)
    index = read_document("docs/api/index.md")
    assert set(re.findall(r"\((\w+\.md)\)", index)) == {page.name for page in pages} - {"index.md"}


def test_links_lead_to_pages_of_the_site():
    rewrite = hooks.rewrite_links
    assert rewrite("[a](docs/guide/x.md#y) ![](docs/i.svg)", "index.md") == "[a](guide/x.md#y) ![](i.svg)"
    assert rewrite("[a](../../CONTRIBUTING.md#b)", "guide/x.md") == "[a](../contributing.md#b)"
    assert rewrite("[a](../results/y.md) [b](#c)", "guide/x.md") == "[a](../results/y.md) [b](#c)"
    assert rewrite("[the files](../../results/demo)", "results/x.md") == "the files"
    assert rewrite("[missing](../../nowhere.md)", "guide/x.md") == "[missing](../../nowhere.md)"
    assert rewrite("[w](https://a.b/c)\n```\n[a](../../LICENSE)\n```", "guide/x.md").endswith("LICENSE)\n```")


def test_a_folder_in_the_navigation_is_its_other_pages(tmp_path: Path):
    for name in ("a/1.md", "a/2.md", "a/3.md", "b/1.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    nav = ["x.md", {"A": ["a/2.md", "a/"]}, {"B": [{"Deep": ["b/"]}]}]
    pages = set(hooks.list_pages(nav))
    expected = ["x.md", {"A": ["a/2.md", "a/1.md", "a/3.md"]}, {"B": [{"Deep": ["b/1.md"]}]}]
    assert hooks.expand_folders(nav, pages, tmp_path) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_builds_without_warnings_and_needs_no_network(tmp_path: Path):
    for library in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(library, reason=f"{library} is missing: make docs, or pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    pages = {page: page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > len(NAMES)
    loaded = r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>"
    assert not [(page.name, found) for page, text in pages.items() if (found := re.findall(loaded, text))]
    home = pages[tmp_path / "site" / "index.html"]
    assert 'src="images/tradeoff.svg"' in home and 'href="guide/tour.html"' in home
    reference = pages[tmp_path / "site" / "api" / "attacks.html"]
    assert 'id="allrounder.Pgd"' in reference and "Length of a step, as a fraction of eps." in reference
