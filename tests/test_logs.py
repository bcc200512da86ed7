"""Logs: one line an event, whatever is logged and wherever it goes."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, NoReturn

import pytest

from jobq import logs


class Output:
    """What was written."""

    def __init__(self, stream: io.BytesIO) -> None:
        self._stream = stream

    @property
    def text(self) -> str:
        return self._stream.getvalue().decode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def line(self) -> dict[str, Any]:
        (line,) = self.lines
        return dict(line)


@pytest.fixture
def configure() -> Iterator[Callable[..., Output]]:
    """Configure logging to a stream in memory; undone afterwards."""

    def to_memory(level: str = "info", format: str = "json") -> Output:  # noqa: A002
        stream = io.BytesIO()
        root = logging.getLogger()
        # pytest's own, which let through what a hostile __str__ raises; it adds them to each phase.
        root.handlers = [h for h in root.handlers if type(h).__module__ != "_pytest.logging"]
        logs.configure(level, format, stream=stream)
        return Output(stream)

    yield to_memory
    logs.reset()


log = logs.get("jobq.test")


class Hostile:
    """Cannot be shown in any way."""

    def __str__(self) -> NoReturn:
        raise SystemExit(3)

    __repr__ = __str__


# --- lines ----------------------------------------------------------------------------------------


def test_an_event_is_a_line_of_json(configure: Callable[..., Output]) -> None:
    output = configure()
    log.info("job finished", job_id=7, seconds=0.25, tags=["a"], more=None)
    line = output.line
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info", "logger": "jobq.test", "event": "job finished", "job_id": 7, "seconds": 0.25, "tags": ["a"],
        "more": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("level", "expected"),
    [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)],
)
def test_levels_below_are_left_out(
    configure: Callable[..., Output], level: str, expected: int
) -> None:
    output = configure(level)
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)("x")
    assert len(output.lines) == expected


def test_a_logger_kept_from_before_follows_a_new_configuration(
    configure: Callable[..., Output],
) -> None:
    first = configure("error")
    log.info("left out")
    second = configure("debug")
    log.debug("written")
    assert (first.text, second.line["event"]) == ("", "written")


def test_the_standard_library_leaves_by_the_same_road(configure: Callable[..., Output]) -> None:
    output = configure()
    logging.getLogger("shop").warning("stock of %s is %d", "tea", 3)
    logging.getLogger("shop").debug("left out")
    line = output.line
    assert (line["event"], line["level"], line["logger"]) == (
        "stock of tea is 3",
        "warning",
        "shop",
    )


def test_a_basic_config_from_before_does_not_say_it_twice(
    configure: Callable[..., Output], capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    handler = logging.StreamHandler(sys.stdout)
    root.addHandler(handler)
    output = configure()
    logging.getLogger("shop").warning("once")
    assert output.line["event"] == "once"
    assert capsys.readouterr().out == ""


def test_an_exception_is_in_its_line(configure: Callable[..., Output]) -> None:
    output = configure()
    try:
        raise ValueError("no stock")  # noqa: TRY301 - where it comes from does not matter
    except ValueError as error:
        log.exception("failed")
        log.error("failed", exc_info=error)  # noqa: TRY400 - the other way to say it
        logging.getLogger("shop").exception("failed")
    for line in output.lines:
        assert line["exception"].endswith("ValueError: no stock")
        assert "Traceback" in line["exception"]
        assert line["level"] == "error"


def test_fields_of_a_context_are_added_and_taken_back(configure: Callable[..., Output]) -> None:
    output = configure()
    with logs.bound(request_id="r"):
        with logs.bound(tenant="t"):
            log.info("both")
        log.info("one")
    log.info("none")
    both, one, none = output.lines
    assert (both["request_id"], both["tenant"]) == ("r", "t")
    assert one["request_id"] == "r"
    assert "tenant" not in one
    assert "request_id" not in none


async def test_a_handlers_own_logging_is_marked_with_its_job(
    configure: Callable[..., Output],
) -> None:
    output = configure()

    async def run(job_id: int) -> None:
        job_log = logs.bind_job(job_id=job_id, kind="k", attempt=2, request_id=f"r{job_id}")
        await asyncio.sleep(0)
        logging.getLogger("shop").info("by the standard library")
        job_log.info("by ours", step=1)
        await asyncio.to_thread(logging.getLogger("shop").info, "in a thread")
        thread = threading.Thread(target=lambda: job_log.info("where no context reaches"))
        thread.start()
        await asyncio.to_thread(thread.join)

    await asyncio.gather(asyncio.create_task(run(1)), asyncio.create_task(run(2)))
    assert len(output.lines) == 8
    for line in output.lines:
        assert (line["kind"], line["attempt"]) == ("k", 2)
        assert line["request_id"] == f"r{line['job_id']}"
    log.info("outside")
    assert "job_id" not in output.lines[-1]


# --- nothing raises -------------------------------------------------------------------------------


def nested(levels: int) -> list[Any]:
    """A list in a list in a list."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


ODD: dict[str, Any] = {
    "hostile": Hostile(),
    "hostile key": {Hostile(): 1},
    "bytes": b"\xff\x00",
    "surrogate": "\udcff",
    "surrogate key": {"\ud800": 1},
    "big": 10**400,
    "nan": float("nan"),
    "set": {1},
    "object": object(),
    "error": ValueError("x"),
    "long": "x" * 1_000_000,
    "newline": "a\nb",
    "escape": "\x1b[31mred",
    "deep": nested(300),
}
ODD["cycle"] = [ODD["object"]]
ODD["cycle"].append(ODD["cycle"])


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize("name", ODD)
def test_whatever_a_field_is_there_is_one_line(
    configure: Callable[..., Output],
    name: str,
    format: str,  # noqa: A002
) -> None:
    output = configure("info", format)
    log.info("odd", field=ODD[name], other=1)
    logging.getLogger("shop").info("odd %s", ODD[name])
    logging.getLogger("shop").info(ODD[name])
    lines = output.text.splitlines()
    assert len(lines) == 3
    assert all(len(line) < 100_000 for line in lines)
    assert all(line.replace("\t", "").isprintable() for line in lines)
    if format == "json":
        assert output.lines[0]["event"] == "odd"
        assert output.lines[0]["other"] == 1


