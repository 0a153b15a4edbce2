"""Write the tables and figures of the documents from published results: scripts/make_results.py [--check].

The pages are README.md and docs/results/*.md; only their blocks are written (experiments/result_pages.py).
With --check nothing is written, and the script exits with 1 and names the pages whose tables are not those of
the results, or a figure that is missing. Figures are not compared: their bytes depend on matplotlib.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from typer import BadParameter

from allrounder.cli.run_figure import run_figure
from allrounder.errors import AllrounderError, InputError
from allrounder.experiments.result_pages import PageWriter, read_page
from allrounder.system.files import make_folder, write_text

ROOT = Path(__file__).parents[1]


def draw_figure(name: str, study: Path, file: Path, charts: list[str], rows: list[str]) -> None:
    """Draw a figure with `allrounder figure`."""
    make_folder(file.parent)
    run_figure(name, [str(study)], file, charts, rows)


def require_figure(name: str, study: Path, file: Path, charts: list[str], rows: list[str]) -> None:
    """Raise InputError unless the file of a figure exists."""
    if not file.is_file():
        raise InputError(f"{file}: the figure {name} of {study} is missing; draw it with: make results")


def update_pages(check: bool) -> tuple[list[Path], list[Path]]:
    """Write the pages that change and draw all figures, or only check them; return the pages and figures."""
    figures: list[Path] = []

    def draw(name: str, study: Path, file: Path, charts: list[str], rows: list[str]) -> None:
        (require_figure if check else draw_figure)(name, study, file, charts, rows)
        figures.append(file)

    writer = PageWriter(Path(), draw)
    pages = [Path("README.md"), *sorted(Path("docs/results").glob("*.md"))]
    changed: list[Path] = []
    for page in filter(Path.is_file, pages):
        text = writer.update(page)
        if text != read_page(page):
            changed.append(page)
            if not check:
                write_text(page, text)
    return changed, figures


def main() -> None:
    """Read the options, and exit with 1 if a page is stale or cannot be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and name stale pages")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder of the project")
    options = parser.parse_args()
    os.chdir(options.root)  # so that errors name short paths
    try:
        changed, figures = update_pages(options.check)
    except (AllrounderError, BadParameter) as error:
        sys.exit(f"error: {error}")
    names = ", ".join(map(str, changed))
    if options.check and changed:
        sys.exit(f"stale: {names}; write them with: make results")
    if figures and not options.check:
        print(f"drawn: {', '.join(map(str, figures))}")
    print(f"written: {names}" if changed else "all pages are up to date")


if __name__ == "__main__":
    main()
