"""Passwords never reach a line."""

from __future__ import annotations

import re

#: Names of fields whose values are not shown.
SECRET_NAME = re.compile(r"passw(or)?d|secret", re.IGNORECASE)

_SECRETS = (
    # The password of a URL: postgresql://user:secret@host.
    re.compile(r"(://[^\s:/@\"]*:)(?:[^\s@/\"\\]|\\.)+(?=@)"),
    # password=secret in a connection string or a query, also quoted.
    re.compile(
        r"(passw(?:or)?d\s*=\s*)(?:'(?:[^'\\]|\\.)*'|(?:[^\s\"'&;,\\]|\\.)+)", re.IGNORECASE
    ),
)
#: A member of an object in JSON whose value is text. Names are bounded, so that no text takes long.
_MEMBER = re.compile(r'("([^"\\\s]{1,100})":\s*")(?:[^"\\]|\\.)*')


def mask(text: str) -> str:
    """Text with the passwords of URLs, connection strings and JSON replaced by `***`."""
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return _MEMBER.sub(_mask_member, text)


def mask_lines(lines: bytes) -> bytes:
    """The same for lines of UTF-8; the many without a secret cost next to nothing, together less than one by one."""
    lowered = lines.lower()
    if b"://" in lowered or b"passw" in lowered or b"secret" in lowered:
        return "\n".join(map(mask, lines.decode().split("\n"))).encode()
    return lines


def _mask_member(found: re.Match[str]) -> str:
    return f"{found[1]}***" if SECRET_NAME.search(found[2]) else found[0]
