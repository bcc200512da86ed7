"""`jobq tenants`, `queues`, `kinds` and `limits`: what is set for them, shown and changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from jobq import config, limits
from jobq.cli.database import Database, connected
from jobq.cli.show import Json, cell, console, print_json
from jobq.config import format_duration
from jobq.fields import Naming

#: Places of fields as options, for errors (`jobq.limits.check`).
OPTIONS: Naming = {
    "weight": "--weight",
    "queue": "--queue",
    "queue_weights": "--queue",
    "max_running": "--max-running",
    "max_per_key": "--max-per-key",
    "rate.limit": "the limit of --rate",
    "rate.period_seconds": "the period of --rate, in seconds,",
    "rate.burst": "--burst",
}


@dataclass(frozen=True)
class Given:
    """The value of an option; None: `none`, which resets."""

    value: Any


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number") from None


def _whole(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,20}", text):
        raise typer.BadParameter(f"{text!r} is no whole number")
    return int(text)


def _rate(text: str) -> dict[str, Any]:
    limit, slash, period = text.partition("/")
    try:
        if not slash:
            raise ValueError("it has no period")  # noqa: TRY301 - said in one place
        return {"limit": _whole(limit), "period_seconds": config.parse_duration(period)}
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no rate ({error}); write 100/1m for a hundred jobs a minute"
        ) from None


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Given]:
    return lambda text: Given(None if text == "none" else read(text))


Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's name.")]
Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
Kind = Annotated[str, typer.Argument(metavar="KIND", help="The kind's name.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The concurrency key.")]
Weight = Annotated[
    Given | None,
    typer.Option(parser=_or_none(_number), metavar="NUMBER", help="Its weight; none: 1."),
]
InQueue = Annotated[
    str | None, typer.Option(metavar="QUEUE", help="The weight holds in this queue only.")
]
MaxRunning = Annotated[
    Given | None,
    typer.Option(parser=_or_none(_whole), metavar="N", help="Jobs that run at once; none: no cap."),
]
MaxPerKey = Annotated[
    Given | None,
    typer.Option(
        parser=_or_none(_whole),
        metavar="N",
        help="Cap of its jobs' concurrency keys that have none of their own.",
    ),
]
Rate = Annotated[
    Given | None,
    typer.Option(
        parser=_or_none(_rate),
        metavar="LIMIT/PERIOD",
        help="Jobs that may start in a period, as 100/1m.",
    ),
]
Burst = Annotated[
    Given | None,
    typer.Option(
        parser=_or_none(_whole), metavar="N", help="Jobs of --rate that may start at once; 1."
    ),
]
Reset = Annotated[
    list[str] | None,
    typer.Option(metavar="FIELD", help="Put back as it was before it was set; repeatable."),
]


def set_tenant(
    name: Tenant,
    *,
    weight: Weight = None,
    queue: InQueue = None,
    max_running: MaxRunning = None,
    rate: Rate = None,
    burst: Burst = None,
    reset: Reset = None,
    as_json: Json = False,
) -> None:
    """Set a tenant's weight, cap or rate; what is not named stays."""
    asked = {"weight": weight, "max_running": max_running, "rate": _with_burst(rate, burst)}
    asked["queue"] = None if queue is None else Given(queue)
    _set("tenant", name, asked, reset, as_json)


def set_queue(
    name: Queue,
    *,
    weight: Weight = None,
    max_running: MaxRunning = None,
    rate: Rate = None,
    burst: Burst = None,
    reset: Reset = None,
    as_json: Json = False,
) -> None:
    """Set a queue's weight, cap or rate; what is not named stays."""
    asked = {"weight": weight, "max_running": max_running, "rate": _with_burst(rate, burst)}
    _set("queue", name, asked, reset, as_json)


def set_kind(
    name: Kind,
    *,
    weight: Weight = None,
    max_running: MaxRunning = None,
    max_per_key: MaxPerKey = None,
    rate: Rate = None,
    burst: Burst = None,
    reset: Reset = None,
    as_json: Json = False,
) -> None:
    """Set a kind's weight, cap, cap of its keys, or rate; what is not named stays."""
    asked = {
        "weight": weight,
        "max_running": max_running,
        "max_per_key": max_per_key,
        "rate": _with_burst(rate, burst),
    }
    _set("kind", name, asked, reset, as_json)


def set_key(
    key: Key,
    *,
    max_running: MaxRunning = None,
    rate: Rate = None,
    burst: Burst = None,
    reset: Reset = None,
    as_json: Json = False,
) -> None:
    """Set a concurrency key's cap or rate; what is not named stays."""
    asked = {"max_running": max_running, "rate": _with_burst(rate, burst)}
    _set("key", key, asked, reset, as_json)


