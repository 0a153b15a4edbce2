"""A local server that sends files correctly, or fails in one of the ways in which servers fail."""

from __future__ import annotations

import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"


class Server:
    """The files of a server, its behavior for each of them, and the requests that it got."""

    def __init__(self, files: dict[str, bytes]):
        self.files = files
        self.behaviors: dict[str, str] = {}
        """By file: no range, page, missing, short, lying, drop, drop once, other range, packed or moved."""
        self.requests: list[tuple[str, str | None]] = []
        """Every requested file, with the range."""
        self.url = ""

    def urls(self, name: str) -> tuple[str, ...]:
        return (f"{self.url}/{name}",)


class Handler(BaseHTTPRequestHandler):
    """Answers a request with the behavior of its file."""

    protocol_version = "HTTP/1.1"
    files_server: Server

    def do_GET(self) -> None:
        name, requested_range = self.path.strip("/"), self.headers.get("Range")
        server = self.files_server
        behavior = server.behaviors.get(name, "good")
        server.requests.append((name, requested_range))
        self.close_connection = True
        if name not in server.files or behavior == "missing":
            return self.answer(404, b"not here")
        if behavior == "page":
            return self.answer(200, PAGE)
        if behavior == "moved":
            server.behaviors[name] = "good"
            return self.answer(302, b"elsewhere", {"Location": f"{server.url}/{name}"})
        raw = server.files[name]
        start = 0
        if requested_range and behavior != "no range":
            start = int(re.findall(r"\d+", requested_range)[0])
        if start >= len(raw):
            return self.answer(416, b"", {"Content-Range": f"bytes */{len(raw)}"})
        if behavior == "other range" and start:
            server.behaviors[name] = "good"
            return self.answer(206, raw, {"Content-Range": f"bytes 0-{len(raw) - 1}/{len(raw)}"})
        if behavior == "drop once":
            server.behaviors[name] = "good"
        headers = {"Content-Range": f"bytes {start}-{len(raw) - 1}/{len(raw)}"} if start else {}
        if behavior == "packed":
            headers["Content-Encoding"] = "gzip"
        sent = raw[start:]
        code = 206 if start else 200
        if behavior in ("drop", "drop once"):
            half = sent[: max(len(sent) // 2, 1)]
            return self.answer(code, half, headers, length=len(sent))
        if behavior in ("short", "lying"):
            sent = sent[: len(sent) // 2]
        return self.answer(code, sent, headers, length=None if behavior == "short" else len(sent))

    def answer(
        self, code: int, raw: bytes, headers: dict[str, str] | None = None, length: int | None = -1
    ) -> None:
        """Send a response; `length` is the declared length: -1 for the true one, None for none."""
        self.send_response(code)
        for key, text in (headers or {}).items():
            self.send_header(key, text)
        if length is not None:
            self.send_header("Content-Length", str(len(raw) if length < 0 else length))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def serve_files(files: dict[str, bytes]) -> Generator[Server]:
    """Run a server in a thread."""
    state = Server(files)
    handler = type("BoundHandler", (Handler,), {"files_server": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
