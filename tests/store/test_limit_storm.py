"""Workers, reapers and operators in no order at all, under caps of every kind: never one run too many, and none left behind."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from tests.store.limited import everywhere, held, limit, queued, review, serve, take
from tests.store.support import KEEP_PAYLOAD, STORE, client, complete, engine, fail, one

from jobq.db import Conn
from jobq.model import Claim, Verdict
from jobq.store import BEGINNING, run_sync

JOBS, ACTORS, STEPS = 60, 4, 120
CAPS = {"tenant:a": 5, "queue:q": 6, "kind:k": 4, "key:x": 1, "key:y": 2}
#: Runs by scope, and what holds slots, in one snapshot.
_LOOK = """
SELECT scope, array_agg(id ORDER BY id) AS runs,
       (SELECT array_agg(s.job_id ORDER BY s.job_id) FROM jobq.cap_slot s WHERE s.scope = v.scope AND s.job_id IS NOT NULL) AS holders
FROM jobq.job, LATERAL (VALUES ('tenant:' || tenant), ('queue:' || queue), ('kind:' || kind), ('key:' || concurrency_key)) v(scope)
WHERE status = 'RUNNING' AND scope = ANY (%s) GROUP BY scope
"""


class Actor:
    """A worker and a reaper in one."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        self.claims: list[Claim] = []

    def run(self) -> None:
        """A number of steps, drawn at random."""
        with engine(self.url) as conn:
            steps = [self.claim, self.claim, self.complete, self.fail, self.release, self.reclaim]
            for _ in range(STEPS):
                self.random.choice(steps)(conn)

    def claim(self, conn: Conn) -> None:
        """Some lanes, in any order."""
        lanes = everywhere(conn)
        self.random.shuffle(lanes)
        call = take(*lanes[:3], free=5, lease=self.random.getrandbits(62))
        self.claims += [job.claim for job in run_sync(conn, call).jobs]

    def complete(self, conn: Conn) -> None:
        """Some of the runs it ever had."""
        run_sync(conn, complete(*self._some()))

    def fail(self, conn: Conn) -> None:
        """Some fail, to run again at once."""
        run_sync(conn, fail(*self._some(), verdict=Verdict.RETRY, delay=0.0))
        run_sync(conn, STORE.upkeep.promote(BEGINNING, 100))

    def release(self, conn: Conn) -> None:
        """Some are given back."""
        run_sync(conn, STORE.runs.release(self._some(), KEEP_PAYLOAD))

    def reclaim(self, conn: Conn) -> None:
        """A lease ends, whosoever it is."""
        conn.execute(
            "UPDATE jobq.job SET lease_until = now() - interval '1 second' WHERE id = ("
            "SELECT id FROM jobq.job WHERE status = 'RUNNING' LIMIT 1 FOR UPDATE SKIP LOCKED)"
        )
        run_sync(conn, STORE.upkeep.reclaim(BEGINNING, 5, KEEP_PAYLOAD))

    def _some(self) -> list[Claim]:
        return self.random.sample(self.claims, min(len(self.claims), 3))


def test_a_storm_under_caps_never_runs_one_too_many_and_leaves_none_behind(
    database_url: str,
) -> None:
    draw = random.Random(7)
    with engine(database_url) as conn, client(database_url) as observer:
        serve(conn)
        for scope, cap in CAPS.items():
            limit(conn, *scope.split(":"), max_running=cap)
        for _ in range(JOBS):
            queued(
                conn, tenant=draw.choice("ab"), queue=draw.choice("qr"), kind=draw.choice("kl"), priority=draw.choice([0, 5]),
                concurrency_key=draw.choice(["x", "y", None]), max_attempts=1000,
            )  # fmt: skip
        with ThreadPoolExecutor() as threads:
            actors = [Actor(database_url, seed) for seed in range(ACTORS)]
            futures = [threads.submit(actor.run) for actor in actors]
            while not all(future.done() for future in futures):
                _check(observer)
            for future in futures:
                future.result()
        _check(observer)
        _drain(conn)
        assert one(conn, "SELECT count(*) FROM jobq.job_archive WHERE status = 'DONE'") == (JOBS,)
        assert one(conn, "SELECT count(*) FROM jobq.cap_slot WHERE lease IS NOT NULL") == (0,)


def _check(observer: Conn) -> None:
    for scope, runs, holders in observer.execute(_LOOK, (list(CAPS),)).fetchall():
        assert len(runs) <= CAPS[scope], scope
        assert holders == runs, scope


def _drain(conn: Conn) -> None:
    """Complete what runs and what is waiting; where nothing starts any more, a review must find what is held."""
    rows = conn.execute("SELECT id, lease FROM jobq.job WHERE status = 'RUNNING'").fetchall()
    run_sync(conn, complete(*(Claim(*row) for row in rows)))
    run_sync(conn, STORE.upkeep.promote(BEGINNING, 1000))
    stuck = 0
    while stuck < 2:
        jobs = run_sync(conn, take(*everywhere(conn))).jobs
        stuck = 0 if jobs else stuck + 1
        run_sync(conn, complete(*(job.claim for job in jobs)))
        if not jobs:
            review(conn)
    assert held(conn) == {}
