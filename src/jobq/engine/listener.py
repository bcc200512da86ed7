"""LISTENs for wake-up hints, and says when it cannot, so that the worker goes without floors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

from jobq.engine.session import Retry, Session
from jobq.engine.trouble import Trouble
from jobq.wakeup import Message, parse

#: Seconds without a hint after which the connection is tried.
QUIET = 5.0


@dataclass
class Listener:
    """Hears wake-ups on a session of its own.

    Args:
        channel: what to LISTEN on.
        hear: called with each message.
        listening: called with True once LISTEN is in force (look then: whatever came before was not
            heard), and with False when the connection is lost.
    """

    session: Session
    channel: str
    hear: Callable[[Message], None]
    listening: Callable[[bool], None]
    _retry: Retry = field(default_factory=Retry)
    _trouble: Trouble = field(default_factory=lambda: Trouble("listening"))

    async def run(self) -> None:
        """Listen until cancelled, through outages."""
        while True:
            try:
                await self._listen()
            except (psycopg.Error, OSError) as error:
                self.listening(False)
                self._trouble.met(error)
                await self.session.reset(error)
                await asyncio.sleep(self._retry.next())

    async def _listen(self) -> None:
        conn = await self.session.connection()
        await conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))
        self.listening(True)
        self._retry.reset()
        self._trouble.over()
        while True:
            async for notify in conn.notifies(timeout=QUIET):
                message = parse(notify.payload)
                if message is not None:
                    self.hear(message)
            await conn.execute("SELECT 1")
