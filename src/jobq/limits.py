"""What may be set for a tenant, queue, kind or concurrency key: checked in one place, shown in one shape.

HTTP and the command line share it (docs/fairness.md says what each setting promises).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from jobq import fields
from jobq.errors import InvalidJob, InvalidLimit
from jobq.fields import SNAKE, Naming

#: Fields by scope. A concurrency key has no weight, and stops when its jobs' kind, queue or tenant is paused.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "tenant": ("weight", "queue", "queue_weights", "max_running", "rate", "paused"),
    "queue": ("weight", "max_running", "rate", "paused"),
    "kind": ("weight", "max_running", "max_per_key", "rate", "paused"),
    "key": ("max_running", "rate"),
}
#: Place of a field -> its name in errors, as HTTP has it.
CAMEL: Naming = {
    "queue_weights": "queueWeights",
    "max_running": "maxRunning",
    "max_per_key": "maxPerKey",
    "rate.period_seconds": "rate.periodSeconds",
}

#: Beyond these a share is none that anybody could measure; the weights of a job are multiplied within them too.
LEAST_WEIGHT, MOST_WEIGHT = 0.0001, 1_000_000
MOST_RUNNING = 10_000
#: Jobs of a rate's limit and burst.
MOST_RATE = 1_000_000_000
#: Seconds of a rate's period.
LEAST_PERIOD, MOST_PERIOD = 0.001, fields.LONGEST
#: Queues that one change may name.
MOST_QUEUES = 1_000

_NO_RATE = {"rate_limit": None, "rate_period": None, "rate_burst": None}
_RATE = ("limit", "period_seconds", "burst")


class _Wrong(Exception):
    """Places within a field -> what is wrong there."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__()
        self.problems = problems


def check(
    scope: str,
    given: Mapping[str, Any],
    *,
    naming: Naming = SNAKE,
    stop: str = "set paused to true",
) -> dict[str, Any]:
    """A change as `LimiterStore.set_limiter` takes it: columns and values, None where it resets.

    Args:
        scope: `tenant`, `queue`, `kind` or `key`.
        given: fields of any origin, in snake_case or camelCase; what is left out stays, None resets.
            `rate` is `{"limit", "period_seconds", "burst"}`; `queue` beside `weight` means the weight in
            that queue only.
        naming: how fields are called in errors, by place.
        stop: what to do instead where a weight or cap of 0 is asked for.

    Raises:
        InvalidLimit: `fields` names all that is wrong, with what would be right.
    """
    change: dict[str, Any] = {}
    problems: dict[str, str] = {}
    named, twice = _named(given, FIELDS[scope])
    problems |= {_shown(naming, name): "was given twice" for name in twice}
    for name, value in named.items():
        try:
            if name not in FIELDS[scope]:
                raise ValueError(_no_field(scope, naming))  # noqa: TRY301 - one place notes all that is wrong
            change |= _CHECKS[name](value)
        except _Wrong as wrong:
            problems |= {_shown(naming, f"{name}.{at}"): why for at, why in wrong.problems.items()}
        except ValueError as error:
            zero = name in ("weight", "max_running") and value == 0 and "paused" in FIELDS[scope]
            problems[_shown(naming, name)] = f"{error}; to stop it, {stop}" if zero else str(error)
    if "queue" in change:
        problems |= _of_queue(named, naming)
        queue, weight = change.pop("queue"), change.pop("weight", None)
        change["queue_weights"] = {queue: weight}
    if problems:
        raise _invalid(problems)
    return change


def check_name(scope: str, name: str) -> str:
    """The name of a tenant, queue or kind, or a concurrency key.

    Raises:
        InvalidLimit: nothing can be called so.
    """
    field = "concurrency_key" if scope == "key" else scope
    try:
        return str(fields.check({field: name}, naming={field: scope})[field])
    except InvalidJob as error:
        raise InvalidLimit(str(error), fields=error.fields) from None


def view(record: Mapping[str, Any]) -> dict[str, Any]:
    """What is set, as HTTP and `--json` show it (a record of `LimiterStore.find_limiter`)."""
    scope = record["scope"]
    shown = {
        "weight": record["weight"] or 1.0,
        "queueWeights": record["queue_weights"] or {},
        "maxRunning": record["max_running"],
        "maxPerKey": record["max_per_key"],
        "rate": _rate_view(record),
        "paused": record["paused"],
    }
    wanted = {CAMEL.get(field, field) for field in FIELDS[scope]}
    found = {name: value for name, value in shown.items() if name in wanted}
    if scope == "kind":
        found["defaults"] = _defaults_view(record) if record["registered"] else None
    return {scope: record["name"], **found, "slotsHeld": record["slots_held"]}


def _rate_view(record: Mapping[str, Any]) -> dict[str, Any] | None:
    if record["rate_limit"] is None:
        return None
    return {
        "limit": record["rate_limit"],
        "periodSeconds": record["rate_period"],
        "burst": record["rate_burst"] or 1,
    }


