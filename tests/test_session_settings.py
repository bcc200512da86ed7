"""Settings that sessions inherit from their database: nothing of jobq reads, writes or waits by them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.api.support import serving
from tests.cli.support import jobq
from tests.engine.support import handlers, until, working
from tests.store.support import client, one

from jobq import JobQ, JobStatus, migrate

INHERITED: list[dict[str, str]] = [
    {"DateStyle": "German"},
    {"DateStyle": "SQL, DMY"},
    {"DateStyle": "Postgres"},
    {"DateStyle": "ISO, DMY"},
    {"TimeZone": "Asia/Kathmandu", "IntervalStyle": "sql_standard"},
    {"bytea_output": "escape", "extra_float_digits": "-15", "array_nulls": "off"},
    {"standard_conforming_strings": "off", "transform_null_equals": "on"},
    {"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on"},
    {"default_transaction_isolation": "repeatable read"},
    {"statement_timeout": "300", "lock_timeout": "300", "idle_session_timeout": "300"},
    {"search_path": "nowhere", "row_security": "off"},
    {"client_encoding": "LATIN1"},
    {"client_encoding": "SQL_ASCII"},
]


def _inherit(url: str, settings: dict[str, str]) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        for name, value in settings.items():
            text = "ALTER DATABASE {} SET {} = {}"
            database = sql.Identifier(conn.info.dbname)
            conn.execute(sql.SQL(text).format(database, sql.Identifier(name.lower()), value))


@pytest.mark.case("N02")
@pytest.mark.case("N06")
@pytest.mark.parametrize("settings", INHERITED, ids=str)
async def test_every_way_to_connect_works_whatever_a_database_makes_sessions_inherit(
    empty_database_url: str, settings: dict[str, str]
) -> None:
    url = empty_database_url
    _inherit(url, settings)
    migrate.migrate(url)
    assert all(each.applied_at for each in migrate.status(url))
    ran: list[str] = []

    async def work(text: str) -> str:
        ran.append(text)
        return text + "!"

    later = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
    async with JobQ(url) as app, working(url, handlers(work=work)):
        job = app.enqueue(
            "work", {"text": "größer €"}, tenant="NULL", unique_key="NULL", tags=["NULL"]
        )
        waiting = await app.aenqueue("work", {"text": "later"}, run_at=later)
        await until(lambda: app.get(job.id).status is JobStatus.DONE)
        found: Any = app.get(job.id)
        assert (found.result, found.tenant, found.tags) == ("größer €!", "NULL", ["NULL"])
        assert app.get(waiting.id).run_at == later
    assert ran == ["größer €"]
    listed = jobq("jobs", "list", "--json", JOBQ_DATABASE_URL=url)
    assert listed.code == 0, listed.err
    async with serving(url) as http:
        assert (await http.get(f"/api/jobs/{job.id}")).status_code == 200
        response = await http.get(f"/api/jobs/{waiting.id}")
        assert response.json()["runAt"].startswith("2031-02-03T04:05:06")
        assert len((await http.get("/api/jobs")).json()["jobs"]) == 2
        assert (
            await http.post("/api/jobs", json={"kind": "work", "uniqueKey": "u"})
        ).status_code == 202


async def test_enqueue_in_a_callers_transaction_does_not_depend_on_its_settings_and_leaves_them(
    database_url: str,
) -> None:
    with psycopg.connect(database_url) as conn, JobQ(database_url) as app:
        conn.execute("SET array_nulls = off")
        conn.execute("SET datestyle = 'German'")
        conn.commit()
        jobs = app.enqueue_many([app.new("k", {}), app.new("k", {}, queue="q")], connection=conn)
        assert one(conn, "SELECT current_setting('array_nulls'), current_setting('datestyle')") == (
            "off",
            "German, DMY",
        )
        conn.commit()
    with client(database_url) as conn:
        queues = conn.execute("SELECT queue FROM jobq.job ORDER BY id").fetchall()
    assert (len(jobs), queues) == (2, [("default",), ("q",)])


def test_a_policy_that_would_hide_rows_is_an_error(database_url: str) -> None:
    with client(database_url) as conn:
        conn.execute("CREATE ROLE hidden LOGIN")
    try:
        migrate.grant(database_url, "hidden")
        with client(database_url) as conn:
            conn.execute("ALTER TABLE jobq.job ENABLE ROW LEVEL SECURITY")
        url = database_url.replace("jobq@", "hidden@")
        said = jobq("jobs", "list", JOBQ_DATABASE_URL=url)
        assert (said.code != 0, "row-level security" in said.err) == (True, True), said
    finally:
        with client(database_url) as conn:
            conn.execute("DROP OWNED BY hidden; DROP ROLE hidden")


@pytest.mark.case("N01")
async def test_a_publication_of_all_tables_hinders_nothing(database_url: str) -> None:
    async def fail() -> None:
        raise ValueError("no")

    with client(database_url) as conn:
        conn.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    async with JobQ(database_url) as app, serving(database_url) as http:
        async with working(database_url, handlers(fail=fail)):
            dead = [(await app.aenqueue("fail", max_attempts=1)).id for _ in range(2)]
            for id_ in dead:
                await until(lambda id_=id_: app.get(id_).status is JobStatus.DEAD)  # type: ignore[misc]
        assert jobq("jobs", "retry", str(dead[0]), JOBQ_DATABASE_URL=database_url).code == 0
        assert (await http.post(f"/api/jobs/{dead[1]}/retry")).status_code == 200
        assert jobq("jobs", "cancel", str(dead[0]), JOBQ_DATABASE_URL=database_url).code == 0
        assert (await http.post(f"/api/jobs/{dead[1]}/cancel")).status_code == 200


async def test_a_list_never_fails_for_one_row(database_url: str) -> None:
    """Rows of the archive and of workers, which plain SQL may fill with anything."""
    with client(database_url) as conn:
        for at, (early, late) in enumerate(
            [("-infinity", "infinity"), ("0044-03-15 BC", "20000-01-01")]
        ):
            conn.execute(
                "INSERT INTO jobq.job_archive (id, class, status, finished_at, kind, queue, tenant, priority, attempts, created_at,"
                " run_at, started_at, ready_at, cancel_requested_at, tags, meta, history, progress, result, last_error)"
                " VALUES (%(id)s, 'done', 'DONE', now(), repeat('k', 5000), E'a\\nb', '', -32768, -1, %(early)s, %(late)s, %(early)s,"
                " %(late)s, %(early)s, '{{a,b},{c,NULL}}', '[1]', '5', '1e400', '1e400', repeat('e', 100000))",
                {"id": at + 1, "early": early, "late": late},
            )
            conn.execute(
                "INSERT INTO jobq.worker (id, host, pid, version, kinds, slots, express, started_at, heartbeat_at, claimed_at, expires_at)"
                " VALUES (%s, '', -1, '', ARRAY[NULL], -1, -1, %s, %s, %s, 'infinity')",
                (f"w{at}", early, late, late),
            )
    async with serving(database_url) as http:
        for path in (
            "/api/jobs",
            "/api/jobs?status=DONE",
            "/api/jobs/1",
            "/api/jobs/2",
            "/api/workers",
            "/metrics",
        ):
            response = await http.get(path)
            assert response.status_code == 200, (path, response.text)
    for arguments in (
        ("jobs", "list"),
        ("jobs", "list", "--json"),
        ("jobs", "show", "1"),
        ("workers",),
    ):
        said = jobq(*arguments, JOBQ_DATABASE_URL=database_url)
        assert said.code == 0, (arguments, said.err)
