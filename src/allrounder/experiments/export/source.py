"""Copies the source of networks out of `models/`, so that it runs without this package.

The copy holds a class and everything of `models/` that it uses, in an order in which it can be defined. The
text stays as it is, with its comments, except for names and decorators that only this package needs.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TypeAlias, cast, final

Edits: TypeAlias = list[tuple[int, int, int, str]]
"""Replacements in a source: line, first column, end column, new text."""

PACKAGE = "allrounder.models"
"""The package whose definitions are copied; imports from elsewhere are kept as imports."""
REPLACED = {
    "TensorOrProxy": "Tensor",
    "AdaptiveAvgPool": "nn.AdaptiveAvgPool2d",  # ours only makes gradients faster on a CPU
    "FiniteFloat": "float",
    "PositiveFloat": "float",
    "Share": "float",
}
"""Names of this package, and what the copy has in their place."""
REPLACED_DECORATORS = {"final": "", "override": "", "frozen_config": "@dataclass(frozen=True)"}
"""Decorators without effect on what a network computes, or with a counterpart in the standard library."""
IMPORTS = {
    "dataclass": "from dataclasses import dataclass",
    "nn": "from torch import nn",
    "Tensor": "from torch import Tensor",
}
"""The imports of what replacements use."""


@final
@dataclass
class CopiedSource:
    """The imports and definitions that were copied so far."""

    imports: set[str] = field(default_factory=set[str])
    """One statement for every imported name."""
    definitions: dict[str, str] = field(default_factory=dict[str, str])
    """By name, in an order in which they can be defined."""
    modules: dict[str, str] = field(default_factory=dict[str, str])
    """The module of every definition."""

    def add(self, module: str, name: str) -> None:
        """Copy a definition of a module after everything that it uses."""
        if name in self.definitions:
            assert self.modules[name] == module, (
                f"{module} and {self.modules[name]} both define {name}; rename one"
            )
            return
        source = _read_module(module)
        node = source.nodes[name]
        text = source.cut(node, list(_find_edits(node)))
        self._add_used(source, text, name)
        self.definitions[name], self.modules[name] = text, module

    def _add_used(self, source: _ModuleSource, text: str, name: str) -> None:
        for used in _names(ast.parse(text)):
            if used in IMPORTS:
                self.imports.add(IMPORTS[used])
            elif used in source.imports:
                module, statement = source.imports[used]
                if module.startswith(PACKAGE):
                    self.add(module, used)
                elif module.startswith("allrounder"):
                    fix = "move it to models/, or add it to REPLACED"
                    raise AssertionError(f"{name} uses {used} of {module}, which is not copied; {fix}")
                else:
                    self.imports.add(statement)
            elif used in source.nodes and used != name:
                self.add(source.name, used)

    def list_imports(self) -> list[str]:
        """Return the import statements: those of the standard library, then those of torch, both sorted."""
        ordered = sorted(_merge_imports(self.imports), key=lambda line: (line.startswith("from "), line))
        groups = [[line for line in ordered if ("torch" in line) == is_torch] for is_torch in (False, True)]
        return [line for group in groups if group for line in (*group, "")]

    def list_definitions(self) -> Iterator[str]:
        """Yield constants and types, then functions and classes; the order is otherwise kept."""
        texts = list(self.definitions.values())
        yield from (text for text in texts if not text.startswith(("class ", "def ", "@")))
        yield from (text for text in texts if text.startswith(("class ", "def ", "@")))


@final
@dataclass(frozen=True)
class _ModuleSource:
    """The source of a module, with what it defines and imports, by name."""

    name: str
    lines: list[str]
    nodes: Mapping[str, ast.stmt]
    imports: Mapping[str, tuple[str, str]]
    """The module that a name comes from, and the statement that imports it."""

    def cut(self, node: ast.stmt, edits: Edits) -> str:
        """Return the text of a definition, with its docstring and edits; empty lines of edits are dropped."""
        decorators = cast(list[ast.expr], getattr(node, "decorator_list", []))
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        last = cast(int, node.end_lineno)
        lines: list[str | None] = list(self.lines)
        for line, start, end, text in sorted(edits, reverse=True):
            old = cast(str, lines[line - 1])
            new = old[:start] + text + old[end:]
            lines[line - 1] = new if new.strip() else None
        following = self.lines[last] if last < len(self.lines) else ""
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) and following.startswith('"""'):
            last = next(n for n in range(last + 1, len(self.lines) + 1) if self.lines[n - 1].endswith('"""'))
        return "\n".join(line for line in lines[first - 1 : last] if line is not None)


@cache
def _read_module(name: str) -> _ModuleSource:
    text = inspect.getsource(import_module(name))
    nodes: dict[str, ast.stmt] = {}
    imports: dict[str, tuple[str, str]] = {}
    for node in ast.parse(text).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                nodes[node.name] = node
            case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)):
                nodes[target] = node
            case ast.Import():
                for alias in node.names:
                    imports[alias.asname or alias.name] = (alias.name, f"import {alias.name}")
            case ast.ImportFrom(module=str(module)):
                for alias in node.names:
                    written = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
                    imports[alias.asname or alias.name] = (module, f"from {module} import {written}")
            case _:
                pass
    return _ModuleSource(name, text.splitlines(), nodes, imports)


def _names(tree: ast.AST) -> list[str]:
    """The names that a piece of source uses, in the order of their first use."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in found))


def _find_edits(definition: ast.stmt) -> Iterator[tuple[int, int, int, str]]:
    """Yield the edits that make a definition independent of this package."""
    for node in ast.walk(definition):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                name = ast.unparse(decorator)
                if name in REPLACED_DECORATORS:
                    start = decorator.col_offset - 1  # of the sign @
                    yield decorator.lineno, start, start + 1 + len(name), REPLACED_DECORATORS[name]
        elif isinstance(node, ast.Name) and node.id in REPLACED:
            yield node.lineno, node.col_offset, cast(int, node.end_col_offset), REPLACED[node.id]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
            # Annotated[PositiveFloat, ...]: the name inside is replaced by itself.
            first = cast(ast.Tuple, node.slice).elts[0]
            end = cast(int, node.end_col_offset)
            yield node.lineno, node.col_offset, first.col_offset, ""
            yield node.lineno, cast(int, first.end_col_offset), end, ""


def _merge_imports(statements: set[str]) -> list[str]:
    """Join the statements that import from one module."""
    plain = [line for line in statements if line.startswith("import ")]
    by_module: dict[str, list[str]] = {}
    for line in statements - set(plain):
        module, _, name = line.removeprefix("from ").partition(" import ")
        by_module.setdefault(module, []).append(name)
    return [*plain, *(f"from {module} import {', '.join(sorted(by_module[module]))}" for module in by_module)]
