"""Fields of the current context: added to every line that is written in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Fields = MutableMapping[str, Any]

#: Fields of this task, or of this thread. Never changed in place.
CURRENT: ContextVar[Mapping[str, Any]] = ContextVar("jobq_log_fields", default={})  # noqa: B039 - see above


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Add fields to every line written in this context: this task, or this thread, and what it calls."""
    token = CURRENT.set({**CURRENT.get(), **fields})
    try:
        yield
    finally:
        CURRENT.reset(token)