def _defaults_view(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "queue": record["kind_queue"],
        "priority": record["kind_priority"],
        "maxAttempts": record["kind_max_attempts"],
        "timeoutSeconds": record["kind_timeout"],
        "maxPerKey": record["kind_max_per_key"],
    }


def _named(given: Mapping[str, Any], known: Collection[str]) -> tuple[dict[str, Any], set[str]]:
    """Values by snake_case name (unknown ones as they were given), and names that were there in both spellings."""
    named: dict[str, Any] = {}
    twice: set[str] = set()
    for name, value in given.items():
        snake = re.sub(r"(?<=[a-z])[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
        if snake not in known:
            snake = name
        if snake in named:
            twice.add(snake)
        named[snake] = value
    return named, twice


def _shown(naming: Naming, place: str) -> str:
    head, dot, rest = place.partition(".")
    return naming.get(place, f"{naming.get(head, head)}{dot}{rest}")


def _no_field(scope: str, naming: Naming) -> str:
    known = ", ".join(naming.get(field, field) for field in FIELDS[scope])
    return f"is no setting of a {'concurrency key' if scope == 'key' else scope}; those are {known}"


def _invalid(problems: Mapping[str, str]) -> InvalidLimit:
    sentence = "; ".join(f"{name} {reason}" for name, reason in problems.items())
    return InvalidLimit(sentence, fields=problems)


def _of_queue(named: Mapping[str, Any], naming: Naming) -> dict[str, str]:
    """What is wrong with a `queue` for what stands beside it."""
    weight, weights, queue = (_shown(naming, name) for name in ("weight", "queue_weights", "queue"))
    if "weight" not in named:
        return {queue: f"says where {weight} holds: give both"}
    if "queue_weights" in named:
        return {queue: f"must not be given together with {weights}"}
    return {}


def _number(value: object, least: float, most: float) -> float:
    # Whatever its size: comparing an integer beyond all doubles is exact in Python. NaN fits nowhere.
    right = (
        isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    )
    if not right:
        raise ValueError(f"must be a number from {least:g} to {most:,.0f}")
    assert isinstance(value, int | float)
    return float(value)


def _whole(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"must be a whole number from 1 to {most:,}")
    return value


def _weight(value: object) -> float | None:
    return None if value is None else _number(value, LEAST_WEIGHT, MOST_WEIGHT)


def _queue(value: object) -> dict[str, Any]:
    try:
        return {"queue": fields.check({"queue": value if value is not None else ""})["queue"]}
    except InvalidJob as error:
        raise ValueError(error.fields["queue"]) from None


def _queue_weights(value: object) -> dict[str, Any]:
    if value is None:
        return {"queue_weights": None}
    if not isinstance(value, Mapping) or len(value) > MOST_QUEUES:
        raise ValueError(
            f'must be an object of at most {MOST_QUEUES:,} queues and their weights, such as {{"mail": 3}}'
        )
    weights: dict[str, float | None] = {}
    problems: dict[str, str] = {}
    for queue, weight in value.items():
        try:
            weights[_queue(queue)["queue"]] = _weight(weight)
        except ValueError as error:
            problems[str(queue)[:200]] = str(error)
    if problems:
        raise _Wrong(problems)
    return {"queue_weights": weights}


def _cap(column: str) -> Callable[[object], dict[str, Any]]:
    return lambda value: {column: None if value is None else _whole(value, MOST_RUNNING)}


def _rate(value: object) -> dict[str, Any]:
    if value is None:
        return dict(_NO_RATE)
    if not isinstance(value, Mapping):
        raise ValueError(  # noqa: TRY004 - one class of error for all fields
            'must be an object such as {"limit": 100, "periodSeconds": 60, "burst": 10}'
        )
    named, twice = _named(value, _RATE)
    problems = dict.fromkeys(twice, "was given twice")
    problems |= {
        name[:200]: "is no part of a rate; those are limit, periodSeconds, burst"
        for name in named
        if name not in _RATE
    }
    rate: dict[str, Any] = {"rate_burst": None}
    for name, column, read in _PARTS:
        try:
            if named.get(name) is not None or name != "burst":
                rate[column] = read(named.get(name))
        except ValueError as error:
            problems.setdefault(name, str(error))
    if problems:
        raise _Wrong(problems)
    return rate


def _paused(value: object) -> dict[str, Any]:
    if value is not None and not isinstance(value, bool):
        raise ValueError("must be true or false")
    return {"paused": bool(value)}


def _jobs(value: object) -> int:
    return _whole(value, MOST_RATE)


def _period(value: object) -> float:
    return _number(value, LEAST_PERIOD, MOST_PERIOD)


_PARTS: tuple[tuple[str, str, Callable[[object], float]], ...] = (
    ("limit", "rate_limit", _jobs),
    ("period_seconds", "rate_period", _period),
    ("burst", "rate_burst", _jobs),
)
_CHECKS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "weight": lambda value: {"weight": _weight(value)},
    "queue": _queue,
    "queue_weights": _queue_weights,
    "max_running": _cap("max_running"),
    "max_per_key": _cap("max_per_key"),
    "rate": _rate,
    "paused": _paused,
}
