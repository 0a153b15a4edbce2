"""Reports: outcomes of evaluations, their statistics, tables and figures. Depends on numpy, never on torch.

Public names are loaded when they are first used, so that importing this package imports no library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from allrounder.errors import MissingLibraryError

if TYPE_CHECKING:
    from allrounder.report.chart import Axis as Axis
    from allrounder.report.chart import Chart as Chart
    from allrounder.report.chart import Heatmap as Heatmap
    from allrounder.report.chart import Series as Series
    from allrounder.report.draw_matplotlib import save_figure as save_figure
    from allrounder.report.draw_plotly import to_plotly as to_plotly
    from allrounder.report.entry import Entry as Entry
    from allrounder.report.entry import Results as Results
    from allrounder.report.figures import FIGURES as FIGURES
    from allrounder.report.figures import build_charts as build_charts
    from allrounder.report.page.page import render_page as render_page
    from allrounder.report.page.page import write_page as write_page
    from allrounder.report.palette import row_colors as row_colors

_MODULES = {
    "chart": "Axis Chart Heatmap Series",
    "draw_matplotlib": "save_figure",
    "draw_plotly": "to_plotly",
    "entry": "Entry Results",
    "figures": "FIGURES build_charts",
    "page.page": "render_page write_page",
    "palette": "row_colors",
}
"""The module of every public name."""
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names.split()}
__all__ = list(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        advice = 'install it with: pip install "allrounder[report]"'
        missing = f"{name}: needs the library {error.name}, which is missing; {advice}"
        raise MissingLibraryError(missing) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
