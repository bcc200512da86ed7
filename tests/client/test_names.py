"""The public names, how light they are to import, and what a type checker makes of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jobq

NAMES = {
    "ConfigurationError", "Context", "DatabaseUnavailable", "IdempotencyConflict", "InvalidJob", "InvalidPayload",
    "Job", "JobNotFound", "JobQ", "JobQError", "JobStatus", "KeyInProgress", "PayloadTooLarge", "PermanentError",
    "RetryAfter", "SchemaError", "TooSlow", "UnknownKind", "WrongStatus", "__version__", "time_bucket",
}  # fmt: skip

RIGHT = """
from datetime import timedelta
from jobq import Context, Job, JobQ

app = JobQ()

@app.job("email.welcome", max_attempts=5, timeout=timedelta(seconds=30))
async def welcome(to: str, copies: int = 1) -> None: ...

@app.job("report.build", queue="slow", max_per_key=3)
def build(ctx: Context, month: str) -> dict[str, int]:
    return {month: 1}

async def use(ctx: Context) -> None:
    job: Job = welcome.enqueue(to="a@b.com")
    job = await welcome.options(tenant="acme", delay=300).aenqueue("a@b.com", copies=2)
    job = build.enqueue(month="2030-01")
    jobs: list[Job] = app.enqueue_many([welcome.new(to="a"), build.new("2030-01")])
    result: dict[str, int] = build(ctx, "2030-01")
    await welcome("a@b.com")
    app.enqueue("elsewhere", [1, 2], priority=5, tags=["x"])
"""

WRONG = {
    "welcome.enqueue(to=7)": "arg-type",
    "welcome.enqueue()": "call-arg",
    "welcome.enqueue('a', bcc='b')": "call-arg",
    "build.enqueue(ctx, '2030-01')": "call-arg arg-type",
    "build('2030-01')": "call-arg arg-type",
    "welcome.options(priorty=5)": "call-arg",
    "welcome.options(priority='high')": "arg-type",
    "welcome.new(1)": "arg-type",
    "app.enqueue('k', {}, delay='5m')": "arg-type",
    "text: str = build(ctx, '2030-01')": "assignment",
}


def test_the_public_names_are_these() -> None:
    assert set(jobq.__all__) == NAMES
    assert jobq.__all__ == sorted(jobq.__all__)
    assert set(dir(jobq)) >= NAMES
    for name in NAMES:
        assert getattr(jobq, name) is not None


def test_every_error_is_a_jobq_error_with_a_code_of_its_own() -> None:
    errors = [
        value
        for name in NAMES
        if isinstance(value := getattr(jobq, name), type) and issubclass(value, jobq.JobQError)
    ]
    assert len(errors) == 15
    assert len({error.code for error in errors}) == len(errors)


def test_importing_the_package_loads_no_database_driver() -> None:
    program = (
        "import sys, jobq; jobq.Context; heavy = {'psycopg', 'pydantic', 'fastapi'} & set(sys.modules);"
        "assert not heavy, heavy; jobq.JobQ; assert 'psycopg' in sys.modules;"
        "assert not {'fastapi', 'typer', 'uvicorn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(jobq, "Nothing")


def test_a_type_checker_knows_the_arguments_of_every_handler(tmp_path: Path) -> None:
    calls = RIGHT.count("\n") + 2
    program = tmp_path / "shop.py"
    lines = [f"    {call}  # {code}" for call, code in WRONG.items()]
    program.write_text(
        RIGHT + "\ndef wrong(ctx: Context) -> None:\n" + "\n".join(lines) + "\n", encoding="utf-8"
    )
    source = Path(jobq.__file__).parents[1]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
         f"--cache-dir={tmp_path / 'cache'}", str(program)],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={"MYPYPATH": str(source), "PATH": ""},
    )  # fmt: skip
    found = [line for line in checked.stdout.splitlines() if ": error: " in line]
    expected = [
        (calls + at, code) for at, codes in enumerate(WRONG.values(), 1) for code in codes.split()
    ]
    assert [(int(line.split(":")[1]), line.rsplit("[")[-1][:-1]) for line in found] == expected, (
        checked.stdout + checked.stderr
    )
