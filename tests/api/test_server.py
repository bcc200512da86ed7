"""The API as a process: raw bytes on its socket, its address, its shutdown."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from time import monotonic

import pytest
from tests.store.support import client

from jobq import config
from jobq.api.serve import bind
from jobq.config import Settings
from jobq.errors import ConfigurationError

PATIENCE = 20.0

PROGRAM = """
import sys
from jobq import config
from jobq.api import serve
serve(config.load(**{name: value for name, value in (pair.split("=", 1) for pair in sys.argv[1:])}))
"""


class Server:
    """A process that runs the API."""

    def __init__(self, url: str, **settings: str) -> None:
        given = {"database_url": url, "http_addr": "127.0.0.1:0", **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *(f"{name}={value}" for name, value in given.items())],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.lines: list[dict[str, object]] = []
        address = self.line("api listens")["url"]
        self.port = int(str(address).rsplit(":", 1)[1])

    def line(self, event: str) -> dict[str, object]:
        """The next log line about an event."""
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = json.loads(raw)
            self.lines.append(line)
            if line["event"] == event:
                return dict(line)
        raise AssertionError(f"the process ended without {event!r}: {self.lines}")

    def connect(self) -> socket.socket:
        """A connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def send(self, raw: bytes) -> bytes:
        """The answer to raw bytes on a connection of their own; to a request that never ends, what comes at its end."""
        with self.connect() as conn:
            with contextlib.suppress(OSError):  # refused while we were still sending
                conn.sendall(raw)
            return answer_on(conn) or hang_up(conn)

    def stop(self) -> int:
        """End the process as a supervisor does; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end of the process; its exit code."""
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


def answer_on(conn: socket.socket, patience: float = 0.5) -> bytes:
    """One answer: until its length is reached or the other end closes; nothing where it takes too long."""
    conn.settimeout(patience)
    found = b""
    with contextlib.suppress(ConnectionResetError, TimeoutError):
        while not complete(found) and (part := conn.recv(65536)):
            found += part
    return found


def complete(found: bytes) -> bool:
    """Whether an answer is there whole."""
    head, end, body = found.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return bool(end and length and len(body) >= int(length[1]))


def hang_up(conn: socket.socket) -> bytes:
    """Say that nothing follows; what the other end says to that."""
    conn.settimeout(PATIENCE)
    with contextlib.suppress(OSError):
        conn.shutdown(socket.SHUT_WR)
        return conn.recv(65536)
    return b""


@pytest.fixture
def api(database_url: str) -> Iterator[Server]:
    """A running API."""
    running = Server(database_url)
    yield running
    assert running.stop() == 0


def request(
    body: bytes = b"",
    *,
    line: bytes = b"POST /api/jobs HTTP/1.1",
    headers: bytes = b"Host: localhost\r\nContent-Type: application/json\r\n",
    length: int | None = None,
) -> bytes:
    """A request, right in all that is not said otherwise."""
    size = len(body) if length is None else length
    return line + b"\r\n" + headers + b"Content-Length: %d\r\n\r\n" % size + body