def show(scope: str, name: str, *, as_json: bool) -> None:
    """Print what is set for a tenant, queue, kind or key."""
    checked = limits.check_name(scope, name)
    with connected() as database:
        _print(_look(database, scope, checked), as_json=as_json)


def pause(scope: str, name: str, *, paused: bool, as_json: bool) -> None:
    """Pause a tenant, queue or kind, or let it go on."""
    checked = limits.check_name(scope, name)
    with connected() as database:
        database.ask(database.limiters.set_limiter(scope, checked, {"paused": paused}))
        found = _look(database, scope, checked)
    if as_json:
        print_json(found)
    else:
        rest = "is paused; jobs that run finish" if paused else "is not paused"
        typer.echo(f"{scope} {checked} {rest}")


def describe(found: Mapping[str, Any]) -> str:
    """What is set, or said by a kind's decorator, in one line for a table; empty where nothing is."""
    parts = ["paused"] if found.get("paused") else []
    if found.get("weight", 1) != 1:
        parts.append(f"weight {found['weight']:g}")
    parts += [f"weight {weight:g} in {queue}" for queue, weight in _weights(found)]
    if found["maxRunning"] is not None:
        parts.append(f"at most {found['maxRunning']}")
    per_key = found.get("maxPerKey") or (found.get("defaults") or {}).get("maxPerKey")
    if per_key is not None:
        parts.append(f"{per_key} per key")
    if found["rate"] is not None:
        parts.append(_rate_text(found["rate"]))
    return ", ".join(parts)


def _set(
    scope: str,
    name: str,
    asked: Mapping[str, Given | None],
    reset: list[str] | None,
    as_json: bool,
) -> None:
    checked = limits.check_name(scope, name)
    given = {field: value.value for field, value in asked.items() if value is not None}
    change = limits.check(
        scope,
        given | _resets(scope, given, reset or []),
        naming=OPTIONS,
        stop=f"run jobq {scope}s pause {checked}",
    )
    with connected() as database:
        if change:
            database.ask(database.limiters.set_limiter(scope, checked, change))
        _print(_look(database, scope, checked), as_json=as_json)


def _resets(scope: str, given: Mapping[str, Any], reset: list[str]) -> dict[str, None]:
    known = [field.replace("_", "-") for field in limits.FIELDS[scope] if field != "queue"]
    for field in reset:
        if field not in known:
            raise typer.BadParameter(
                f"{field!r} cannot be reset; those are {', '.join(known)}", param_hint="--reset"
            )
        if field.replace("-", "_") in given:
            raise typer.BadParameter(f"{field} is set and reset", param_hint="--reset")
    return {field.replace("-", "_"): None for field in reset}


def _with_burst(rate: Given | None, burst: Given | None) -> Given | None:
    if burst is None:
        return rate
    if rate is None or rate.value is None:
        raise typer.BadParameter("goes with --rate, of which it is a part", param_hint="--burst")
    return Given({**rate.value, "burst": burst.value})


def _look(database: Database, scope: str, name: str) -> dict[str, Any]:
    return limits.view(database.ask(database.limiters.find_limiter(scope, name)))


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    out = console()
    for label, value in _facts(found):
        line = cell(f"{label:<12}")
        line.stylize("bold")
        out.print(line.append_text(cell(value)))


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What is set, and what holds where nothing is, line by line."""
    scope, name = next(iter(found.items()))
    facts = [(scope, str(name))]
    if "weight" in found:
        facts += [
            ("paused", "yes" if found["paused"] else "no"),
            ("weight", f"{found['weight']:g}"),
        ]
        facts += [(f"in {queue}", f"{weight:g}") for queue, weight in _weights(found)]
    facts.append(("at most", _cap(scope, found)))
    if "maxPerKey" in found:
        of_decorator = (found["defaults"] or {}).get("maxPerKey")
        facts.append(("per key", f"{found['maxPerKey'] or of_decorator or 1} at once"))
    facts.append(("rate", _rate_text(found["rate"]) if found["rate"] else "no rate"))
    return facts


def _cap(scope: str, found: Mapping[str, Any]) -> str:
    cap, held = found["maxRunning"], found["slotsHeld"]
    unset = "1, or what the kind says" if scope == "key" else "no cap"
    text = unset if cap is None else f"{cap} at once"
    return f"{text}; {held} now" if held or cap is not None else text


def _weights(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    return sorted(found.get("queueWeights", {}).items())


def _rate_text(rate: Mapping[str, Any]) -> str:
    burst = f" (burst {rate['burst']})" if rate["burst"] != 1 else ""
    return f"{rate['limit']} per {format_duration(rate['periodSeconds'])}{burst}"
