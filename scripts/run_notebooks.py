"""Run the notebooks of `examples/` from their first cell to their last, each in an empty folder.

python scripts/run_notebooks.py                           # run all, and keep their outputs in the files
python scripts/run_notebooks.py --check examples/reviewer.ipynb   # run one, and change no file
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

nbclient: Any = import_module("nbclient")  # of the extra examples, without which types are checked
nbformat: Any = import_module("nbformat")
FOLDER = Path(__file__).resolve().parent.parent / "examples"
CELL_SECONDS = 3600
"""The longest time of one cell; a busy machine may need many times the usual one."""
MAX_BYTES = 300_000
MACHINE_PATHS = r"(?<![\w.:/])/(?:work|root|home|tmp|var|Users|opt|usr)/"
"""Places on one machine, which the output of a notebook must not show."""


def run_notebook(path: Path) -> Any:
    """Run all cells; return the notebook with their outputs. The first error of a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        resources = {"metadata": {"path": folder}}
        client = nbclient.NotebookClient(
            notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=resources
        )
        client.execute()
    _remove_machine_facts(notebook)
    nbformat.validate(notebook)
    return notebook


def find_problems(notebook: Any) -> list[str]:
    """What is wrong with the outputs: warnings, errors, paths of one machine, too many bytes."""
    problems: list[str] = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr" or output["output_type"] == "error":
                problems.append(f"cell {number}: writes to standard error: {str(output)[:300]}")
    text = nbformat.writes(notebook)
    problems += [
        f"shows the path {text[m.start() : m.start() + 60]}" for m in re.finditer(MACHINE_PATHS, text)
    ]
    if len(text) > MAX_BYTES:
        problems.append(f"has {len(text)} bytes, expected at most {MAX_BYTES}; draw a smaller figure")
    return problems


def _remove_machine_facts(notebook: Any) -> None:
    """Remove times, identifiers and versions: another run with the same outputs gives the same file."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = nbformat.from_dict({}), f"cell-{number}"


def main() -> int:
    """Run notebooks; return 1 if the outputs of one have a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="by default all of examples/")
    parser.add_argument("--check", action="store_true", help="do not write the outputs")
    options = parser.parse_args()
    failed = False
    for path in options.notebooks or sorted(FOLDER.glob("*.ipynb")):
        notebook = run_notebook(path)
        problems = find_problems(notebook)
        failed |= bool(problems)
        print(f"{path.name}: {'; '.join(problems) or 'ran'}", flush=True)
        if not options.check and not problems:
            nbformat.write(notebook, path)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
