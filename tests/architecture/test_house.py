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
SOURCE_FILES = [
    path
    for folder in ("src", "tests", "scripts", "benchmarks")
    for kind in ("*.py", "*.toml")
    for path in (PROJECT / folder).rglob(kind)
]

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers"}
NO_WORDS = r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b"
NO_SYNONYMS = r"(?i)\b(experts?|students?)\b"
PRIVATE_WORDS = r"(?i)\b(told|said|anew|mend|whoever)\b"
NO_PARTICIPLES = {
    *(
        "told",
        "begun",
        "said",
        "given",
        "found",
        "taken",
        "gathered",
        "traded",
        "made",
        "kept",
        "known",
        "shown",
    ),
    *(
        "seen",
        "drawn",
        "dealt",
        "held",
        "written",
        "chosen",
        "broken",
        "frozen",
        "settled",
        "carried",
        "lent",
    ),
}
"""Functions are verbs: a function that draws is `draw`, not `drawn`."""
NO_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "yaml", "marshal", "shelve"}
NO_CALLS = {"torch.save", "np.save", "eval", "exec", "os.system"}
ALLOWED_CALLS = {"experiments/export/folder.py": {"torch.save"}}
"""Calls of NO_CALLS with a reason: other programs read weights in the format of torch (ADR 0044)."""
LOADS = {"np.load": "allow_pickle=False", "torch.load": "weights_only=True"}
"""Loaders that could run code, and the argument that prevents it."""
NO_PATHS = r"(?<![\w.])/(work|root|home|tmp|Users)/"


def calls(tree: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def unguarded(tree: ast.AST) -> list[str]:
    """Calls of LOADS without the argument that prevents running code."""
    loads = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in LOADS
    ]
    return [
        ast.unparse(node)
        for node in loads
        if LOADS[ast.unparse(node.func)] not in [ast.unparse(word) for word in node.keywords]
    ]


def files_with(pattern: str) -> list[str]:
    """The files that contain a pattern."""
    return [name for name, text in SOURCE.items() if re.search(pattern, text)]


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def participles(tree: ast.AST) -> list[str]:
    """Functions and methods that are named by a participle."""
    return [node.name for node in functions(tree) if node.name.strip("_") in NO_PARTICIPLES]


def test_a_file_holds_one_idea():
    lines = {name: len(text.splitlines()) for name, text in SOURCE.items()}
    long = {name: count for name, count in lines.items() if count > MAX_FILE_LINES}
    assert not long, "split such a file into its two ideas"


def test_a_function_fits_on_one_screen():
    long = [
        f"{name}: {node.name}"
        for name, tree in TREES.items()
        for node in functions(tree)
        if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert not long


def test_no_word_of_the_private_vocabulary_is_left():
    texts = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.toml"), *(PROJECT / "docs").rglob("*.md")]
    texts += [PROJECT / name for name in ("README.md", "CONTRIBUTING.md")]
    wrong = {
        path.relative_to(PROJECT).as_posix(): words
        for path in texts
        if (words := re.findall(PRIVATE_WORDS, path.read_text(encoding="utf-8")))
    }
    assert wrong == {}, "write plain English"


def test_a_module_is_named_for_what_it_is():
    assert not [name for name in SOURCE if set(Path(name).with_suffix("").parts) & NO_NAMES]


def test_no_function_is_named_by_a_participle():
    wrong = {name: participles(tree) for name, tree in TREES.items()}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_every_module_and_package_has_a_docstring():
    assert not [name for name, tree in TREES.items() if not ast.get_docstring(tree)]


def test_unit_tests_mirror_the_packages():
    unit = PROJECT / "tests" / "unit"
    tests = {path.parent.relative_to(unit).as_posix() for path in unit.rglob("test_*.py")}
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")}
    assert not tests - packages, "tests of a package that does not exist"
    assert not packages - tests, "a package without unit tests"


def test_nothing_is_left_undone():
    assert not files_with(NO_WORDS)


def test_only_the_command_line_prints():
    assert not [
        name for name, tree in TREES.items() if not name.startswith("cli/") and "print" in calls(tree)
    ]


def test_nothing_is_unpickled_or_evaluated():
    for name, tree in TREES.items():
        nodes = list(ast.walk(tree))
        modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert not {module.split(".")[0] for module in modules} & NO_MODULES, name
        assert calls(tree) & NO_CALLS == ALLOWED_CALLS.get(name, set()), name
        assert not unguarded(tree), name
        assert name == "models/external.py" or "torch.load" not in calls(tree), name


def test_a_learner_is_called_a_learner():
    assert not files_with(NO_SYNONYMS)


def test_every_departure_from_a_paper_or_release_is_recorded():
    """`# Differs: reason. ADR 0008`, over one or more comment lines, and the record exists."""
    for name, text in SOURCE.items():
        for comment in re.findall(r"# Differs:.*(?:\n\s*#.*)*", text):
            record = re.search(r"ADR (\d{4})", comment)
            assert record, f"{name}: name the decision record: {comment}"
            assert list((PROJECT / "docs" / "adr").glob(f"{record[1]}-*.md")), f"{name}: no {record[0]}"


def test_what_is_written_is_ascii_and_knows_no_machine():
    for path in SOURCE_FILES:
        text = path.read_text(encoding="utf-8")
        assert text.isascii(), path
        assert path == Path(__file__) or not re.findall(NO_PATHS, text), path


def test_the_patterns_find_what_they_forbid():
    assert re.search(NO_WORDS, "x = 1  # TODO: later")
    assert re.search(NO_SYNONYMS, "the Experts vote")
    assert re.search(NO_PATHS, 'open("/home/me/x")') and not re.search(NO_PATHS, "https://a.b/home/x")
    assert calls(ast.parse("torch.save(x, y)")) & NO_CALLS
    assert participles(ast.parse("class A:\n    def _drawn(self): ...\ndef draw(): ...")) == ["_drawn"]
    assert unguarded(ast.parse("torch.load(x)")) and unguarded(ast.parse("np.load(x, allow_pickle=True)"))
    assert not unguarded(ast.parse("torch.load(x, weights_only=True)"))
