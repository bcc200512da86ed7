"""Passwords never reach a line."""

from __future__ import annotations

import re

#: Names of fields whose values are not shown.
SECRET_NAME = re.compile(r"passw(or)?d|secret", re.IGNORECASE)

_SECRETS = (
    # The password of a URL: postgresql://user:secret@host.
    (re.compile(r"(://[^\s:/@\"]*:)(?:[^\s@/\"\\]|\\.)+(?=@)"), r"\1***"),
    # password=secret in a connection string or a query, also quoted.
    (
        re.compile(
            r"(passw(?:or)?d\s*=\s*)(?:'(?:[^'\\]|\\.)*'|(?:[^\s\"'&;,\\]|\\.)+)", re.IGNORECASE
        ),
        r"\1***",
    ),
    # A field of that name in a JSON line.
    (
        re.compile(
            r'("[^"\s]*(?:passw(?:or)?d|secret)[^"\s]*":\s*")(?:[^"\\]|\\.)*', re.IGNORECASE
        ),
        r"\1***",
    ),
)


def mask(text: str) -> str:
    """Text with the passwords of URLs and connection strings replaced by `***`."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def mask_line(line: bytes) -> bytes:
    """The same for a line of JSON; the many lines without a secret cost next to nothing."""
    lowered = line.lower()
    if b"://" in lowered or b"passw" in lowered or b"secret" in lowered:
        return mask(line.decode()).encode()
    return line
