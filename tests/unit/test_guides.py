"""What the guide shows is run, page by page, the blocks of a page one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import PROJECT

GUIDE = PROJECT / "docs" / "guide"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("page", "blocks"),
    [
        ("adaptive.md", 5),
        ("data.md", 3),
        ("reproduce.md", 1),
        pytest.param("evaluation.md", 2, marks=pytest.mark.slow),
    ],
)
def test_the_code_of_the_guide_runs(page: str, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (GUIDE / page).read_text(encoding="utf-8")
    found, names = list(BLOCK.finditer(text)), {"__name__": page}
    assert len(found) == blocks
    for block in found:
        # Empty lines in front, so that an error points at the line of the page.
        source = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        exec(compile(source, str(GUIDE / page), "exec"), names)


def test_the_architecture_guide_names_existing_files():
    text = (GUIDE / "architecture.md").read_text(encoding="utf-8")
    repository = GUIDE.parents[1]
    files = [path.relative_to(repository).as_posix() for path in repository.glob("[st]*/**/*.py")]
    named = set(re.findall(r"[a-z_][a-z_/]*\.py", text))
    assert len(named) > 40
    assert not [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)]
