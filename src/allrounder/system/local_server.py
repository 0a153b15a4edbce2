"""A web server for this machine only: fixed paths, GET only, no files, no cache.

A page of another site can let a browser send requests to this machine. It cannot read the answers, because
no header allows it. It could if its name were made to point to this machine (DNS rebinding), so requests for
any other host than this server are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, TypeAlias, final
from urllib.parse import parse_qs, urlsplit

from typing_extensions import override

from allrounder.errors import InputError

ADDRESS = "127.0.0.1"
Query: TypeAlias = Mapping[str, list[str]]
Route: TypeAlias = Callable[[Query], tuple[str, bytes]]
"""Returns the type and the content of an answer."""
HTTP_PORT = 80
"""The port that browsers leave out."""
HEADERS = {
    "Cache-Control": "no-store",
    # Plotly sets styles of its elements; no script but those of this server can run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@final
class LocalServer(ThreadingHTTPServer):
    """Answers requests of this machine, each in its own thread."""

    daemon_threads = True

    def __init__(self, routes: Mapping[str, Route], port: int = 0):
        """`routes` are the answers by path; port 0 takes a free one."""
        self.routes = routes
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(
                f"port {port}: cannot be opened ({reason}); choose another one, or 0 for a free one"
            ) from error
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}
        if self.server_port == HTTP_PORT:
            self.hosts |= {ADDRESS, "localhost"}

    @property
    def url(self) -> str:
        """The address of the path /."""
        return f"http://{ADDRESS}:{self.server_port}/"

    @override
    def server_bind(self) -> None:
        """Open the port without looking up the name of this machine, which can take seconds."""
        TCPServer.server_bind(self)
        self.server_name = ADDRESS
        self.server_port = self.socket.getsockname()[1]

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: errors of an answer are answered, so the connection is lost, or the program ends."""


@final
class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server_version = "allrounder"
    sys_version = ""
    timeout = 30
    """Seconds that a client may take to send its request."""

    def do_GET(self) -> None:
        assert isinstance(self.server, LocalServer)
        if self.headers.get_all("Host") not in [[host] for host in self.server.hosts]:
            return self._refuse(HTTPStatus.FORBIDDEN, f"open {self.server.url}")
        url = urlsplit(self.path)
        route = self.server.routes.get(url.path)
        if route is None:
            return self._refuse(HTTPStatus.NOT_FOUND, f"open {self.server.url}")
        try:
            kind, content = route(parse_qs(url.query))
        except Exception as error:
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        return self._answer(HTTPStatus.OK, kind, content)

    def refuse_method(self) -> None:
        """Answer any other method than GET."""
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "send GET", {"Allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = refuse_method

    @override
    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that cannot be parsed."""
        self._refuse(HTTPStatus(code), message or "")

    def _refuse(self, status: HTTPStatus, advice: str, headers: Mapping[str, str] | None = None) -> None:
        self.close_connection = True
        text = f"{status.value} {status.phrase}: {advice}\n"
        self._answer(status, "text/plain; charset=utf-8", text.encode(errors="replace"), headers)

    def _answer(
        self, status: HTTPStatus, kind: str, content: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        with suppress(ConnectionError, TimeoutError):  # the browser left
            self.send_response(status)
            for name, text in {**HEADERS, **(headers or {})}.items():
                self.send_header(name, text)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: a page asks every two seconds."""
