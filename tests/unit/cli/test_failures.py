"""Every error ends in one sentence and an exit code, and --debug prints its traceback."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from allrounder import cli
from allrounder.cli.failures import explain
from allrounder.errors import Interrupted, RecipeError, RunError
from tests.unit.cli.test_main import Command, allrounder, flat

__all__ = ["allrounder"]  # a fixture


def call(*words: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "allrounder", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def os_error(code: int, file: str | None = "runs/x") -> OSError:
    return OSError(code, os.strerror(code), file)


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (Interrupted("SIGTERM after step 3; continue with --resume"), "SIGTERM after step 3", 75),
        (RecipeError("mine.toml cannot be run"), "mine.toml cannot be run", 2),
        (RunError("folder: is taken"), "error: folder: is taken", 1),
        (os_error(errno.ENOSPC), "error: runs/x: No space left on device; free some space", 1),
        (os_error(errno.ENOSPC, None), "error: No space left on device; free some space", 1),
        (os_error(errno.EROFS), "error: runs/x: Read-only file system; choose a folder", 1),
        (os_error(errno.EACCES), "error: runs/x: Permission denied; choose another folder", 1),
        (os_error(errno.ENAMETOOLONG), "error: runs/x: File name too long; choose a shorter name", 1),
        (os_error(errno.EIO), "error: runs/x: Input/output error; check that its drive", 1),
        (os_error(errno.EMFILE), "error: runs/x: Too many open files", 1),
        (OSError("only a text"), "error: only a text", 1),
        (MemoryError(), "error: not enough memory", 1),
        (ModuleNotFoundError("No module", name="torch"), "error: the module torch is not installed; in", 1),
        (PackageNotFoundError("torch"), "error: the module torch is not installed; install", 1),
        (ModuleNotFoundError("No module", name="allrounder.x"), "error: unexpected ModuleNotFoundError", 1),
        (KeyError("[bold]"), "error: unexpected KeyError: '[bold]'; this is a bug", 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_an_error_is_one_sentence_and_a_code(error: Exception, message: str, code: int):
    text, exit_code = explain(error)
    assert exit_code == code
    assert text.startswith(message) and "\n" not in text


def test_a_bug_names_its_place_and_keeps_to_one_line():
    with pytest.raises(ValueError) as caught:
        int("several\nlines")
    text, _ = explain(caught.value)
    assert text.startswith("error: unexpected ValueError in test_failures.py, line ")
    assert "\n" not in text and "--debug" in text


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let `allrounder show` fail."""

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("allrounder.recipe.recipe.Recipe.load", fail)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("ours"), RunError("[bold] :x:"), PermissionError(13, "no")]
)
def test_only_debug_prints_a_traceback(
    allrounder: Command, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    fail_with(monkeypatch, error)
    answer = allrounder("show", "embedded/nt")
    assert answer.code == 1 and answer.out == ""
    assert "Traceback" not in answer.err and len(answer.err.splitlines()) == 1
    debug = allrounder("show", "embedded/nt", "--debug")
    assert debug.code == 1 and debug.err.endswith(answer.err)
    assert debug.err.startswith("Traceback") and f"{type(error).__name__}: {error}" in debug.err
    assert "Traceback" not in allrounder("show", "embedded/nt").err, "the option holds for one call"


def test_an_interrupt_ends_without_a_traceback(allrounder: Command, monkeypatch: pytest.MonkeyPatch):
    fail_with(monkeypatch, KeyboardInterrupt())
    answer = allrounder("show", "embedded/nt")
    assert (answer.code, answer.out, answer.err) == (130, "", "")


def test_an_interrupt_before_the_verb_runs_ends_without_a_traceback(
    allrounder: Command, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupt)
    answer = allrounder("show", "embedded/nt")
    assert (answer.code, answer.out, answer.err) == (130, "", "")


def test_an_interrupt_while_torch_is_imported_is_not_lost(tmp_path: Path):
    """torch and numpy would lose it, or fail to be imported, and the training would run to its end."""
    script = f"""
import signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name in ("numpy", "torch._C"):
            signal.raise_signal(signal.SIGINT)
            print(name)

sys.meta_path.insert(0, Interrupter())
sys.argv = ["allrounder", "train", "embedded/nt", "--set", "epochs=1", "--out", {str(tmp_path / "run")!r}]
from allrounder.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert sorted(done.stdout.split()) == ["numpy", "torch._C"]
    assert (done.returncode, done.stderr) == (130, "")
    assert not (tmp_path / "run").exists()


WITHOUT_TORCH = ("index.py", "listing.py")
"""Commands that import no torch."""


def test_no_command_is_interrupted_while_it_imports_its_work():
    found = 0
    for file in sorted(Path(cli.__file__).parent.glob("*.py")):
        if file.name.startswith("run_") or file.name in WITHOUT_TORCH:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        blocks = [node for node in ast.walk(tree) if isinstance(node, ast.With)]
        delays = [block for block in blocks if "delay_interrupts" in ast.dump(block.items[0])]
        allowed = {id(node) for block in (*delays, tree) for node in block.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("allrounder."):
                place = f"{file.name}, line {node.lineno}"
                assert id(node) in allowed, f"{place}: import it in a block of delay_interrupts"
        found += len(delays)
    assert found > 20


def test_a_reader_that_closes_the_output_gets_one_sentence():
    reader, writer = os.pipe()
    os.close(reader)
    process = call("list", stdout=writer)
    os.close(writer)
    assert process.returncode == 1
    assert process.stderr == "error: standard output was closed before everything was printed\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [("list",), ("train", "--help"), ("data", "where")])
def test_output_that_cannot_be_written_is_one_sentence(words: tuple[str, ...]):
    with Path("/dev/full").open("w") as full:
        process = call(*words, stdout=full.fileno())
    assert process.returncode == 1
    assert "No space left on device" in process.stderr and len(process.stderr.splitlines()) == 1


def test_an_output_that_is_closed_from_the_start_is_one_sentence():
    code = (
        "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'allrounder', 'list'])"
    )
    process = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr.startswith("error: standard output is closed") and process.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_one_sentence(allrounder: Command, tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    for out in (tmp_path / "file" / "run", tmp_path / ("long" * 100)):
        answer = allrounder("train", "embedded/nt", "--out", str(out))
        assert answer.code == 1 and "Traceback" not in answer.err
        assert str(out) in flat(answer.err)
