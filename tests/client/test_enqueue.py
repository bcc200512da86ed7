"""Enqueuing one job: typed and by name, its options, and where its defaults come from."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest
from tests.client.support import Colour, Database

from jobq import (
    ConfigurationError,
    Context,
    DatabaseUnavailable,
    InvalidJob,
    InvalidPayload,
    Job,
    JobNotFound,
    JobQ,
    JobStatus,
    SchemaError,
)
from jobq.store import UpkeepStore, run_sync

ABOVE_31, ABOVE_53 = 3_000_000_000, 9_007_199_254_740_993


@pytest.mark.parametrize("url", [None, "postgresql://nobody@nowhere.invalid/none"])
def test_an_app_needs_no_database_to_define_handlers_and_make_jobs(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOBQ_DATABASE_URL", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    app = JobQ(url)

    @app.job("email.welcome")
    def welcome(to: str) -> str:
        return f"hello {to}"

    assert welcome("a@b.com") == "hello a@b.com"
    assert welcome.new(to="a@b.com").payload == '{"to":"a@b.com"}'
    if url is None:
        with pytest.raises(ConfigurationError, match="JOBQ_DATABASE_URL"):
            welcome.enqueue(to="a@b.com")


async def test_a_direct_call_of_a_coroutine_function_runs_it(app: JobQ) -> None:
    @app.job("double")
    async def double(ctx: Context, number: int) -> int:
        """Twice."""
        return 2 * number

    assert await double(cast("Context", None), 21) == 42
    assert double.__doc__ == "Twice."
    assert double.kind == "double"


async def test_a_typed_enqueue_stores_the_arguments(colour: Colour, app: JobQ) -> None:
    @app.job("report.build")
    def build(ctx: Context, month: str, day: datetime, *, draft: bool = False) -> None: ...

    job = await colour.call(build, "2030-01", datetime(2030, 1, 1, tzinfo=UTC))

    assert job == Job(job.id, JobStatus.QUEUED, created=True)
    stored = await colour.get(job.id)
    assert stored.payload == {"month": "2030-01", "day": "2030-01-01T00:00:00Z"}
    assert (stored.kind, stored.status, stored.attempts) == ("report.build", "QUEUED", 0)


async def test_arguments_that_do_not_fit_reach_no_database(app: JobQ, database: Database) -> None:
    @app.job("send")
    def send(to: str) -> None: ...

    with pytest.raises(InvalidPayload):
        send.enqueue(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload):
        await send.aenqueue()  # type: ignore[call-arg]
    assert database.jobs() == 0


async def test_every_option_is_stored(colour: Colour, app: JobQ, database: Database) -> None:
    @app.job("send")
    def send(to: str) -> None: ...

    options: dict[str, Any] = {
        "queue": "mail", "tenant": "acme", "priority": -7, "max_attempts": 9, "timeout": timedelta(minutes=2),
        "concurrency_key": "account-1", "tags": ["a", 'b"\\,{}', "NULL", "ä😀"], "meta": {"request": 'r"1'},
    }  # fmt: skip
    keys: dict[str, Any] = {"idempotency_key": 'i"\\,{}', "unique_key": "NULL"}
    plain = await colour.call(send.options(**options), to="x")
    keyed = await colour.call(send.options(**options, **keys), to="x")

    for job, expected in ((plain, {}), (keyed, keys)):
        record = await colour.get(job.id)
        for name, value in {**options, "timeout": 120.0, **expected}.items():
            stored = (
                database.one("SELECT meta FROM jobq.job WHERE id = %s", (job.id,))
                if name == "meta"
                else getattr(record, name)
            )
            assert stored == value, name


async def test_options_build_on_one_another(app: JobQ) -> None:
    @app.job("send", queue="mail")
    def send(to: str) -> None: ...

    acme = send.options(tenant="acme", priority=1)
    urgent = acme.options(priority=9)

    assert urgent.new("x").tenant == "acme"
    assert urgent.new("x").priority == 9
    assert acme.new("x").priority == 1
    assert send.new("x").tenant == "default"
    assert urgent.new("x").queue == "mail"
    with pytest.raises(InvalidJob, match="run_at must not be given together with delay"):
        send.options(delay=1).options(run_at=datetime(2030, 1, 1, tzinfo=UTC))


async def test_a_kind_by_name_takes_any_payload(colour: Colour) -> None:
    for payload in ({"a": 1}, [1, 2], "text", 7, 1.5, True):
        job = await colour.enqueue("elsewhere", payload)
        assert (await colour.get(job.id)).payload == payload


async def test_null_is_a_payload(app: JobQ) -> None:
    job = app.enqueue("elsewhere", None)
    assert app.get(job.id).payload is None
    assert app.get(app.enqueue("elsewhere").id).payload == {}


async def test_a_kind_by_name_that_has_a_handler_must_fit_it(app: JobQ) -> None:
    @app.job("send", queue="mail", max_attempts=7)
    def send(to: str) -> None: ...

    with pytest.raises(InvalidPayload, match=r"payload\.to"):
        app.enqueue("send", {"too": "a"})
    job = app.get(app.enqueue("send", {"to": "a"}).id)
    assert (job.queue, job.max_attempts) == ("mail", 7)


async def test_a_handler_may_be_registered_for_a_second_kind(app: JobQ) -> None:
    @app.job("new.name")
    @app.job("old.name")
    async def task(to: str) -> None: ...

    assert app.handlers.keys() == {"new.name", "old.name"}
    assert app.handlers["new.name"].is_async
    assert task.kind == "new.name"


@pytest.mark.parametrize("keyed", [False, True])
async def test_what_a_job_leaves_open_comes_from_its_kind_then_from_the_settings(
    colour: Colour, app: JobQ, database: Database, keyed: bool
) -> None:
    kinds: list[dict[str, Any]] = [
        {"kind": "full", "queue": "slow", "priority": 5, "max_attempts": 2, "timeout": 7.5},
        {"kind": "part", "queue": None, "priority": -5, "max_attempts": None, "timeout": None},
    ]
    run_sync(database.conn, UpkeepStore(app._statements).register_kinds(kinds))

    async def enqueued(kind: str, **options: Any) -> tuple[Any, ...]:
        key = {"unique_key": f"{kind}{len(options)}"} if keyed else {}
        job = await colour.get((await colour.enqueue(kind, **options, **key)).id)
        return job.queue, job.priority, job.max_attempts, job.timeout

    assert await enqueued("full") == ("slow", 5, 2, 7.5)
    assert await enqueued("part") == ("default", -5, 5, 300.0)
    assert await enqueued("none") == ("default", 0, 5, 300.0)
    told = {"queue": "q", "priority": 0, "max_attempts": 1, "timeout": 1}
    assert await enqueued("full", **told) == ("q", 0, 1, 1.0)


async def test_settings_of_the_app_are_the_last_resort(database_url: str) -> None:
    async with JobQ(database_url, max_attempts=3, job_timeout="10s", max_payload=20) as app:
        job = await app.aget((await app.aenqueue("k")).id)
        assert (job.max_attempts, job.timeout) == (3, 10.0)
        with pytest.raises(InvalidPayload, match="larger than 20 bytes"):
            await app.aenqueue("k", "x" * 20)


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_atempts"):
        _ = JobQ(max_atempts=3).settings


async def test_a_delay_is_counted_by_the_database_clock(colour: Colour, database: Database) -> None:
    for options in ({}, {"unique_key": "u"}):
        job = await colour.enqueue("k", delay=timedelta(minutes=5), **options)
        assert job.status == JobStatus.SCHEDULED
        row = "SELECT extract(epoch FROM run_at - created_at)::float8, ready_at FROM jobq.job WHERE id = %s"
        assert database.rows(row, (job.id,)) == [(300.0, None)]


@pytest.mark.case("B72")
async def test_run_at_is_an_instant_whatever_the_time_zones_of_process_and_database(
    colour: Colour, database: Database, tokyo: None
) -> None:
    database.rows(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = %L',"
        " current_database(), 'America/New_York'); END $$"
    )
    instant = datetime(2030, 7, 1, 12, tzinfo=UTC)
    for run_at in (instant, instant.astimezone(timezone(timedelta(hours=5, minutes=30)))):
        for options in ({}, {"unique_key": str(run_at)}):
            job = await colour.enqueue("k", run_at=run_at, **options)
            assert job.status == JobStatus.SCHEDULED
            assert (await colour.get(job.id)).run_at == instant
            stored = "SELECT extract(epoch FROM run_at)::float8 FROM jobq.job WHERE id = %s"
            assert database.one(stored, (job.id,)) == instant.timestamp()


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in the time zone of Tokyo."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
    assert os.environ.get("TZ") != "Asia/Tokyo"


async def test_a_time_in_the_past_means_now(colour: Colour, database: Database) -> None:
    for run_at in (datetime.now(UTC) - timedelta(days=1), datetime(1, 1, 2, tzinfo=UTC)):
        for options in ({}, {"unique_key": str(run_at)}):
            job = await colour.enqueue("k", run_at=run_at, **options)
            assert job.status == JobStatus.QUEUED
            row = "SELECT run_at = created_at, ready_at = created_at FROM jobq.job WHERE id = %s"
            assert database.rows(row, (job.id,)) == [(True, True)]


@pytest.mark.case("B72")
async def test_a_naive_time_is_refused_as_a_value_error(colour: Colour, database: Database) -> None:
    naive = datetime.now()  # noqa: DTZ005 - naive is what is refused
    with pytest.raises(ValueError, match="with a zone"):
        await colour.enqueue("k", run_at=naive)
    assert database.jobs() == 0


@pytest.mark.case("B09")
@pytest.mark.parametrize("first", [ABOVE_31, ABOVE_53])
async def test_ids_of_more_than_32_bits_come_back_exactly(
    colour: Colour, database: Database, first: int
) -> None:
    database.rows(f"ALTER SEQUENCE jobq.job_id_seq RESTART WITH {first}")
    plain = await colour.enqueue("k")
    keyed = [await colour.enqueue("k", idempotency_key="i", unique_key="u") for _ in range(2)]
    assert [plain.id, *(job.id for job in keyed)] == [first, first + 1, first + 1]
    assert (await colour.get(first)).id == first


async def test_a_job_that_is_not_there_is_not_found(colour: Colour) -> None:
    for id_ in (0, -1, 1, 2**63, 10**30):
        with pytest.raises(JobNotFound):
            await colour.get(id_)


async def test_a_finished_job_is_found_with_its_result(colour: Colour, database: Database) -> None:
    job = await colour.enqueue("k", {"a": 1})
    database.finish(job.id)
    found = await colour.get(job.id)
    assert (found.status, found.payload) == (JobStatus.DONE, {"a": 1})
    assert found.finished_at is not None


async def test_a_missing_schema_says_what_to_do(empty_database_url: str) -> None:
    async with JobQ(empty_database_url) as app:
        for options in ({}, {"unique_key": "u"}):
            with pytest.raises(SchemaError, match="jobq migrate"):
                await app.aenqueue("k", **options)  # type: ignore[arg-type]
        with pytest.raises(SchemaError, match="jobq migrate"):
            app.enqueue("k")
        assert app.migrate() != []
        assert app.enqueue("k").created


@pytest.mark.parametrize("schema", ["JobQ", '50% "of" {all}'])
async def test_any_schema_name_will_do(empty_database_url: str, schema: str) -> None:
    async with JobQ(empty_database_url, schema=schema) as app:
        app.migrate()
        assert app.get(app.enqueue("k").id).kind == "k"
        assert (await app.aenqueue("k", unique_key="u")).created


@pytest.mark.parametrize("keyed", [False, True])
async def test_an_unreachable_server_is_an_error_without_secrets(keyed: bool) -> None:
    options: dict[str, Any] = {"idempotency_key": "i"} if keyed else {}
    async with JobQ("postgresql://user:secret-7f3a@127.0.0.1:1/none") as app:
        with pytest.raises(DatabaseUnavailable) as caught:
            await app.aenqueue("k", **options)
        assert "secret" not in str(caught.value)
        with pytest.raises(DatabaseUnavailable):
            app.enqueue("k", **options)
        with pytest.raises(DatabaseUnavailable):
            app.get(1)
