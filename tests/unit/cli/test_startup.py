"""Commands that only print text start without torch; the files and tables that this needs are up to date."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import allrounder
from allrounder.cli import index
from allrounder.cli.index import build_index, build_schema, read_index, read_schema
from tests.support.paths import PROJECT
from tests.support.studies import run_here, tiny_study

HEAVY = ("torch", "scipy", "PIL", "matplotlib", "plotly", "jinja2")
"""What takes long to import."""
SCRIPT = """
import contextlib, io, json, os, sys

def check(what):
    heavy = sorted(set({heavy!r}) & set(sys.modules))
    assert not heavy, f"{{what}} imports {{', '.join(heavy)}}"

import allrounder
check("import allrounder")
assert "allrounder.cli" not in sys.modules and "numpy" not in sys.modules
import allrounder.cli
check("import allrounder.cli")
from allrounder.cli import main

def call(words, settings):
    sys.argv = ["allrounder", *words]
    os.environ.update(settings)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
    for name in settings:
        del os.environ[name]
    check(" ".join([*(f"{{key}}={{value}}" for key, value in settings.items()), *sys.argv]))
    return [code, out.getvalue(), err.getvalue()]

print(json.dumps([call(words, settings) for words, settings in json.loads(sys.argv[1])]))
"""
Call = tuple[list[str], dict[str, str]]
VERBS = [
    *(
        "train",
        "new",
        "list",
        "show",
        "plan",
        "schema",
        "demo",
        "eval",
        "doctor",
        "dial",
        "sweep",
        "compare",
        "table",
        "publish",
    ),
    *("ls", "log", "watch", "report", "figure", "theory", "export"),
    *("data", "data get", "data check", "data where", "data make-c", "data make-p"),
]


def call_without_torch(calls: list[Call], folder: Path) -> list[tuple[int, str, str]]:
    """Give commands to a fresh process, which fails if torch is imported; codes, output and errors."""
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(heavy=HEAVY), json.dumps(calls)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), str(PROJECT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return [(code, out, err) for code, out, err in json.loads(process.stdout)]


def completion(*words: str) -> Call:
    """The request of a shell to complete the last word."""
    text = " ".join(["allrounder", *words])
    return [], {"_ALLROUNDER_COMPLETE": "complete_bash", "COMP_WORDS": text, "COMP_CWORD": str(len(words))}


def test_help_version_lists_and_the_schema_need_no_torch(tmp_path: Path):
    calls: list[Call] = [
        (["--help"], {}),
        (["--version"], {}),
        *(([*verb.split(), "--help"], {}) for verb in VERBS),
    ]
    texts = [(["list"], {}), (["list", "recipes"], {}), (["list", "--method", "x"], {}), (["schema"], {})]
    usage = [
        (["eval", "x", "--budget", "nonsense"], {}),
        (["table", "x", "--style", "nonsense"], {}),
        (["table", "nonsense"], {}),
    ]
    answers = call_without_torch([*calls, *texts, *usage], tmp_path)
    assert [code for code, _, _ in answers] == [0] * len(calls) + [0, 0, 2, 0] + [2, 2, 2]
    helps, (overview, recipes, _, schema) = answers[: len(calls)], answers[len(calls) : len(calls) + 4]
    assert "train" in helps[0][1] and helps[1][1].startswith("allrounder ")
    assert all("Usage: allrounder" in out for _, out, _ in (helps[0], *helps[2:]))
    assert "embedded (" in overview[1] and "embedded/generalist-t " in recipes[1]
    assert schema[1] == read_schema()


def test_the_verbs_of_this_test_are_those_of_the_command_line():
    from tests.unit.cli.test_main import commands

    assert sorted(VERBS) == sorted(name for name in commands() if name)


def test_completion_needs_no_torch(tmp_path: Path):
    lists = read_index()["lists"]
    expected = {
        ("train", "embedded/ge"): [name for name in lists["recipes"] if name.startswith("embedded/ge")],
        ("show", "cifar10/a"): [name for name in lists["recipes"] if name.startswith("cifar10/a")],
        ("compare", "embedded/nt", "embedded/at"): ["embedded/at-l2", "embedded/at-linf"],
        ("sweep", "embedded/"): [name for name in lists["studies"] if name.startswith("embedded/")],
        ("table", "embedded/d"): ["embedded/demo"],
        ("list", "re"): ["recipes"],
        ("list", "embed"): ["embedded"],
        ("list", "--method", "tra"): ["trades"],
        ("data", "get", "cifar100"): ["cifar100", "cifar100-c"],
        ("data", "check", "mn"): ["mnist"],
        ("ev",): ["eval"],
    }
    answers = call_without_torch([completion(*words) for words in expected], tmp_path)
    for (words, names), (_, out, err) in zip(expected.items(), answers, strict=True):
        completed = out.split()
        assert set(names) <= set(completed) and names, (words, out, err)
        assert all(name.startswith(words[-1]) for name in completed)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study of two trainings."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        study = replace(tiny_study(Path()), seeds=(0,))
        run_here(study, Path("out"))
    (folder / "mine.toml").write_text(study.dumps(), encoding="utf-8")
    return folder


def test_tables_and_logs_need_no_torch(finished: Path):
    file = str(finished / "mine.toml")
    styles = [(["table", "out", "--style", style], {}) for style in index.STUDY_STYLES]
    answers = call_without_torch(
        [*styles, (["table", file, "--out", "out"], {}), (["table", "."], {})], finished
    )
    runs = call_without_torch([(["ls", "."], {}), (["log", "out/slow/seed-0"], {})], finished)
    assert [code for code, _, _ in runs] == [0, 0] and "2 of 2 finished" in runs[0][1], runs
    assert [code for code, _, _ in answers] == [0] * (len(styles) + 1) + [1], answers
    assert all("slow" in out and "fast" in out for _, out, _ in answers[:-1])
    assert answers[0][1] == answers[-2][1] and answers[0][1].startswith("| row |")


def test_publishing_and_published_tables_need_no_torch(finished: Path):
    calls: list[Call] = [
        (["table", "out"], {}),
        (["publish", "mine.toml", "--out", "out", "--to", "results/tiny"], {}),
        (["table", "results/tiny"], {}),
        (["ls", "results"], {}),
    ]
    answers = call_without_torch(calls, finished)
    assert [code for code, _, _ in answers] == [0] * 4, answers
    (_, table, _), (_, publish, _), (_, again, _), (_, runs, _) = answers
    assert again == table and publish.startswith("results/tiny: 2 trainings, 18 files, ")
    assert "2 of 2 finished" in runs


def test_the_index_is_up_to_date(tmp_path: Path):
    assert build_index() == read_index(), "the tables changed: run `make index`"
    assert build_schema() == read_schema(), "the fields of recipes changed: run `make index`"
    index.write_index(tmp_path)
    for name in (index.INDEX_FILE, index.SCHEMA_FILE):
        stored = Path(index.__file__).with_name(name).read_bytes()
        assert (tmp_path / name).read_bytes() == stored, "run `make index`"


def test_every_name_has_a_line():
    for title, lines in read_index()["lists"].items():
        assert lines, title
        assert [name for name, line in lines.items() if not line.strip()] == [], title


def typed_imports() -> dict[str, str]:
    """The names that a type checker sees, with their modules."""
    tree = ast.parse(Path(allrounder.__file__).read_text(encoding="utf-8"))
    (block,) = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    modules: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names:
            assert alias.asname == alias.name, f"{alias.name}: write `as {alias.name}`, which makes it public"
            assert alias.name not in modules
            modules[alias.name] = node.module
    return modules


def test_lazy_names_are_those_that_a_type_checker_sees():
    assert typed_imports() == allrounder._MODULE_OF
    listed = [name for names in allrounder._MODULES.values() for name in names.split()]
    assert len(listed) == len(set(listed)), "a name is listed twice"
    assert allrounder.__all__ == listed


def test_every_public_name_resolves_to_its_module():
    for name, module in allrounder._MODULE_OF.items():
        assert getattr(allrounder, name) is getattr(import_module(module), name)
    namespace: dict[str, object] = {}
    exec("from allrounder import *", namespace)
    assert set(allrounder.__all__) <= namespace.keys()
    assert set(dir(allrounder)) == {*allrounder.__all__, "__version__"}
    assert allrounder.__version__ == version("allrounder")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'allrounder' has no attribute 'nonsense'"):
        _ = allrounder.nonsense  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
    assert not hasattr(allrounder, "nonsense")


def test_no_public_name_is_hidden_by_a_module():
    """Importing a module sets its name in the package, which would replace a lazy name."""
    folder = Path(allrounder.__file__).parent
    modules = {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert modules.isdisjoint(allrounder.__all__)
