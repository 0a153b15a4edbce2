"""The work of `allrounder watch`, without torch."""

from __future__ import annotations

import json
import time
from functools import partial
from importlib import resources
from pathlib import Path

from allrounder.cli.echo import echo
from allrounder.errors import RunError
from allrounder.experiments.watcher import Watcher
from allrounder.system.local_server import LocalServer, Query, Route

PAGE_FOLDER = "watch_page"
PAGE_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/watch.css": ("watch.css", "text/css; charset=utf-8"),
    "/watch.js": ("watch.js", "text/javascript; charset=utf-8"),
}
PLOTLY_PATH = "/plotly.js"


def run_watch(folder: Path, port: int, open_page: bool) -> None:
    """Serve the page of a folder until an interrupt."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: is a file; name the folder of a run or a study")
    with LocalServer(make_routes(folder), port) as server:
        try:
            echo(f"watching {folder} at {server.url} (Ctrl-C ends)")
            if open_page:
                _open_browser(server.url)
            server.serve_forever()
        except KeyboardInterrupt:
            return


def make_routes(folder: Path) -> dict[str, Route]:
    """Return the answers of the server by path; all but the state are read once."""
    watcher = Watcher(folder)
    plotly = load_plotly()
    package = resources.files("allrounder.cli") / PAGE_FOLDER
    routes: dict[str, Route] = {
        path: partial(_send, kind, (package / name).read_bytes()) for path, (name, kind) in PAGE_FILES.items()
    }
    if plotly is not None:
        routes[PLOTLY_PATH] = partial(_send, "text/javascript; charset=utf-8", plotly)

    def send_state(query: Query) -> tuple[str, bytes]:
        text = query.get("part", [""])[-1]
        selected = int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else None
        state = watcher.read_state(time.time(), selected)
        state |= {"folder": str(folder), "has_plotly": plotly is not None}
        return "application/json", json.dumps(state, allow_nan=False).encode()

    return routes | {"/state.json": send_state}


def load_plotly() -> bytes | None:
    """Return the script that draws charts; None if it is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return get_plotlyjs().encode()


def _send(kind: str, content: bytes, query: Query) -> tuple[str, bytes]:
    return kind, content


def _open_browser(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        echo("no browser was found on this machine; open the address yourself")
