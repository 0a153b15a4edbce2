"""A server for this machine only."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import pytest

from allrounder.errors import InputError
from allrounder.system.local_server import HEADERS, LocalServer, Query


def greet(query: Query) -> tuple[str, bytes]:
    return "text/plain", f"hello {query.get('name', ['you'])[0]}".encode()


def fail(query: Query) -> tuple[str, bytes]:
    raise KeyError("gone")


@pytest.fixture
def server() -> Generator[LocalServer]:
    with LocalServer({"/": greet, "/fail": fail}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(
    server: LocalServer, path: str = "/", method: str = "GET", host: str | None = None
) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, dict(answer.getheaders())


def send(server: LocalServer, request: bytes) -> bytes:
    """The whole answer to raw bytes."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        parts: list[bytes] = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


def test_a_path_of_the_server_is_answered(server: LocalServer):
    status, text, headers = ask(server, "/?name=me&name=other")
    assert (status, text, headers["Content-Type"]) == (200, "hello me", "text/plain")
    assert ask(server, host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("path", ["/other", "/..", "/../../etc/passwd", "/index.html", "/%2e%2e/"])
def test_any_other_path_is_not_found(server: LocalServer, path: str):
    status, text, _ = ask(server, path)
    assert status == 404 and "passwd" not in text and server.url in text


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "127.0.0.1",
        "localhost",
        "127.0.0.1:1",
        "evil.com:{port}",
        "127.0.0.1.evil.com:{port}",
        "",
    ],
)
def test_another_host_is_forbidden(server: LocalServer, host: str):
    assert ask(server, host=host.format(port=server.server_port))[0] == 403


def test_a_request_without_a_host_or_with_two_is_forbidden(server: LocalServer):
    good = f"Host: 127.0.0.1:{server.server_port}\r\n".encode()
    assert b" 200 " in send(server, b"GET / HTTP/1.1\r\n" + good + b"\r\n").splitlines()[0]
    assert b" 403 " in send(server, b"GET / HTTP/1.1\r\n\r\n").splitlines()[0]
    assert b" 403 " in send(server, b"GET / HTTP/1.1\r\n" + good + b"Host: a.b\r\n\r\n").splitlines()[0]


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_only_get_is_allowed(server: LocalServer, method: str):
    status, _, headers = ask(server, method=method)
    assert status == 405 and headers["Allow"] == "GET"


def test_what_is_no_request_is_refused(server: LocalServer):
    assert send(server, b"nonsense\r\n\r\n").startswith(b"400 ") and b" 501 " in send(
        server, b"BREW / HTTP/1.1\r\n\r\n"
    )
    assert ask(server)[0] == 200


def test_an_error_is_answered_and_the_server_continues(server: LocalServer):
    status, text, _ = ask(server, "/fail")
    assert status == 500 and "KeyError" in text and "Traceback" not in text
    assert ask(server)[0] == 200


@pytest.mark.parametrize("path", ["/", "/other", "/fail"])
def test_every_answer_has_the_security_headers(server: LocalServer, path: str):
    headers = ask(server, path)[2]
    assert HEADERS.items() <= headers.items()
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe-eval" not in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store" and "Access-Control-Allow-Origin" not in headers
    assert headers["Server"].strip() == "allrounder"


def test_many_clients_are_answered_at_once(server: LocalServer):
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda n: ask(server, f"/?name={n}")[1], range(64)))
    assert answers == [f"hello {n}" for n in range(64)]


def test_a_client_that_leaves_ends_nothing(server: LocalServer):
    for _ in range(5):
        socket.create_connection(("127.0.0.1", server.server_port)).close()
    assert ask(server)[0] == 200


def test_only_this_machine_is_served(server: LocalServer):
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_an_error(server: LocalServer):
    with pytest.raises(
        InputError, match=rf"port {server.server_port}: cannot be opened .* or 0 for a free one"
    ):
        LocalServer({}, server.server_port)
