"""Tenants and queues that a limit keeps from starting jobs, until something tells otherwise (pure, no I/O)."""

from __future__ import annotations

from collections.abc import Iterable

from jobq.wakeup import scope_token

#: Until a hint or, should that be lost, the next poll.
AT_POLL = float("inf")


class Blocks:
    """What a claim learned of limits: whose jobs to leave alone, and how long.

    A cap lasts until a slot is freed, which a hint tells; a hint may be lost, so it is asked again at the next poll. A rate
    lasts until its next token; a pause until limits change.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._paused: set[str] = set()
        self._scopes: dict[str, str] = {}
        #: A monotonic time before which nothing is due: what each claim asks, however many are blocked.
        self.next_at = AT_POLL

    def __contains__(self, scope: str) -> bool:
        """Whether a scope such as `tenant:acme` is blocked."""
        return scope in self._until

    def __len__(self) -> int:
        return len(self._until)

    def block(self, scope: str, until: float, *, paused: bool = False) -> None:
        """Leave a scope alone until a monotonic time, or `AT_POLL`; `paused`: until limits change."""
        self._until[scope] = until
        self._scopes[scope_token(scope)] = scope
        self.next_at = min(self.next_at, until)
        if paused:
            self._paused.add(scope)

    def freed(self, tokens: Iterable[str]) -> list[str]:
        """Hints named these scopes, by token: a slot is free; returns those that were blocked."""
        named = [self._scopes[token] for token in tokens if token in self._scopes]
        return self._lift(scope for scope in named if scope not in self._paused)

    def due(self, now: float) -> list[str]:
        """Lift what has its time behind it."""
        if now < self.next_at:
            return []
        lifted = self._lift([scope for scope, until in self._until.items() if until <= now])
        self.next_at = min(self._until.values(), default=AT_POLL)
        return lifted

    def poll(self) -> list[str]:
        """Lift all but pauses: hints may have been lost."""
        return self._lift([scope for scope in self._until if scope not in self._paused])

    def changed(self) -> list[str]:
        """Limits were changed: lift everything."""
        return self._lift(list(self._until))

    def _lift(self, scopes: Iterable[str]) -> list[str]:
        lifted = [scope for scope in scopes if self._until.pop(scope, None) is not None]
        for scope in lifted:
            del self._scopes[scope_token(scope)]
            self._paused.discard(scope)
        return lifted
