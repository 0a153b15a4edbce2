"""`allrounder watch`: a page on this machine, until Ctrl-C."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from allrounder.cli import run_watch
from allrounder.cli.run_watch import PAGE_FILES, make_routes
from tests.support.paths import PROJECT
from tests.support.trainings import PAIR, contents, go, recipe
from tests.unit.cli.test_main import Command, allrounder

__all__ = ["allrounder"]  # a fixture
CHECK = (
    "import sys; from allrounder.cli.main import main\n"
    "try: main()\n"
    "finally: assert not {'torch', 'scipy', 'PIL'} & set(sys.modules), 'heavy imports'"
)


@contextmanager
def serve(*words: str) -> Generator[tuple[str, subprocess.Popen[str]]]:
    """Run the command in another process; its address, and the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHECK, "watch", *words],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        match = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert match, process.stderr.read()
        yield match[0], process
    finally:
        process.kill()
        process.communicate()


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read()


def state_of(url: str) -> dict[str, Any]:
    return json.loads(fetch(f"{url}state.json"))


def test_the_page_follows_a_folder_until_ctrl_c(tmp_path: Path):
    folder = tmp_path / "run"
    with serve(str(folder)) as (url, process):
        assert b"<!DOCTYPE html>" in fetch(url) and b"setTimeout" in fetch(f"{url}watch.js")
        assert state_of(url)["phase"] == "waiting" and not folder.exists()
        go(recipe(PAIR), folder)
        before = contents(folder)
        state = state_of(url)
        assert state["phase"] == "finished" and state["folder"] == str(folder)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(f"{url}recipe.toml")
        assert contents(folder) == before
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0 and errors == ""


def test_ctrl_c_during_requests_ends_cleanly(tmp_path: Path):
    def keep_asking(url: str) -> None:
        with suppress(OSError, http.client.HTTPException):  # until the server ends
            while True:
                fetch(f"{url}plotly.js")

    with serve(str(tmp_path)) as (url, process):
        clients = [threading.Thread(target=keep_asking, args=[url]) for _ in range(3)]
        for client in clients:
            client.start()
        fetch(url)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        for client in clients:
            client.join()
    assert process.returncode == 0 and errors == ""


@pytest.mark.parametrize("words", [["--port", "70000"], ["--port", "-1"], ["--port", "x"]])
def test_a_wrong_port_is_a_mistake_of_usage(allrounder: Command, tmp_path: Path, words: list[str]):
    assert allrounder("watch", str(tmp_path), *words).code == 2


def test_a_taken_port_and_a_file_are_errors(allrounder: Command, tmp_path: Path):
    with serve(str(tmp_path)) as (url, _):
        answer = allrounder("watch", str(tmp_path), "--port", url.strip("/").rpartition(":")[2])
        assert answer.code == 1 and "cannot be opened" in answer.err and "Traceback" not in answer.err
    (tmp_path / "file").write_text("x")
    answer = allrounder("watch", str(tmp_path / "file"))
    assert answer.code == 1 and "is a file; name the folder of a run or a study" in answer.err


def test_open_opens_the_page(allrounder: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []

    def stop(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", lambda url: bool(opened.append(url)))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    monkeypatch.setattr(run_watch.LocalServer, "serve_forever", stop)
    answer = allrounder("watch", str(tmp_path), "--open")
    assert answer.code == 0 and opened and opened[0] in answer.out
    assert "no browser was found" in answer.out


def test_without_plotly_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "/plotly.js" in make_routes(tmp_path)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    routes = make_routes(tmp_path)
    assert sorted(routes) == sorted([*PAGE_FILES, "/state.json"])
    assert json.loads(routes["/state.json"]({})[1])["has_plotly"] is False
    assert b'pip install "allrounder[report]"' in routes["/"]({})[1]


def test_any_number_of_a_training_is_answered(tmp_path: Path):
    go(recipe(PAIR), tmp_path / "run")
    send_state = make_routes(tmp_path / "run")["/state.json"]
    for part in ("1", "0", "-1", "x", "", "9" * 5000, "\u0661"):
        assert json.loads(send_state({"part": [part]})[1])["phase"] == "finished", part


def test_the_page_inserts_no_html_and_loads_nothing_from_elsewhere():
    folder = Path(run_watch.__file__).with_name(run_watch.PAGE_FOLDER)
    texts = {name: (folder / name).read_text(encoding="ascii") for name, _ in PAGE_FILES.values()}
    for text in texts.values():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?://", text)
    assert not re.search(r"<script>|\son\w+=|style=", texts["index.html"])
