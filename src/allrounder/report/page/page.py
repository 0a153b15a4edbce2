"""The report as one page without any network access: `render_page` gives its text, `write_page` a file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from plotly import offline

from allrounder.report.entry import Results
from allrounder.report.figures import FIGURES, FigureKind
from allrounder.report.gallery import Gallery
from allrounder.report.page.figure_sections import build_sections, list_missing
from allrounder.report.page.gallery_section import build_cards
from allrounder.report.page.results_table import build_results_table
from allrounder.report.page.run_details import describe_run
from allrounder.report.page.summary import build_summary, collect_warnings, describe_judge
from allrounder.report.palette import row_colors
from allrounder.system.files import write_text

TITLE = "Robustness report"
TRADEOFF = "tradeoff"
"""The figure that comes before the table of results."""
MAX_OPEN_FILTERS = 12
"""With more rows, the list of rows to filter is folded away."""


def write_page(
    results: Results, path: str | Path, *, title: str = "", gallery: Gallery | None = None
) -> None:
    """Write the page atomically; equal results give equal bytes."""
    write_text(Path(path), render_page(results, title=title, gallery=gallery))


def render_page(
    results: Results,
    *,
    title: str = "",
    gallery: Gallery | None = None,
    figures: Mapping[str, FigureKind] = FIGURES,
) -> str:
    """Return the page as HTML; everything that comes from results is escaped."""
    colors = row_colors([entry.name for entry in results.entries])
    sections = build_sections(results, figures, colors)
    script, plotly, style = _read("page.js"), offline.get_plotlyjs(), _read("style.css")
    warnings = collect_warnings(results)
    context: dict[str, Any] = {
        "title": title or TITLE,
        "policy": content_policy(script, plotly),
        "script": script,
        "plotly": plotly,
        "style": style,
        "rows": list(colors.items()),
        "folds_rows": len(colors) > MAX_OPEN_FILTERS,
        "judge": describe_judge(results),
        "summary": build_summary(results),
        "warnings": warnings,
        "num_warnings": {warning.row: len(warning.lines) for warning in warnings},
        "table": build_results_table(results),
        "tradeoff": [section for section in sections if section.name == TRADEOFF],
        "figures": [section for section in sections if section.name != TRADEOFF],
        "missing": list_missing(sections, figures),
        "gallery": gallery,
        "cards": build_cards(gallery) if gallery else [],
        "runs": [describe_run(entry) for entry in results.entries],
    }
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_read("page.html.j2")).render(context).strip() + "\n"


def content_policy(*scripts: str) -> str:
    """Return a Content-Security-Policy: no network, and no script but these; charts set inline styles."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _read(name: str) -> str:
    return (resources.files(__package__ or "") / name).read_text(encoding="utf-8")
