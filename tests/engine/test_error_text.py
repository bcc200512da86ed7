"""The text of a failed attempt: reasons of groups, causes, contexts and notes, whatever they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.engine.support import Jobs, handlers, working

from jobq.engine.error_text import MOST_REASONS, error_text
from jobq.errors import PermanentError
from jobq.payload import MAX_ERROR


def raised(function: Callable[[], object]) -> Exception:
    """What a function raises, traceback and all."""
    with pytest.raises(Exception) as info:  # noqa: PT011 - whatever it is
        function()
    return info.value


def wrap() -> None:
    try:
        {}["the-missing-key"]  # type: ignore[index]
    except KeyError as error:
        raise RuntimeError("could not build the report") from error


def handling() -> None:
    try:
        {}["the-missing-key"]  # type: ignore[index]
    except KeyError:
        raise RuntimeError("could not build the report")  # noqa: B904


def silenced() -> None:
    try:
        {}["the-missing-key"]  # type: ignore[index]
    except KeyError:
        raise RuntimeError("could not build the report") from None


def lines(error: BaseException) -> list[str]:
    return [line for line in error_text(error).splitlines() if not line.startswith("  File")]


def test_a_cause_and_a_context_are_named_with_where_they_were_raised() -> None:
    for function, word in ((wrap, "caused by"), (handling, "while handling")):
        text = error_text(raised(function))
        first, second, *_ = text.splitlines()
        assert first == "RuntimeError: could not build the report"
        assert second == f"  {word} KeyError: 'the-missing-key'"
        assert text.count("test_error_text.py") == 3
        assert "raised by KeyError: 'the-missing-key':" in text


def test_a_context_that_the_author_hid_stays_hidden() -> None:
    assert "the-missing-key" not in error_text(raised(silenced))


def test_groups_are_listed_as_deep_as_they_are_nested() -> None:
    inner: Exception = ExceptionGroup(
        "inner", [ValueError("customer 1 has no address"), OSError("disk")]
    )
    error = ExceptionGroup("outer", [inner, ExceptionGroup("alone", [raised(wrap)])])
    assert lines(error)[:6] == [
        "ExceptionGroup: outer (2 sub-exceptions)",
        "  1: ExceptionGroup: inner (2 sub-exceptions)",
        "    1: ValueError: customer 1 has no address",
        "    2: OSError: disk",
        "  2: RuntimeError: could not build the report",
        "    caused by KeyError: 'the-missing-key'",
    ]


def test_notes_are_kept() -> None:
    error = ValueError("no address")
    error.add_note("customer 17\nof tenant acme")
    group = ExceptionGroup("alone", [error])
    group.add_note("while sending")
    assert lines(group) == [
        "ValueError: no address", "  note: customer 17", "    of tenant acme", "  note: while sending",
    ]  # fmt: skip


def test_every_reason_is_there_although_messages_and_tracebacks_are_long() -> None:
    def deep(level: int) -> None:
        if level:
            deep(level - 1)
        raise ValueError("x" * 20_000)

    members = [raised(lambda: deep(50)) for _ in range(3)]
    error = ExceptionGroup("many", [*members, KeyError("the last one")])
    text = error_text(error)
    assert "4: KeyError: 'the last one'" in text
    assert len(text.encode()) <= MAX_ERROR


def test_a_group_of_very_many_says_how_many_more() -> None:
    text = error_text(ExceptionGroup("many", [ValueError(str(n)) for n in range(100)]))
    assert "38: ValueError: 38" not in text
    assert f"  and {101 - MOST_REASONS} more" in text


def test_circles_broken_messages_and_odd_notes_do_no_harm() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    first, second = Broken(), ValueError("b\x00")
    first.__cause__, second.__cause__ = second, first
    vars(first)["__notes__"] = 17
    vars(second)["__notes__"] = [3, "real"]
    assert lines(first) == [
        "Broken: (its text cannot be shown)", "  caused by ValueError: b\ufffd", "    note: real",
    ]  # fmt: skip


def test_a_long_chain_ends() -> None:
    error: BaseException = ValueError("0")
    for number in range(1, 5000):
        following = ValueError(str(number))
        following.__cause__ = error
        error = following
    assert len(error_text(error).splitlines()) < MOST_REASONS


@pytest.mark.case("N11")
async def test_the_job_says_why_it_failed(database_url: str, jobs: Jobs) -> None:
    async def fail(text: str) -> None:
        raise ValueError(text)

    async def tasks() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail("customer 1 has no address"))
            group.create_task(fail("customer 2 has no name"))

    async def permanent() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse())
            group.create_task(refuse())

    async def refuse() -> None:
        raise PermanentError("no such customer")

    async with working(database_url, handlers(tasks=tasks, wrap=wrap, permanent=permanent)):
        ids = [jobs.put(kind, max_attempts=1) for kind in ("tasks", "wrap", "permanent")]
        await jobs.finished(ids)
    found, wrapped, refused = (jobs[id_] for id_ in ids)
    assert "customer 1 has no address" in found["last_error"]
    assert "customer 2 has no name" in found["last_error"]
    assert "the-missing-key" in wrapped["last_error"]
    assert refused["status"] == "FAILED", "a group of nothing but permanent errors is one"
