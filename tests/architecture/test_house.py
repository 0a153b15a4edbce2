"""House rules that a program can check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import allrounder

PACKAGE = Path(allrounder.__file__).parent
PROJECT = PACKAGE.parent.parent
SOURCE = {
    path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")
}
TREES = {name: ast.parse(text) for name, text in SOURCE.items()}
WRITTEN = [
    path
    for folder in ("src", "tests", "scripts", "benchmarks")
    for kind in ("*.py", "*.toml")
    for path in (PROJECT / folder).rglob(kind)
]

LONGEST = 300
LONGEST_OF = {"trainer.py": 150, "training.py": 150}
LONGEST_FUNCTION = 60
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
NO_WORDS = r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b"
NO_SYNONYMS = r"(?i)\b(experts?|students?)\b"
NO_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "yaml", "marshal", "shelve"}
NO_CALLS = {"torch.save", "np.save", "eval", "exec", "os.system"}
LOADS = {"np.load": "allow_pickle=False", "torch.load": "weights_only=True"}
"""What may be read that could run code, and the words that keep it from doing so."""
NO_PATHS = r"(?<![\w.])/(work|root|home|tmp|Users)/"


def calls(tree: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def unguarded(tree: ast.AST) -> list[str]:
    """Reading without the words that keep it from running code."""
    read = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in LOADS]
    return [
        ast.unparse(node)
        for node in read
        if LOADS[ast.unparse(node.func)] not in [ast.unparse(word) for word in node.keywords]
    ]


def holding(pattern: str) -> list[str]:
    """The files in which a pattern is found."""
    return [name for name, text in SOURCE.items() if re.search(pattern, text)]


def test_a_file_fits_in_one_head():
    lines = {name: len(text.splitlines()) for name, text in SOURCE.items()}
    long = {name: count for name, count in lines.items() if count > LONGEST_OF.get(name, LONGEST)}
    assert not long, "find the two things that such a file is"


def test_a_function_fits_on_one_screen():
    long = [
        f"{name}: {node.name}"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    ]
    assert not long


def test_a_module_is_named_for_what_it_is():
    assert not [name for name in SOURCE if set(Path(name).with_suffix("").parts) & NO_NAMES]


def test_a_module_says_what_it_is():
    # A package's table says it for the package.
    silent = [name for name, tree in TREES.items() if not ast.get_docstring(tree)]
    assert not [name for name in silent if not name.endswith("/__init__.py")]


def test_nothing_is_left_undone():
    assert not holding(NO_WORDS)


def test_only_the_command_line_prints():
    assert not [name for name, tree in TREES.items() if name != "cli.py" and "print" in calls(tree)]


def test_nothing_is_unpickled_or_evaluated():
    for name, tree in TREES.items():
        nodes = list(ast.walk(tree))
        modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not {module.split(".")[0] for module in modules} & NO_MODULES, name
        assert not calls(tree) & NO_CALLS, name
        assert not unguarded(tree), name
        assert name == "foreign.py" or "torch.load" not in calls(tree), name


def test_a_learner_is_called_a_learner():
    assert not holding(NO_SYNONYMS)


def test_every_departure_from_a_paper_or_release_is_recorded():
    """`# Differs: reason. ADR 0008`, over several comment lines if need be, and that record exists."""
    for name, text in SOURCE.items():
        for comment in re.findall(r"# Differs:.*(?:\n\s*#.*)*", text):
            record = re.search(r"ADR (\d{4})", comment)
            assert record, f"{name}: name the decision record: {comment}"
            assert list((PROJECT / "docs" / "adr").glob(f"{record[1]}-*.md")), f"{name}: no {record[0]}"


def test_what_is_written_is_ascii_and_knows_no_machine():
    for path in WRITTEN:
        text = path.read_text(encoding="utf-8")
        assert text.isascii(), path
        assert path == Path(__file__) or not re.findall(NO_PATHS, text), path


def test_the_patterns_find_what_they_forbid():
    assert re.search(NO_WORDS, "x = 1  # TODO: later")
    assert re.search(NO_SYNONYMS, "the Experts vote")
    assert re.search(NO_PATHS, 'open("/home/me/x")') and not re.search(NO_PATHS, "https://a.b/home/x")
    assert calls(ast.parse("torch.save(x, y)")) & NO_CALLS
    assert unguarded(ast.parse("torch.load(x)")) and unguarded(ast.parse("np.load(x, allow_pickle=True)"))
    assert not unguarded(ast.parse("torch.load(x, weights_only=True)"))
