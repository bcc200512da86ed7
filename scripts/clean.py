"""Removes the data of `make dev`, with a server that was left running and what lies elsewhere."""

from __future__ import annotations

import sys

from jobq.embedded import DEFAULT_DATA_DIR, EmbeddedError, EmbeddedServer

try:
    EmbeddedServer(DEFAULT_DATA_DIR).remove()
except EmbeddedError as error:
    sys.exit(f"jobq: {error}")
