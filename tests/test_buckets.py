"""Time buckets: one name for each hour and each local day, whatever clocks do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jobq
from jobq import JobQ, time_bucket

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NEW_YORK, LONDON = "America/New_York", "Europe/London"


def minutes(begin: str, end: str) -> Iterator[datetime]:
    """A fake clock: every minute from one instant to before another."""
    now, last = datetime.fromisoformat(begin), datetime.fromisoformat(end)
    while now < last:
        yield now
        now += timedelta(minutes=1)


def firings(begin: str, end: str, zone: str, start: time) -> list[tuple[str, datetime]]:
    """What a timer enqueues that wakes every minute and keys its job by the day: a job for each name that is new."""
    seen: dict[str, datetime] = {}
    for now in minutes(begin, end):
        seen.setdefault(time_bucket(DAY, now, zone=zone, start=start), now)
    return list(seen.items())[1:]  # of the first one it saw only the end


@pytest.mark.case("B63")
@pytest.mark.parametrize(
    ("zone", "start", "day", "fires"),
    [
        (NEW_YORK, time(1, 30), "2025-11-02", "2025-11-02T01:30-04:00"),
        (NEW_YORK, time(2, 30), "2025-03-09", "2025-03-09T03:30-04:00"),
        (LONDON, time(1, 30), "2025-10-26", "2025-10-26T01:30+01:00"),
        (LONDON, time(1, 30), "2025-03-30", "2025-03-30T02:30+01:00"),
    ],
    ids=["repeated in New York", "skipped in New York", "repeated in London", "skipped in London"],
)
def test_a_local_day_has_one_name_though_its_time_comes_twice_or_not_at_all(
    zone: str, start: time, day: str, fires: str
) -> None:
    changed = date.fromisoformat(day)
    began, ended = changed - 3 * DAY, changed + 4 * DAY
    fired = firings(f"{began}T12:00Z", f"{ended}T12:00Z", zone, start)
    assert [name for name, _ in fired] == [str(began + n * DAY) for n in range(1, 8)]
    per_local_day = Counter(now.astimezone(ZoneInfo(zone)).date() for _, now in fired)
    assert set(per_local_day.values()) == {1}
    assert dict(fired)[day] == datetime.fromisoformat(fires)
    others = {now.astimezone(ZoneInfo(zone)).time() for name, now in fired if name != day}
    assert others == {start}


@pytest.mark.case("B64")
@pytest.mark.parametrize("zone", [NEW_YORK, "UTC"])
def test_each_real_hour_has_its_name_also_where_the_local_clock_shows_it_twice(zone: str) -> None:
    names = [
        time_bucket(HOUR, now, zone=zone)
        for now in minutes("2025-11-02T05:00Z", "2025-11-02T09:00Z")
    ]
    assert Counter(names) == dict.fromkeys(names, 60)
    assert len(set(names)) == 4
    if zone == NEW_YORK:
        assert list(dict.fromkeys(names)) == [
            "2025-11-02T01:00-04:00", "2025-11-02T01:00-05:00", "2025-11-02T02:00-05:00", "2025-11-02T03:00-05:00",
        ]  # fmt: skip


@pytest.mark.case("B64")
def test_four_real_hours_of_a_timer_make_four_jobs(database_url: str) -> None:
    with JobQ(database_url=database_url) as app:
        jobs = {
            app.enqueue(
                "report.hourly",
                {},
                unique_key=f"report.hourly:{time_bucket(HOUR, now, zone=NEW_YORK)}",
            ).id
            for now in minutes("2025-11-02T05:00Z", "2025-11-02T09:00Z")
        }
    assert len(jobs) == 4


@given(
    st.integers(946_684_800, 2_114_380_800).map(lambda second: datetime.fromtimestamp(second, UTC)),
    st.sampled_from(
        [
            NEW_YORK,
            LONDON,
            "Australia/Lord_Howe",
            "Asia/Kathmandu",
            "Pacific/Apia",
            "America/Havana",
        ]
    ),
    st.sampled_from([timedelta(minutes=15), HOUR, 6 * HOUR, DAY, 7 * DAY]),
    st.timedeltas(timedelta(0), 3 * DAY),
)
def test_names_never_go_back(at: datetime, zone: str, every: timedelta, later: timedelta) -> None:
    """A name that was left never comes again, so a key is free or taken for good."""
    first, last = time_bucket(every, at, zone=zone), time_bucket(every, at + later, zone=zone)
    assert datetime.fromisoformat(first) <= datetime.fromisoformat(last)
    if every < DAY:
        begin = datetime.fromisoformat(first)
        assert begin <= at < begin + every


def test_a_week_begins_on_monday_at_its_start() -> None:
    name = [
        time_bucket(7 * DAY, datetime.fromisoformat(at), zone=LONDON, start=time(9))
        for at in (
            "2025-06-02T07:59Z",
            "2025-06-02T08:00Z",
            "2025-06-09T07:59Z",
            "2025-06-09T08:00Z",
        )
    ]
    assert name == ["2025-05-26", "2025-06-02", "2025-06-02", "2025-06-09"]


def test_seconds_do_as_well_and_without_an_instant_it_is_now() -> None:
    at = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert time_bucket(900, at) == "2025-01-02T03:00+00:00"
    assert time_bucket(86400, at) == "2025-01-02"
    assert time_bucket(5, at) == "2025-01-02T03:04:05+00:00"
    before, now, after = datetime.now(UTC), time_bucket(1), datetime.now(UTC)
    assert before - timedelta(seconds=1) < datetime.fromisoformat(now) <= after


@pytest.mark.parametrize("every", [0, -60, 7, timedelta(minutes=50), timedelta(hours=36)])
def test_lengths_that_fit_no_day_are_refused(every: timedelta | float) -> None:
    with pytest.raises(ValueError, match="neither divides a day"):
        time_bucket(every)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"at": datetime(2025, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the point
        ({"zone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"zone": "../etc/passwd"}, "no time zone"),
        ({"zone": ""}, "no time zone"),
        ({"start": time(1)}, "only days"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    arguments: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        time_bucket(HOUR, **arguments)  # type: ignore[arg-type]


def test_it_is_public() -> None:
    assert jobq.time_bucket is time_bucket
