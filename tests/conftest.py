"""Fixtures for all tests.

A test run has one PostgreSQL server, shared by all of its processes, and a test that asks for
`database_url` a fresh database in it, copied from a template that holds jobq's schema. Nothing
is shared between tests, so they run in any order and in parallel. A test that wants to stop or break a
server takes `own_server`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import psycopg
import pytest
from psycopg import sql

from jobq import logs
from jobq.embedded import EmbeddedError, EmbeddedServer
from jobq.migrate import migrate

# Tells xdist's workers where the server of this run is.
SERVER_VARIABLE = "JOBQ_TEST_SERVER"
FIRST_ID_VARIABLE = "JOBQ_TEST_FIRST_ID"
RUN_PREFIX = "jobq-tests-"
TEMPLATE = "jobq_template"
SETTINGS = {
    "fsync": "off",  # a crash of the machine ends the tests as well
    "full_page_writes": "off",
    "autovacuum": "off",  # statistics and dead rows change only where a test says so
    "max_connections": "300",
    "max_wal_size": "256MB",
    "dynamic_shared_memory_type": "mmap",  # so that a killed server leaves nothing in /dev/shm
}
# A database is created in 15 ms on a memory file system, in 150 ms on a cloud disk.
MEMORY = Path("/dev/shm")
MEMORY_NEEDED = 4 * 1024**3

# A busy machine is no failure; pytest-timeout ends what hangs.
hypothesis.settings.register_profile("jobq", deadline=None)
hypothesis.settings.load_profile("jobq")

_server_of_run = pytest.StashKey[EmbeddedServer]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the server before xdist starts its workers, which inherit our environment."""
    in_parallel = config.getoption("dist", "no") != "no"
    if in_parallel and not config.getoption("collectonly") and not hasattr(config, "workerinput"):
        os.environ[SERVER_VARIABLE] = str(_start_server(config).data_dir)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the server that this process started, and the folder of the run."""
    if server := config.stash.get(_server_of_run, None):
        os.environ.pop(SERVER_VARIABLE, None)
        server.remove()
        shutil.rmtree(server.data_dir.parent)


def _start_server(config: pytest.Config) -> EmbeddedServer:
    _sweep()
    folder = _new_folder(RUN_PREFIX, _fast_folder())
    server = EmbeddedServer(folder / "postgresql", bin_dir=_other_binaries(), settings=SETTINGS)
    config.stash[_server_of_run] = server
    try:
        server.start()
    except EmbeddedError as error:
        pytest.exit(f"the tests need PostgreSQL: {error}", returncode=1)
    return server


def _other_binaries() -> Path | None:
    named = os.environ.get("JOBQ_TEST_PGBIN")
    return Path(named) if named else None


def _fast_folder() -> Path:
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        found = os.statvfs(MEMORY)
        free = found.f_bavail * found.f_frsize
        # As root, the server's binaries may have to be copied beside its data.
        if free >= MEMORY_NEEDED and not found.f_flag & os.ST_NOEXEC:
            return MEMORY
    return Path(tempfile.gettempdir())


def _new_folder(prefix: str, parent: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    folder.chmod(0o711)  # as root, the server runs as somebody else, who has to pass
    return folder


def _sweep() -> None:
    """Remove what killed runs left; the server of a living one is locked."""
    for left in _fast_folder().glob(f"{RUN_PREFIX}*"):
        if left.stat().st_uid == os.geteuid() and (left / "postgresql" / "lock").exists():
            with suppress(EmbeddedError):
                EmbeddedServer(left / "postgresql").remove()
                _remove_servers(left)
                shutil.rmtree(left, ignore_errors=True)


def _remove_servers(folder: Path) -> None:
    """Stop the servers whose data directories are in the folder; their files may be elsewhere."""
    for lock in list(folder.rglob("lock")):  # before removing changes the tree
        EmbeddedServer(lock.parent).remove()


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """A test that ran a command in this process leaves no configured logs to the next, which may listen to them."""
    yield
    logs.reset()


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> EmbeddedServer:
    """The run's server. All tests share it: look, don't stop."""
    if found := os.environ.get(SERVER_VARIABLE):
        return EmbeddedServer(Path(found))
    return _start_server(pytestconfig)


@pytest.fixture
def server_folder(server: EmbeddedServer) -> Iterator[Path]:
    """A folder on a fast disk that the account of a server can reach, also when the tests run as root."""
    folder = _new_folder("folder-", server.data_dir.parent)
    yield folder
    _remove_servers(folder)
    shutil.rmtree(folder)


@pytest.fixture
def own_server(server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """A running server of this test's own, to stop, kill and restart. It has no schema."""
    folder = _new_folder("own-", server.data_dir.parent)
    own = EmbeddedServer(folder, bin_dir=_other_binaries(), settings=SETTINGS)
    own.start()
    yield own
    own.remove()


def _move_ids(url: str) -> None:
    """Start ids at JOBQ_TEST_FIRST_ID, where that is set: every operation must take ids above 2^31."""
    if first := os.environ.get(FIRST_ID_VARIABLE):
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(
                sql.SQL("ALTER SEQUENCE jobq.job_id_seq RESTART WITH {}").format(int(first))
            )


@pytest.fixture(scope="session")
def template(server: EmbeddedServer) -> str:
    """The name of the database that holds jobq's schema and nothing else, made once per run."""
    with (
        (server.data_dir.parent / "template.lock").open("w") as lock,
        psycopg.connect(server.url(), autocommit=True) as admin,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        query = "SELECT 1 FROM pg_database WHERE datname = %s"
        if admin.execute(query, [TEMPLATE]).fetchone() is None:
            admin.execute("DROP DATABASE IF EXISTS unfinished WITH (FORCE)")
            admin.execute("CREATE DATABASE unfinished TEMPLATE template0")
            migrate(server.url("unfinished"), schema="jobq")
            _move_ids(server.url("unfinished"))
            # A connection to it would make the copying fail.
            admin.execute("ALTER DATABASE unfinished ALLOW_CONNECTIONS false")
            admin.execute(
                sql.SQL("ALTER DATABASE unfinished RENAME TO {}").format(sql.Identifier(TEMPLATE))
            )
    return TEMPLATE


@pytest.fixture
def database_url(server: EmbeddedServer, template: str) -> Iterator[str]:
    """The address of a fresh database with jobq's schema, as its superuser."""
    yield from _fresh_database(server, template)


@pytest.fixture
def empty_database_url(server: EmbeddedServer) -> Iterator[str]:
    """The address of a fresh database without a schema."""
    yield from _fresh_database(server, "template0")


_to_drop: list[str] = []


def _fresh_database(server: EmbeddedServer, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server.url(), autocommit=True) as admin:
        # Faster than wal_log where nothing is synced.
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
        admin.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        # Not when its test ends: DROP sleeps 100 ms if a session is just about to leave.
        while _to_drop:
            statement = sql.SQL("DROP DATABASE {} WITH (FORCE)")
            admin.execute(statement.format(sql.Identifier(_to_drop.pop())))
    yield server.url(name)
    _to_drop.append(name)
