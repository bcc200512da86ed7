"""Logs: one line an event on standard output, JSON for machines or aligned text for people.

Loggers are structlog's, with a configuration of their own: a user's `structlog.configure` does not
change ours, and jobq used as a library configures nobody else's. Until `configure` is called, events
go to the standard library's logger of the same name, as any library's do. After it, records of the
standard library (uvicorn, psycopg, asyncio, handlers) leave by the same road in the same format.
"""

from jobq.logs.fields import bound
from jobq.logs.loggers import Logger, bind_job, get
from jobq.logs.masking import mask
from jobq.logs.repeat import Repeat
from jobq.logs.setup import configure, reset, together

__all__ = ["Logger", "Repeat", "bind_job", "bound", "configure", "get", "mask", "reset", "together"]