GOOD = request(b'{"kind":"good"}')
#: Nothing at all, or an error below 500, is what each of these may get.
RAW = {
    "nothing": b"",
    "blank lines": b"\r\n" * 10,
    "noise": bytes(range(256)) * 4,
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n",
    "HTTP/3.7": request(line=b"GET /healthz HTTP/3.7"),
    "no version": request(line=b"GET /healthz"),
    "no host": request(line=b"GET /healthz HTTP/1.1", headers=b""),
    "two hosts": request(line=b"GET /healthz HTTP/1.1", headers=b"Host: localhost\r\nHost: evil\r\n"),
    "a strange method": request(line=b"FROB /api/jobs HTTP/1.1"),
    "a method of control characters": request(line=b"G\x00T /api/jobs HTTP/1.1"),
    "a path with control characters": request(line=b"GET /api/\x01\x7f HTTP/1.1"),
    "a path beyond ASCII": request(line="GET /api/jobs/é HTTP/1.1".encode()),
    "a path of broken escapes": request(line=b"GET /api/jobs/%FF%zz%0 HTTP/1.1"),
    "a path that climbs": request(line=b"GET /../../etc/passwd HTTP/1.1"),
    "an absolute address": request(line=b"GET http://evil.example/api/jobs HTTP/1.1"),
    "an asterisk": request(line=b"OPTIONS * HTTP/1.1"),
    "CONNECT": request(line=b"CONNECT evil.example:443 HTTP/1.1"),
    "a long path": request(line=b"GET /" + b"x" * 100_000 + b" HTTP/1.1"),
    "a long query": request(line=b"GET /api/jobs?kind=" + b"x" * 50_000 + b" HTTP/1.1"),
    "a huge header": request(headers=b"Host: localhost\r\nX: " + b"x" * 200_000 + b"\r\n"),
    "many headers": request(headers=b"Host: localhost\r\n" + b"X: y\r\n" * 20_000),
    "a header without a colon": request(headers=b"Host: localhost\r\nnonsense\r\n"),
    "a header with a line break": request(headers=b"Host: localhost\r\nX-Request-ID: a\r\n b\r\n"),
    "a header with NUL": request(headers=b"Host: localhost\r\nX: a\x00b\r\n"),
    "a negative length": request(b"{}", length=-1),
    "a length that is no number": request(headers=b"Host: localhost\r\nContent-Length: abc\r\n"),
    "two lengths": request(b"{}", headers=b"Host: localhost\r\nContent-Length: 5\r\n"),
    "a length and chunks": request(b"0\r\n\r\n", headers=b"Host: localhost\r\nTransfer-Encoding: chunked\r\n"),
    "a body that ends early": request(b'{"kind":', length=1000),
    "a body that goes on": request(b'{"kind":"k"}xxxxx', length=12),
    "a huge length": request(b"{", length=10**15),
    "a length of a thousand digits": b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
    + b"9" * 1000 + b"\r\n\r\n",
    "broken chunks": b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "chunks that end early": b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    "gzip": request(b"\x1f\x8b\x08\x00" + b"\x00" * 20),
    "UTF-16": request('{"kind":"k"}'.encode("utf-16")),
    "Latin-1": request('{"kind":"é"}'.encode("latin-1")),
    "a lone surrogate in bytes": request(b'{"kind":"\xed\xa0\x80"}'),
    "an overlong NUL": request(b'{"kind":"\xc0\x80"}'),
    "NUL bytes": request(b"\x00" * 100),
    "a cut literal": request(b'{"kind":tru'),
    "deep nesting": request(b'{"kind":"k","payload":' + b"[" * 200_000),
    "a quote and SQL": request(b'{"kind":"\'; DROP TABLE jobq.job; --"}'),
    "a websocket": request(
        line=b"GET /api/jobs HTTP/1.1",
        headers=b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    ),
    "a promise of a body": request(
        headers=b"Host: localhost\r\nExpect: 100-continue\r\nContent-Type: application/json\r\n", length=10
    ),
}  # fmt: skip


def test_no_bytes_make_it_fail_or_talk(api: Server, database_url: str) -> None:
    """Each in turn: never a 5xx nor SQL text, and the next good request works."""
    for name, raw in RAW.items():
        answer = api.send(raw)
        statuses = re.findall(rb"^HTTP/1\.1 (\d+)", answer, re.MULTILINE)
        assert all(status < b"500" for status in statuses), (name, answer)
        for word in (b"Traceback", b"SELECT", b"psycopg", b"Error:", b"uvicorn"):
            assert word not in answer, (name, answer)
        if statuses and statuses[-1] >= b"400":
            assert b"x-request-id: " in answer, (name, answer)
            assert b'"code":' in answer, (name, answer)
        good = api.send(GOOD)
        assert good.startswith(b"HTTP/1.1 202 "), (name, good)
    with client(database_url) as conn:
        kinds = {row[0] for row in conn.execute("SELECT DISTINCT kind FROM jobq.jobs")}
        assert kinds <= {"good", "k"}


