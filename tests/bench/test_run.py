"""Every benchmark at a tiny size: that it runs and reports, not how fast."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import psycopg
import pytest
from rich.console import Console
from tests.cli.support import eventually

import jobq.bench
from jobq.bench import catalog
from jobq.bench.children import BenchmarkFailed, Child
from jobq.bench.report import Budget, Metric, Sample
from jobq.bench.server import Server
from jobq.bench.stage import Benchmark, Sizes, Stage
from jobq.embedded import EmbeddedServer

TINY = Sizes(
    drain_jobs=300, claim_seconds=0.05, pickups=5, polled_pickups=2, enqueue_seconds=0.3, bulk_jobs=10_000,
    crash_jobs=60, kill_period=0.5, horizon_seconds=0.6, horizon_window=0.2, idle_seconds=0.2,
    memory_jobs=(200, 400), flood_jobs=100, flood_windows=1, slow_seconds=0.3, tenants=50, tenant_jobs=1_000, tenant_seconds=0.2,
    cap_claims=300, cap_kill_period=0.5, serial_jobs=30, beside_jobs=400, rate_seconds=0.5,
)  # fmt: skip


@pytest.fixture
def bench_server(server: EmbeddedServer) -> Server:
    return Server(server.url())


@pytest.fixture(autouse=True)
def settings_of_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark that read any of these could not run."""
    for name in ("DATABASE_URL", "JOBQ_DATABASE_URL"):
        monkeypatch.setenv(name, "postgresql://nobody@127.0.0.1:1/nothing")
    monkeypatch.setenv("JOBQ_SCHEMA", "pg_forbidden")
    monkeypatch.setenv("JOBQ_CONCURRENCY", "many")


def quiet() -> Console:
    return Console(file=StringIO(), width=100)


#: What must be 0 at any size.
NONE = ("crash_recovery_lost", "caps_violations")

#: All, but of the claim strategies only those with most claimers.
ONCE = [
    benchmark
    for benchmark in catalog.ALL
    if not benchmark.metrics[0].name.startswith("claim_blocking_")
    or benchmark.metrics[0].name == "claim_blocking_16"
]


@pytest.mark.parametrize("benchmark", ONCE, ids=[one.metrics[0].name for one in ONCE])
def test_it_runs_without_the_users_settings_and_samples_each_of_its_metrics(
    benchmark: Benchmark, bench_server: Server
) -> None:
    results, failed = jobq.bench.measure(
        [(benchmark, list(benchmark.metrics))], Stage(bench_server, sizes=TINY), 1, quiet()
    )
    assert failed == []
    assert [result.name for result in results] == [metric.name for metric in benchmark.metrics]
    assert all(result.value >= 0 and result.runs for result in results)
    assert all(result.value == 0 for result in results if result.name in NONE)
    for metric, result in zip(benchmark.metrics, results, strict=True):
        assert (metric.reference is None) == (result.reference_value is None)
        assert (metric.budget is None or result.noisy) == (result.ok is None)


def test_it_makes_its_own_databases_on_a_server_and_drops_them(
    own_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobq.bench, "QUICK", TINY)
    output = tmp_path / "latest.json"
    code = jobq.bench.run(
        "wal_per_job",
        runs=2,
        quick=True,
        server_url=own_server.url(),
        output=output,
        console=quiet(),
    )
    assert code == 0
    with psycopg.connect(own_server.url()) as conn:
        names = {name for (name,) in conn.execute("SELECT datname FROM pg_database")}
    assert names == {"postgres", "template0", "template1"}
    content = json.loads(output.read_text())
    assert [result["name"] for result in content["results"]] == ["wal_per_job"]
    assert len(content["results"][0]["runs"]) == 2
    assert content["machine"]["postgresql"]
    assert os.uname().nodename not in json.dumps(content["machine"])


def test_a_database_is_dropped_when_the_benchmark_fails(bench_server: Server) -> None:
    found: list[str] = []

    def fail() -> None:
        with bench_server.database() as database:
            found.append(database.conn.info.dbname)
            raise BenchmarkFailed("on purpose")

    with pytest.raises(BenchmarkFailed):
        fail()
    with bench_server.connect() as conn:
        query = "SELECT count(*) FROM pg_database WHERE datname = %s"
        assert conn.execute(query, found).fetchone() == (0,)


def test_a_benchmark_that_fails_is_told_and_the_others_go_on(bench_server: Server) -> None:
    def fail(stage: Stage) -> dict[str, Sample]:
        with stage.child("raw_loop", url="postgresql://nobody@127.0.0.1:1/nothing") as child:
            child.read()
        raise AssertionError

    broken = Benchmark("broken", (Metric("broken", "jobs"),), fail)
    good = Benchmark("good", (Metric("good", "jobs"),), lambda stage: {"good": Sample(1)})
    chosen = [(one, list(one.metrics)) for one in (broken, good)]
    results, failed = jobq.bench.measure(chosen, Stage(bench_server), 1, quiet())
    assert [result.name for result in results] == ["good"]
    assert len(failed) == 1
    assert "raw_loop ended with status 1" in failed[0]
    assert "refused" in failed[0]


@pytest.mark.parametrize(("check", "code"), [(False, 0), (True, 1)])
def test_a_missed_budget_is_a_failure_only_where_that_is_asked_for(
    check: bool,
    code: int,
    own_server: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metric = Metric("missed", "jobs", None, Budget("value", ">=", 2))
    missed = Benchmark("missed", (metric,), lambda stage: {"missed": Sample(1)})
    monkeypatch.setattr(catalog, "select", lambda only: [(missed, [metric])])
    output = tmp_path / "latest.json"
    found = jobq.bench.run(check=check, server_url=own_server.url(), output=output, console=quiet())
    assert found == code


STARTER = """
import signal, sys
from pathlib import Path
from jobq.bench.children import Child
child = Child("raw_loop", Path(sys.argv[1]), url=sys.argv[2])
child.read()
print(child.pid, flush=True)
signal.pause()
"""


def test_no_process_outlives_a_benchmark_that_is_killed(database_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path / "errors"), database_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()
    eventually(lambda: not _runs(pid))


def test_a_child_that_does_not_answer_fails_its_benchmark(
    tmp_path: Path, database_url: str
) -> None:
    with Child("raw_loop", tmp_path / "errors", url=database_url) as child:
        child.read()
        with pytest.raises(BenchmarkFailed, match="did not answer"):
            child.read(timeout=0.01)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return not state.stdout.strip().startswith("Z")