@pytest.mark.parametrize("format", ["json", "console"])
def test_whatever_a_field_is_called_there_is_one_line(
    configure: Callable[..., Output],
    format: str,  # noqa: A002
) -> None:
    output = configure("info", format)
    for name in ("\ud800", "a\nb", "", "x" * 100_000, "event ", "level"):
        log.info("odd", **{name: "y" * 40_000})
    assert len(output.text.splitlines()) == 6


@pytest.mark.parametrize("format", ["json", "console"])
def test_arguments_that_do_not_fit_the_text_are_shown_beside_it(
    configure: Callable[..., Output],
    format: str,  # noqa: A002
) -> None:
    output = configure("info", format)
    log.info("%d of %d", 1)  # noqa: PLE1206 - the mistake is the test
    log.info("%d", "x")
    log.info("%(a)s", {"b": 1})
    log.info("100%", 5)
    logging.getLogger("shop").info("%d of %d", 1)  # noqa: PLE1206 - the mistake is the test
    logging.getLogger("shop").info("%s", Hostile())
    assert len(output.text.splitlines()) == 6


def test_an_exception_that_cannot_be_shown_is_named(configure: Callable[..., Output]) -> None:
    class Broken(Exception):
        def __str__(self) -> NoReturn:
            raise ValueError

    output = configure()
    log.error("failed", exc_info=Broken())
    assert "Broken" in output.line["exception"]


def test_unconfigured_it_is_a_library_that_leaves_logging_to_the_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), logs.bound(request_id="r"):
        log.info("taken", job_id=7)
        log.debug("left out")
        log.info("odd", field=Hostile())
    first, second = caplog.records
    assert first.getMessage() == "taken request_id=r job_id=7"
    assert first.name == "jobq.test"
    assert "Hostile" in second.getMessage()


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize("level", ["info", "warning", "error"])
def test_passwords_are_masked(
    configure: Callable[..., Output],
    level: str,
    format: str,  # noqa: A002
) -> None:
    output = configure("info", format)
    write = getattr(log, level)
    write("no connection to postgresql://u:geheim@h:5/db")
    write(
        "x", url="postgresql://u:ge%20heim@h/db?sslmode=require", other={"a": ["redis://:geheim@h"]}
    )
    write("x", conn="host=h password=geheim user=u", quoted="password='geheim x' user=u")
    write("x", url="https://h/?user=a&password=geheim&x=1")
    write("x", password="geheim", database_PassWord="geheim")
    write("x", client_secret="geheim")
    write("x", exc_info=ValueError("postgresql://u:geheim@h/db"))
    logging.getLogger("shop").error("postgresql://u:geheim@h/db")
    assert "geheim" not in output.text
    assert "postgresql://u:***@h:5/db" in output.text
    assert "sslmode=require" in output.text


@pytest.mark.parametrize(
    "text", ["http://h:80/a@b", "see http://h/x", "a@b.com", "pass word", "a:b@c"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert logs.mask(text) == text


@pytest.mark.parametrize(
    "text", ['"' + "passwd" * 5000, "://a:" * 6000, "passwd " * 5000, "password=" * 4000, '"a":"' * 6000, "\\" * 32_000]
)  # fmt: skip
def test_no_text_takes_long_to_mask(text: str) -> None:
    """Quadratic time takes minutes here; the bound leaves a busy machine a hundred times what is needed."""
    start = perf_counter()
    logs.mask(text)
    assert perf_counter() - start < 5


# --- the console ----------------------------------------------------------------------------------


def test_the_console_is_aligned_and_plain_where_it_is_no_terminal(
    configure: Callable[..., Output],
) -> None:
    output = configure("info", "console")
    log.info("short", a=1)
    log.warning("a little longer", b="x y")
    first, second = output.text.splitlines()
    assert first.index("jobq.test") == second.index("jobq.test")
    assert "a=1" in first
    assert "\x1b" not in output.text


def test_the_console_escapes_a_line_break_once(configure: Callable[..., Output]) -> None:
    output = configure("info", "console")
    log.info("failed", error="RuntimeError: no\n  File x\x1b[1m", path="C:\\it's")
    assert r"error='RuntimeError: no\n  File x\x1b[1m'" in output.text
    assert r'''path="C:\it's"''' in output.text
    assert len(output.text.splitlines()) == 1


def test_the_console_is_coloured_on_a_terminal() -> None:
    primary, secondary = os.openpty()
    with os.fdopen(secondary, "w") as terminal:
        logs.configure("info", "console", stream=terminal)
        log.info("hello")
        logs.reset()
        assert b"\x1b[" in os.read(primary, 10_000)
    os.close(primary)


# --- outages --------------------------------------------------------------------------------------


def test_an_outage_is_said_once_and_then_now_and_then(configure: Callable[..., Output]) -> None:
    output = configure()
    now = 0.0
    outage = logs.Repeat(log, every=30, clock=lambda: now)
    said = []
    for at in range(100):
        now = float(at)
        if outage.warning("away", error="x"):
            said.append(at)
    assert said == [0, 30, 60, 90]
    assert [line.get("more") for line in output.lines] == [None, 29, 29, 29]
    assert outage.over()
    assert not outage.over()
    assert outage.error("away again")
    assert "more" not in output.lines[-1]
