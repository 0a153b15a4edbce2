"""Imports only go down: every module and package at the root of the package is in one row of ROWS."""

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
    ("errors",),
    ("rng",),
    ("config",),
    ("types",),
    ("system",),
    ("data", "nn", "threats", "report"),
    ("models", "distributed"),
    ("inference",),
    ("attacks",),
    ("objectives", "evaluation"),
    ("optim",),
    ("recipe",),
    ("training",),
    ("experiments",),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
"""The layers, lowest first. A package is one entry: its modules may import each other."""
ROW = {name: number for number, row in enumerate(ROWS) for name in row}

MAX_ROOT_ENTRIES = 22
"""Modules and packages at the root of the package; more would be hard to overlook."""

ONLY = {
    "torch.distributed": {"distributed"},
    "typer": {"cli"},
    "rich": {"cli"},
    "tomllib": {"config", "recipe", "experiments"},
    "tomli_w": {"recipe", "experiments"},
    "onnx": {"experiments"},
    "onnxruntime": {"experiments"},
    "onnxscript": {"experiments"},
}
"""Libraries that only some packages may import."""
NEVER = {("attacks", "objectives"), ("objectives", "distributed"), ("report", "torch")}
"""Packages and what they must not import."""
DISTRIBUTIONS = {
    "PIL": "pillow",
    "tomli_w": "tomli-w",
    "pydantic_core": "pydantic",
    "typing_extensions": "typing-extensions",
}


def unit(path: Path) -> str:
    """The entry of ROWS that a file belongs to."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imports(tree: ast.AST) -> Iterator[str]:
    """Everything a module imports, at the top or later, as dotted names; `from a import b` is a and a.b."""
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
    """The entries of ROWS that a module imports."""
    return {name.split(".")[1] for name in imports(tree) if name.startswith("allrounder.")}


def upward(name: str, tree: ast.AST) -> list[str]:
    """Imports that do not go down; a module without a row is below all."""
    relative = [module for module in imports(tree) if module.startswith(".")]
    others = [other for other in siblings(tree) if other != name]
    wrong = [other for other in others if other not in ROW or ROW[other] >= ROW.get(name, -1)]
    return sorted(f"{name} imports {other}" for other in (*relative, *wrong))


def misplaced(name: str, tree: ast.AST) -> list[str]:
    """Imports that ONLY or NEVER forbids."""
    forbidden = {root for root, users in ONLY.items() if name not in users}
    for importer, other in NEVER:
        if importer == name:
            forbidden |= {other, f"allrounder.{other}"}
    modules = set(imports(tree))
    return sorted(f"{name} imports {used}" for used in modules for root in forbidden if _below(used, root))


def _below(name: str, root: str) -> bool:
    return name == root or name.startswith(f"{root}.")


FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def test_every_module_has_exactly_one_row():
    listed = [name for row in ROWS for name in row]
    assert len(listed) == len(ROW), "named twice"
    assert not {unit(path) for path in FILES} - ROW.keys(), "give a new module its row in ROWS"


def test_the_root_has_few_entries():
    entries = {path.name for path in SOURCE.iterdir()} - {"py.typed", "__pycache__"}
    assert len(entries) <= MAX_ROOT_ENTRIES, sorted(entries)


def test_imports_only_go_down():
    wrong = {path.relative_to(SOURCE).as_posix(): upward(unit(path), tree) for path, tree in TREES.items()}
    assert {path: lines for path, lines in wrong.items() if lines} == {}


def test_restricted_libraries_are_only_imported_where_they_may_be():
    wrong = {path.relative_to(SOURCE).as_posix(): misplaced(unit(path), tree) for path, tree in TREES.items()}
    assert {path: lines for path, lines in wrong.items() if lines} == {}


def test_everything_imported_is_declared():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {line.split(">")[0].split("[")[0].strip() for line in project["dependencies"]}
    used = {name.split(".")[0] for tree in TREES.values() for name in imports(tree)}
    libraries = used - set(sys.stdlib_module_names) - {"allrounder"}
    extras = project["optional-dependencies"]
    extra = {line.split(">")[0] for name in ("onnx", "ray", "report", "tensorboard") for line in extras[name]}
    imported = {DISTRIBUTIONS.get(name, name) for name in libraries}
    assert declared <= imported <= declared | extra


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("attacks", "from allrounder.objectives import Natural"),
        ("rng", "def f():\n    import allrounder.training.trainer"),
        ("rng", "from allrounder import training"),
        ("rng", "from allrounder.types import Images"),
        ("threats", "from allrounder.data.base import Data"),
        ("threats", "from . import rng"),
        ("cli", "from allrounder import Pgd"),
        ("cli", "from allrounder.nowhere import x"),
    ],
)
def test_an_import_that_does_not_go_down_is_found(name: str, source: str):
    assert len(upward(name, ast.parse(source))) >= 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("training", "import torch.distributed as dist"),
        ("training", "from torch import distributed"),
        ("training", "from torch.distributed import init_process_group"),
        ("training", "import torch\ntorch.distributed.barrier()"),
        ("training", "from rich.console import Console"),
        ("training", "import typer"),
        ("cli", "import tomllib"),
        ("report", "def f():\n    from torch import Tensor"),
        ("objectives", "from allrounder.distributed import World"),
        ("objectives", "from allrounder import distributed"),
    ],
)
def test_a_restricted_import_is_found(name: str, source: str):
    assert misplaced(name, ast.parse(source))


def test_allowed_imports_are_not_found():
    tree = ast.parse("import torch\nfrom allrounder.rng import Rng\nfrom allrounder.attacks.base import x")
    assert upward("attacks", tree) == misplaced("attacks", tree) == []
    assert misplaced("distributed", ast.parse("import torch.distributed")) == []
