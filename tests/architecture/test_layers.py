"""Imports go strictly downwards; every module of the package stands in one row of the table below."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import allrounder

SOURCE = Path(allrounder.__file__).parent
PROJECT = SOURCE.parent.parent

ROWS: tuple[tuple[str, ...], ...] = (
    (
        "errors",
        "values",
        "rng",
        "modes",
        "certainty",
        "weights",
        "progress",
        "stopping",
        "shifts",
        "resident",
    ),
    ("times", "compute"),
    (
        "types",
        "decoding",
        "init",
        "optimizers",
        "models",
        "storage",
        "zoo",
        "pool",
        "outcome",
    ),
    (
        *("norms", "data", "folding", "precision", "meter", "watch", "schedules", "shelf", "world"),
        *("reliability", "footnotes", "ledger", "costs"),
    ),
    (
        *("threats", "recalibration", "shift_tables", "foreign", "winograd", "stem", "corruptions"),
        *("gradcam", "sharing", "compiling"),
    ),
    ("attacks", "quick", "tables"),
    ("objectives", "probes", "doctor", "results", "validation"),
    ("assessment",),
    ("evidence",),
    ("ood",),
    ("evaluation",),
    ("updates",),
    ("task", "mixing"),
    ("program",),
    ("learner", "recipe"),
    ("runs", "selection", "advice", "study"),
    ("starting", "minutes", "seating"),
    ("training", "programs"),
    ("beginning",),
    ("trainer",),
    ("__init__", "campaign", "launchers", "display", "subject", "planning"),
    ("cli_eval", "cli_ood", "cli_study", "cli_plan"),
    ("cli_data",),
    ("cli",),
    ("__main__",),
)
"""From the lowest row up. A folder is one entry: its files may import each other."""
ROW = {name: number for number, row in enumerate(ROWS) for name in row}

HANDS_ON = {("outcome", "tables")}
"""Late imports upwards, of a method that does nothing but call what stands above."""

ONLY = {
    "torch.distributed": {"world"},
    "typer": {"cli", "cli_eval", "cli_data", "cli_ood", "cli_study"},
    "rich": {"display"},
    "tomllib": {"recipe", "shelf", "decoding", "study"},
    "tomli_w": {"recipe", "study"},
}
"""Who alone may use what."""
NEVER = {("attacks", "objectives"), ("objectives", "world")} | {
    (name, "torch")
    for name in (
        *("certainty", "shifts", "outcome", "reliability"),
        *("footnotes", "shift_tables", "tables", "results"),
    )
}
DISTRIBUTIONS = {"PIL": "pillow", "tomli_w": "tomli-w", "pydantic_core": "pydantic"}


def unit(path: Path) -> str:
    """The table's name for a file of the package."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imports(tree: ast.AST) -> Iterator[str]:
    """Everything a module imports, at the top or later, with dots; `from a import b` is both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
            yield "torch.distributed"


def siblings(tree: ast.AST) -> set[str]:
    """The entries of the table that a module imports."""
    found = {name for name in imports(tree) if name.startswith("allrounder.")}
    return {name.split(".")[1] for name in found}


def upward(name: str, tree: ast.AST) -> list[str]:
    """Imports that do not go strictly downwards; a module without a row stands below all."""
    relative = [found for found in imports(tree) if found.startswith(".")]
    known = [other for other in siblings(tree) if other != name and (name, other) not in HANDS_ON]
    wrong = [other for other in known if other not in ROW or ROW[other] >= ROW.get(name, -1)]
    return sorted(f"{name} imports {other}" for other in (*relative, *wrong))


def misplaced(name: str, tree: ast.AST) -> list[str]:
    """Imports of what others alone may use, or what this one never may."""
    found = set(imports(tree))
    roots = {root for root, users in ONLY.items() if name not in users}
    roots |= {f"allrounder.{other}" for who, other in NEVER if who == name} | {
        other for who, other in NEVER if who == name
    }
    return sorted(f"{name} imports {used}" for used in found for root in roots if _below(used, root))


def _below(name: str, root: str) -> bool:
    return name == root or name.startswith(f"{root}.")


FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def test_every_module_has_exactly_one_row():
    listed = [name for row in ROWS for name in row]
    assert len(listed) == len(ROW), "named twice"
    assert not {unit(path) for path in FILES} - ROW.keys(), "give a new module its row in ROWS"


def test_imports_go_strictly_downwards():
    assert [line for path, tree in TREES.items() for line in upward(unit(path), tree)] == []


def test_what_has_an_owner_is_used_by_its_owner_alone():
    assert [line for path, tree in TREES.items() for line in misplaced(unit(path), tree)] == []


def test_everything_imported_is_declared():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {line.split(">")[0].split("[")[0].strip() for line in project["dependencies"]}
    used = {name.split(".")[0] for tree in TREES.values() for name in imports(tree)}
    foreign = used - set(sys.stdlib_module_names) - {"allrounder"}
    extras = project["optional-dependencies"]
    extra = {line.split(">")[0] for name in ("ood", "ray") for line in extras[name]}
    assert {DISTRIBUTIONS.get(name, name) for name in foreign} == declared | extra


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("attacks", "from allrounder.objectives import Natural"),
        ("rng", "def f():\n    import allrounder.training.trainer"),
        ("rng", "from allrounder import trainer"),
        ("rng", "from allrounder.types import Images"),
        ("norms", "from allrounder.data.base import Data"),
        ("norms", "from . import rng"),
        ("cli", "from allrounder import Pgd"),
        ("cli", "from allrounder.nowhere import x"),
    ],
)
def test_an_import_that_does_not_go_down_is_found(name: str, source: str):
    assert len(upward(name, ast.parse(source))) >= 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("trainer", "import torch.distributed as dist"),
        ("trainer", "from torch import distributed"),
        ("trainer", "from torch.distributed import init_process_group"),
        ("trainer", "import torch\ntorch.distributed.barrier()"),
        ("trainer", "from rich.console import Console"),
        ("cli", "import tomllib"),
        ("outcome", "def f():\n    from torch import Tensor"),
        ("objectives", "from allrounder.distributed import World"),
        ("objectives", "from allrounder import world"),
    ],
)
def test_a_use_without_a_right_to_it_is_found(name: str, source: str):
    assert misplaced(name, ast.parse(source))


def test_what_is_allowed_is_not_found():
    tree = ast.parse("import torch\nfrom allrounder.rng import Draws\nfrom allrounder.attacks.base import x")
    assert upward("attacks", tree) == misplaced("attacks", tree) == []
    assert misplaced("world", ast.parse("import torch.distributed")) == []