def test_what_is_no_http_is_answered_in_our_shape(api: Server) -> None:
    head, _, body = api.send(b"nonsense\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    answer = json.loads(body)
    assert answer["code"] == "bad_http"
    assert f"x-request-id: {answer['requestId']}".encode() in head


def test_two_requests_on_one_connection_are_two_answers(api: Server) -> None:
    with api.connect() as conn:
        conn.sendall(GOOD + GOOD)
        found = b""
        while found.count(b"HTTP/1.1 202 ") < 2:
            found += answer_on(conn, PATIENCE)


def test_a_body_in_small_pieces_arrives(api: Server) -> None:
    with api.connect() as conn:
        for byte in GOOD:
            conn.sendall(bytes([byte]))
        assert answer_on(conn, PATIENCE).startswith(b"HTTP/1.1 202 ")


def test_a_body_above_the_limit_ends_the_connection(api: Server) -> None:
    """It is refused while it still comes; the rest of it is not waited for."""
    with api.connect() as conn:
        conn.sendall(
            b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            for _ in range(1024):  # 64 MiB, of which 16 are allowed
                conn.sendall(chunk)
            raise AssertionError("all of it was taken")
    assert api.line("request")["status"] == 413


def test_logs_are_one_json_line_an_event(api: Server) -> None:
    api.send(request(b'{"kind":"k"}', headers=b"Host: localhost\r\nX-Request-ID: r-1\r\n"))
    line = api.line("request")
    assert line["request_id"] == "r-1"
    assert line["status"] == 415
    assert line["level"] == "info"
    assert line["logger"] == "jobq.api"


# --- its end --------------------------------------------------------------------------------------


def test_it_says_so_and_serves_on_while_it_drains(database_url: str) -> None:
    server = Server(database_url, drain_delay="3s")
    start = monotonic()
    server.process.send_signal(signal.SIGTERM)
    server.line("api stops")
    ready = server.send(request(line=b"GET /readyz HTTP/1.1"))
    assert ready.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: " in ready
    assert server.send(GOOD).startswith(b"HTTP/1.1 202 ")
    assert server.ended() == 0
    assert monotonic() - start >= 3


def test_what_is_under_way_is_finished_when_nothing_new_is_taken_any_more(
    database_url: str,
) -> None:
    server = Server(database_url)
    with server.connect() as under_way:
        under_way.sendall(GOOD[:-5])
        server.process.send_signal(signal.SIGTERM)
        server.line("api stops")
        until_refused(server)
        under_way.sendall(GOOD[-5:])
        assert answer_on(under_way, PATIENCE).startswith(b"HTTP/1.1 202 ")
    assert server.ended() == 0


def until_refused(server: Server) -> None:
    """Wait until no connection is taken."""
    end = monotonic() + PATIENCE
    with contextlib.suppress(ConnectionError):
        while monotonic() < end:
            server.connect().close()
        raise AssertionError("connections are taken still")


def test_a_second_signal_ends_it_at_once(database_url: str) -> None:
    server = Server(database_url, drain_delay="20s")
    for event in ("api stops", "second signal: leaving at once"):
        server.process.send_signal(signal.SIGINT)
        server.line(event)
    assert server.ended() == 128 + signal.SIGINT


def test_a_request_that_never_ends_does_not_hold_the_process(database_url: str) -> None:
    server = Server(database_url, shutdown_timeout="1s")
    with server.connect() as conn:
        conn.sendall(request(b"{", length=100))
        server.process.send_signal(signal.SIGTERM)
        answer = answer_on(conn, PATIENCE)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"draining"' in answer
    assert b"x-request-id: " in answer
    assert server.ended() == 0


# --- its address ----------------------------------------------------------------------------------


def test_an_address_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"JOBQ_HTTP_ADDR: cannot listen on {address}"):
            bind(address)


def test_an_address_that_is_not_ours_is_told() -> None:
    with pytest.raises(ConfigurationError, match="JOBQ_HTTP_ADDR"):
        bind("203.0.113.7:8080")


def test_a_schema_that_is_missing_is_made_or_asked_for(empty_database_url: str) -> None:
    refused = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"database_url={empty_database_url}", "http_addr=127.0.0.1:0", "auto_migrate=false"],
        capture_output=True, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert refused.returncode == 1
    assert b"run jobq migrate" in refused.stderr
    server = Server(empty_database_url)
    assert server.send(GOOD).startswith(b"HTTP/1.1 202 ")
    assert server.stop() == 0


def test_settings_are_shared_with_the_command_line() -> None:
    assert config.load(http_addr=":0").http_addr == ":0"


@pytest.mark.case("N28")
def test_an_idle_connection_lasts_as_long_as_the_setting_says(database_url: str) -> None:
    """Longer than a load balancer's, unless said otherwise: one that closes first makes sporadic 502s."""
    assert Settings().keep_alive == 75
    running = Server(database_url, keep_alive="1s")
    try:
        with running.connect() as conn:
            conn.sendall(request(line=b"GET /api/jobs HTTP/1.1"))
            assert answer_on(conn, PATIENCE).startswith(b"HTTP/1.1 200")
            conn.settimeout(PATIENCE)
            assert conn.recv(1) == b"", "it was closed after a second, not after 75"
    finally:
        assert running.stop() == 0
