"""POSTs to addresses that strangers name, without letting them reach what only this host can reach.

A job's payload is a stranger's input, and a worker sits inside the firewall: without a guard
`http://169.254.169.254/` is an answer away (OWASP, "Server-Side Request Forgery Prevention"). So a name is
resolved once, every address it has is judged, and the connection goes to a judged address: a second
look-up, which could answer otherwise (DNS rebinding), never happens.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from jobq.errors import ConfigurationError, PermanentError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: Host and port -> addresses.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

#: Seconds for everything: resolution, connection, answer.
TIME_LIMIT = 10.0
#: Bytes of an answer that are read; the rest is of no interest.
ANSWER_LIMIT = 64 * 1024
#: Characters of an answer that are kept as the job's result.
KEPT = 1000

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052
_UNICAST = ipaddress.IPv6Network("2000::/3")
_PROTOCOLS = ipaddress.IPv4Network("192.0.0.0/24")
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(rb"[A-Za-z0-9._:-]+")  # a name, already in its ASCII form, or an address


class WebhookFailed(Exception):
    """The other side could not take it now; a later attempt may succeed."""


@dataclass(frozen=True)
class Allowed:
    """What JOBQ_WEBHOOK_ALLOW names: hosts, or addresses, with a port or for all ports."""

    entries: frozenset[tuple[str, int | None]] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Allowed:
        """Read a list such as `localhost:9000, 10.0.0.7, [::1]:80`.

        Raises:
            ConfigurationError: an entry is neither host nor host:port.
        """
        return cls(frozenset(_entry(word) for word in text.replace(",", " ").split()))

    def has(self, host: str, port: int) -> bool:
        """Whether a host or address is named, for this port or for all."""
        host = _plain(host)
        return (host, port) in self.entries or (host, None) in self.entries


async def resolve(host: str, port: int) -> Sequence[str]:
    """Addresses of a host, in the order in which they are to be tried."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[4][0]) for address in found]


async def post(
    url: str,
    body: Any,
    *,
    allowed: Allowed,
    resolve: Resolve = resolve,
    limit: float = TIME_LIMIT,
) -> dict[str, Any]:
    """POST `body` as JSON; returns the status and the beginning of the answer.

    Args:
        url: http or https, without user and password.
        allowed: what may be reached besides public addresses.
        resolve: how names become addresses.
        limit: seconds for everything.

    Raises:
        PermanentError: the address is refused, or the answer says that another attempt is useless.
        WebhookFailed: network error, timeout, 429 or 5xx.
    """
    target = _parse(url)
    try:
        async with asyncio.timeout(limit):
            addresses = await _judged(target, allowed, resolve)
            status, answer = await _send(target, addresses, body, limit)
    except TimeoutError:
        raise WebhookFailed(f"no answer within {limit:g}s") from None
    if status == 429 or status >= 500:
        raise WebhookFailed(f"answered {status}")
    if status >= 300:
        hint = "; redirects are not followed" if status < 400 else ""
        raise PermanentError(f"answered {status}{hint}")
    return {"status": status, "answer": answer}


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet; one that stands for an IPv4 address is as that is.

    `ipaddress` knows the special ranges as of its Python version; what it calls global besides is
    refused here: IPv6 outside 2000::/3 (RFC 4291, 2.4), and 192.0.0.0/24 (RFC 6890).
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        return address.is_global and address in _UNICAST
    special = address.is_multicast or address.is_reserved or address in _PROTOCOLS
    return address.is_global and not special


def _parse(url: str) -> httpx.URL:
    try:
        target = httpx.URL(url)
        port = target.port
    except (httpx.InvalidURL, ValueError) as error:
        raise PermanentError(f"the url is refused: {error}") from None
    if target.scheme not in _PORTS or not _HOST.fullmatch(target.raw_host):
        raise PermanentError("the url is refused: it must be http://host/... or https://host/...")
    if port is not None and not 0 < port < 65536:
        raise PermanentError(f"the url is refused: there is no port {port}")
    if target.userinfo:
        raise PermanentError("the url is refused: it must not hold a user or password")
    return target.copy_with(port=_PORTS[target.scheme] if port is None else port, fragment=None)


async def _judged(target: httpx.URL, allowed: Allowed, resolve: Resolve) -> list[Address]:
    host, port = target.raw_host.decode(), target.port or _PORTS[target.scheme]
    try:
        found = await resolve(host, port)
    except UnicodeError:
        raise PermanentError(f"the url is refused: {host!r} is no host name") from None
    except OSError as error:
        raise WebhookFailed(f"{host} cannot be resolved: {error}") from error
    addresses = [ipaddress.ip_address(text) for text in dict.fromkeys(found)]
    if not addresses:
        raise WebhookFailed(f"{host} has no address")
    for address in addresses:
        named = allowed.has(host, port) or allowed.has(str(address), port)
        if not named and not is_public(address):
            what = host if host == str(address) else f"{host}, which is {address},"
            raise PermanentError(
                f"the url is refused: {what} is no public address (JOBQ_WEBHOOK_ALLOW may name it)"
            )
    return addresses


async def _send(
    target: httpx.URL, addresses: Sequence[Address], body: Any, limit: float
) -> tuple[int, str]:
    """POST to the first address that takes the connection, under the name that was asked for."""
    # trust_env would send it through a proxy of the environment, which resolves names by itself.
    async with httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=limit) as client:
        problem = ""
        for address in addresses:
            request = client.build_request(
                "POST",
                target.copy_with(host=str(address)),
                json=body,
                headers={"Host": target.netloc.decode(), "Accept-Encoding": "identity"},
                extensions={"sni_hostname": target.raw_host.decode()},
            )
            try:
                return await _answer(client, request)
            except httpx.ConnectError as error:
                problem = str(error)
            except httpx.HTTPError as error:
                raise WebhookFailed(f"{type(error).__name__}: {error}") from error
    raise WebhookFailed(f"cannot connect: {problem}")


async def _answer(client: httpx.AsyncClient, request: httpx.Request) -> tuple[int, str]:
    response = await client.send(request, stream=True)
    try:
        data = b""
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > ANSWER_LIMIT:
                break
        return response.status_code, data.decode("utf-8", "replace")[:KEPT].replace("\0", "")
    finally:
        await response.aclose()


def _entry(word: str) -> tuple[str, int | None]:
    host, colon, port = word.rpartition(":")
    if not colon or _is_address(word.strip("[]")):
        return _plain(word), None
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigurationError(f"JOBQ_WEBHOOK_ALLOW: {word!r} must be host or host:port")
    return _plain(host), int(port)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _plain(host: str) -> str:
    """A host as it is compared: lower case, without brackets and final dot, addresses in one form."""
    host = host.lower().strip("[]").rstrip(".")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host
