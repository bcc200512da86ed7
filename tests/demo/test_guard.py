"""The webhook handler reaches public addresses and those that are named, and nothing else."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import pytest

from jobq.demo import guard
from jobq.demo.guard import Allowed, WebhookFailed, is_public, post
from jobq.errors import ConfigurationError, PermanentError

NOBODY = Allowed()


@dataclass
class Receiver:
    """A server on the loopback address that answers as it is told, and keeps what it was sent."""

    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    port: int = 0
    requests: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one request."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")),
            0,
        )  # fmt: skip
        self.requests.append(head + await reader.readexactly(length))
        writer.write(self.answer)
        try:
            await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def receiving(answer: bytes | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver() if answer is None else Receiver(answer)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


def resolving(*addresses: str) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """A resolver that knows one answer; a second question gets another one, as a rebinding name gives."""
    answers = iter([addresses])

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return next(answers, ["203.0.113.99"])

    return resolve


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.64.0.1", "192.0.0.8", "192.0.0.170", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
        "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1",
        "2002:7f00:1::", "2002:a9fe:a9fe::1", "fc00::1", "fd12:3456::1", "fe80::1", "fe80::1%1", "fec0::1",
        "ff02::1", "ff0e::1", "4000::1",
    ],
)  # fmt: skip
async def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_public(ip_address(address))
    with pytest.raises(PermanentError, match="is no public address"):
        await post("http://example.com/", {}, allowed=NOBODY, resolve=resolving(address))
    with pytest.raises(PermanentError, match="is no public address"):  # one bad one is enough
        await post("http://example.com/", {}, allowed=NOBODY, resolve=resolving("8.8.8.8", address))


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "1.1.1.1",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
    ],
)
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://localhost/", "http://localhost./", "http://127.1/", "http://2130706433/",
        "http://0x7f000001/", "http://0177.0.0.1/", "http://0/", "http://[::1]/", "http://[::ffff:127.0.0.1]/",
        "http://[::]:1/",
    ],
)  # fmt: skip
async def test_a_host_that_means_this_machine_is_refused_however_it_is_written(url: str) -> None:
    with pytest.raises((PermanentError, WebhookFailed)) as caught:
        await post(url, {}, allowed=NOBODY)
    # Where the parser or this system's resolver does not take such a number, nothing is reached either.
    assert re.search(
        "is no public address|cannot be resolved|the url is refused", str(caught.value)
    )


@pytest.mark.parametrize(
    "url",
    [
        "", "nothing", "//example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/",
        "http://", "http:///path", "http://user:hunter2@example.com/", "http://user@example.com/",
        "http://example.com:99999/", "http://example.com:x/", "http://exa mple.com/", "http://example.com/\n",
        "http://\udcff/", f"http://{'a' * 64}.com/",
    ],
)  # fmt: skip
async def test_a_url_that_is_none_or_holds_credentials_is_refused(url: str) -> None:
    with pytest.raises(PermanentError, match="the url is refused") as caught:
        await post(url, {}, allowed=NOBODY, resolve=guard.resolve)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "named", ["127.0.0.1", "127.0.0.1:{port}", "shop.example", "SHOP.example.:{port}, other:1"]
)
async def test_what_is_named_is_reached_under_the_name_that_was_asked_for(named: str) -> None:
    async with receiving() as receiver:
        allowed = Allowed.parse(named.format(port=receiver.port))
        url = f"http://shop.example:{receiver.port}/hook?a=1#part"
        answer = await post(url, {"n": [1]}, allowed=allowed, resolve=resolving("127.0.0.1"))
    assert answer == {"status": 200, "answer": "ok"}
    [request] = receiver.requests
    assert request.startswith(b"POST /hook?a=1 HTTP/1.1\r\n")
    assert f"Host: shop.example:{receiver.port}\r\n".encode() in request
    assert request.endswith(b'\r\n\r\n{"n":[1]}')


@pytest.mark.parametrize("named", ["127.0.0.1:1", "127.0.0.2", "shop.example:1", "example"])
async def test_what_is_named_otherwise_is_not_reached(named: str) -> None:
    async with receiving() as receiver:
        with pytest.raises(PermanentError, match="is no public address"):
            await post(
                f"http://shop.example:{receiver.port}/", {}, allowed=Allowed.parse(named),
                resolve=resolving("127.0.0.1"),
            )  # fmt: skip
    assert receiver.requests == []


async def test_a_name_is_resolved_once_and_the_judged_address_is_used() -> None:
    async with receiving() as receiver:
        asked: list[str] = []

        async def rebinding(host: str, _port: int) -> Sequence[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

        url = f"http://shop.example:{receiver.port}/"
        allowed = Allowed.parse(f"127.0.0.1:{receiver.port}")
        assert (await post(url, {}, allowed=allowed, resolve=rebinding))["status"] == 200
    assert asked == ["shop.example"]


async def test_an_address_that_does_not_answer_is_followed_by_the_next() -> None:
    async with receiving() as receiver:
        answer = await post(
            f"http://shop.example:{receiver.port}/", {}, allowed=Allowed.parse("shop.example"),
            resolve=resolving("127.0.0.9", "127.0.0.1"),
        )  # fmt: skip
    assert answer["status"] == 200


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_answer_that_may_change_is_tried_again(status: int) -> None:
    with pytest.raises(WebhookFailed, match=f"answered {status}"):
        await _answered(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
async def test_an_answer_that_will_not_change_is_final(status: int) -> None:
    with pytest.raises(PermanentError, match=f"answered {status}"):
        await _answered(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n")


async def test_a_redirect_is_not_followed() -> None:
    with pytest.raises(PermanentError, match="redirects are not followed"):
        await _answered(
            "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
        )


async def test_an_answer_without_end_is_cut() -> None:
    body = "x" * (4 * guard.ANSWER_LIMIT)
    answer = await _answered(f"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n{body}")
    assert answer == {"status": 200, "answer": "x" * guard.KEPT}


async def test_what_the_database_cannot_hold_is_not_in_the_result() -> None:
    answer = await _answered(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\x00\xff\xedx")
    assert "\0" not in answer["answer"]
    answer["answer"].encode()


async def test_no_answer_in_time_is_tried_again() -> None:
    with pytest.raises(WebhookFailed, match=r"no answer within|Timeout"):
        await _answered(b"", limit=0.2)


@pytest.mark.parametrize(
    "answer", ["nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nx"]
)
async def test_an_answer_that_is_broken_is_tried_again(answer: str) -> None:
    with pytest.raises(WebhookFailed):
        await _answered(answer)


async def test_a_port_where_nobody_listens_is_tried_again() -> None:
    async with receiving() as receiver:
        port = receiver.port
    with pytest.raises(WebhookFailed, match="cannot connect"):
        await post(
            f"http://h:{port}/", {}, allowed=Allowed.parse("h"), resolve=resolving("127.0.0.1")
        )


async def test_a_certificate_is_checked_for_the_name_that_was_asked_for() -> None:
    """TLS speaks the name, although the connection goes to an address."""
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(WebhookFailed):  # it has no certificate at all
            await post(
                f"https://shop.example:{port}/", {}, allowed=Allowed.parse("127.0.0.1"),
                resolve=resolving("127.0.0.1"),
            )  # fmt: skip
    assert names == ["shop.example"]


@pytest.mark.parametrize("text", ["host:", ":80", "host:0", "host:99999", "host:x"])
def test_a_list_of_allowed_hosts_is_checked(text: str) -> None:
    with pytest.raises(ConfigurationError, match="JOBQ_WEBHOOK_ALLOW"):
        Allowed.parse(text)


def test_addresses_are_allowed_in_any_form() -> None:
    allowed = Allowed.parse("::1 [fe80::1]:80,Host:8080 0:0:0:0:0:0:0:2")
    assert allowed.has("::1", 1)
    assert allowed.has("[fe80:0::1]", 80)
    assert not allowed.has("fe80::1", 81)
    assert allowed.has("HOST.", 8080)
    assert allowed.has("::2", 5)


async def _answered(answer: str | bytes, limit: float = 10.0) -> dict[str, Any]:
    """POST to a server that gives this answer."""
    data = answer.encode() if isinstance(answer, str) else answer
    async with receiving(data) if data else _silent() as receiver:
        return await post(
            f"http://shop.example:{receiver.port}/", {}, allowed=Allowed.parse("127.0.0.1"),
            resolve=resolving("127.0.0.1"), limit=limit,
        )  # fmt: skip


@asynccontextmanager
async def _silent() -> AsyncIterator[Receiver]:
    """A server that takes requests and says nothing."""
    done = asyncio.Event()

    async def wait(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    try:
        yield Receiver(port=server.sockets[0].getsockname()[1])
    finally:
        done.set()
        server.close()
