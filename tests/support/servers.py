"""A server on this machine that hands out files well, or in one of the ways in which servers fail."""

from __future__ import annotations

import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGE = b"<!DOCTYPE html><html><body>Please log in</body></html>"


class Server:
    """What it has, how it behaves, and what it was asked for."""

    def __init__(self, files: dict[str, bytes]):
        self.files = files
        self.ways: dict[str, str] = {}
        """By file: no range, page, missing, short, lying, drop, drop once, other range, packed or moved."""
        self.asked: list[tuple[str, str | None]] = []
        """Every file asked for, with the range."""
        self.url = ""

    def urls(self, name: str) -> tuple[str, ...]:
        return (f"{self.url}/{name}",)


class Handler(BaseHTTPRequestHandler):
    """Answers as the server's way with the file is."""

    protocol_version = "HTTP/1.1"
    shop: Server

    def do_GET(self) -> None:
        name, wanted = self.path.strip("/"), self.headers.get("Range")
        way = self.shop.ways.get(name, "good")
        self.shop.asked.append((name, wanted))
        self.close_connection = True
        if name not in self.shop.files or way == "missing":
            return self.answer(404, b"not here")
        if way == "page":
            return self.answer(200, PAGE)
        if way == "moved":
            self.shop.ways[name] = "good"
            return self.answer(302, b"elsewhere", {"Location": f"{self.shop.url}/{name}"})
        raw = self.shop.files[name]
        start = int(re.findall(r"\d+", wanted)[0]) if wanted and way != "no range" else 0
        if start >= len(raw):
            return self.answer(416, b"", {"Content-Range": f"bytes */{len(raw)}"})
        if way == "other range" and start:
            self.shop.ways[name] = "good"
            return self.answer(206, raw, {"Content-Range": f"bytes 0-{len(raw) - 1}/{len(raw)}"})
        if way == "drop once":
            self.shop.ways[name] = "good"
        headers = {"Content-Range": f"bytes {start}-{len(raw) - 1}/{len(raw)}"} if start else {}
        if way == "packed":
            headers["Content-Encoding"] = "gzip"
        sent = raw[start:]
        if way in ("drop", "drop once"):
            half = sent[: max(len(sent) // 2, 1)]
            return self.answer(206 if start else 200, half, headers, length=len(sent))
        if way in ("short", "lying"):
            sent = sent[: len(sent) // 2]
        return self.answer(206 if start else 200, sent, headers, length=None if way == "short" else len(sent))

    def answer(
        self, code: int, raw: bytes, headers: dict[str, str] | None = None, length: int | None = -1
    ) -> None:
        self.send_response(code)
        for key, text in (headers or {}).items():
            self.send_header(key, text)
        if length is not None:
            self.send_header("Content-Length", str(len(raw) if length < 0 else length))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def serving(files: dict[str, bytes]) -> Generator[Server]:
    """A server in a thread of its own, as long as it is needed."""
    shop = Server(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Mine", (Handler,), {"shop": shop}))
    server.daemon_threads = True
    shop.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield shop
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
