"""The notebooks of examples/, and the Python code of the page on the ecosystem."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import PROJECT

GUIDE = PROJECT / "docs" / "guide"
NOTEBOOKS = sorted((PROJECT / "examples").glob("*.ipynb"))
MAX_BYTES = 300_000
MACHINE_PATHS = r"(?<![\w.:/])/(?:work|root|home|tmp|var|Users|opt|usr)/"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def code_of(notebook: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_page_on_examples_lists_every_notebook():
    text = (GUIDE / "examples.md").read_text(encoding="utf-8")
    listed = re.findall(r"\(\.\./\.\./examples/(\w+\.ipynb)\)", text)
    assert sorted(listed) == [path.name for path in NOTEBOOKS] and len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_outputs_of_all_cells_and_knows_no_machine(path: Path):
    notebook, text = read(path), path.read_text(encoding="utf-8")
    assert len(text) <= MAX_BYTES and not re.search(MACHINE_PATHS, text)
    assert notebook["nbformat"] == 4 and notebook["metadata"]["kernelspec"]["name"] == "python3"
    for source in code_of(notebook):
        ast.parse(source)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid(path: Path):
    nbformat = pytest.importorskip("nbformat", reason="an extra: pip install 'allrounder[examples]'")
    nbformat.validate(read(path))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path):
    pytest.importorskip("nbclient", reason="an extra: pip install 'allrounder[examples]'")
    command = [sys.executable, str(PROJECT / "scripts" / "run_notebooks.py"), "--check", str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert f"{path.name}: ran" in result.stdout


def test_the_code_of_the_page_on_the_ecosystem_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (GUIDE / "ecosystem.md").read_text(encoding="utf-8")
    found, names = list(BLOCK.finditer(text)), {"__name__": "ecosystem.md"}
    assert len(found) == 4
    for block in found:
        # Empty lines in front, so that an error points at the line of the page.
        source = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        exec(compile(source, str(GUIDE / "ecosystem.md"), "exec"), names)
