"""The table of golden cases. Names of cases are data: they never change, whatever they call is renamed to."""

from __future__ import annotations

from collections.abc import Callable

from tests.golden.cases import attacks, data, evaluation, inference, methods, processes, recipes
from tests.golden.results import Result

CASES: dict[str, Callable[[], Result]] = {
    **data.CASES,
    **recipes.CASES,
    **inference.CASES,
    **attacks.CASES,
    **evaluation.CASES,
    **methods.CASES,
    **processes.CASES,
}
"""Every case by its name; the part before the first slash is its family."""
EQUAL = processes.EQUAL
