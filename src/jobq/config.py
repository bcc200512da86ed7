"""Settings: argument over environment (`JOBQ_*`) over default, all checked together at start."""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from jobq.errors import ConfigurationError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SIZES = {"": 1, "b": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
_SIZE = re.compile(r"(\d+)\s*([kmg]ib|b)?", re.IGNORECASE)


def parse_duration(value: object) -> float:
    """Seconds of a duration such as `30s`, `5m`, `1h30m`, `250ms`, `7d`; a bare number is seconds.

    Raises:
        ValueError: it is no duration, or negative.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        text = str(value).strip().lower()
        if re.fullmatch(r"\d+(\.\d+)?", text):
            seconds = float(text)
        elif text and not _DURATION.sub("", text):
            seconds = sum(float(n) * _UNITS[unit] for n, unit in _DURATION.findall(text))
        else:
            raise ValueError(f"{value!r} is no duration; write for example 30s, 5m or 1h30m")
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{value!r} must be a duration of zero or more")
    return seconds


def parse_size(value: object) -> int:
    """Bytes of a size such as `8KiB`, `1MiB` or `4096`.

    Raises:
        ValueError: it is no size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"{value!r} is no size; write for example 8KiB, 1MiB or 4096")
    return int(match[1]) * _SIZES[(match[2] or "").lower()]


def format_duration(seconds: float) -> str:
    """A duration for people: `90s` becomes `1m30s`."""
    if seconds < 60:
        return f"{seconds:g}s"
    parts, rest = [], round(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])


Duration = Annotated[float, BeforeValidator(parse_duration)]
PositiveDuration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]


class Settings(BaseSettings):
    """All settings (contract.md, "Settings"). Durations are seconds, sizes bytes."""

    model_config = SettingsConfigDict(env_prefix="JOBQ_", extra="ignore", validate_default=True)

    database_url: str | None = Field(default=None, repr=False)
    schema_: str = Field(default="jobq", alias="JOBQ_SCHEMA")
    auto_migrate: bool = True
    app: str | None = None
    queues: str | None = None
    http_addr: str = "127.0.0.1:8080"
    worker_http_addr: str | None = None
    concurrency: int = Field(default=20, ge=1, le=10_000)
    express_slots: int | None = Field(default=None, ge=0, le=1_000)
    max_attempts: int = Field(default=5, ge=1, le=100)
    job_timeout: PositiveDuration = 300.0
    lease_duration: Annotated[float, BeforeValidator(parse_duration), Field(ge=1)] = 60.0
    reap_interval: PositiveDuration = 5.0
    poll_interval: PositiveDuration = 1.0
    backoff_base: PositiveDuration = 1.0
    backoff_max: PositiveDuration = 300.0
    shutdown_timeout: Duration = 25.0
    drain_delay: Duration = 0.0
    keep_alive: Annotated[float, BeforeValidator(parse_duration), Field(ge=1)] = 75.0
    retain_done: PositiveDuration = 7 * 86400.0
    retain_dead: PositiveDuration = 30 * 86400.0
    retain_keys: Duration = 35 * 86400.0
    max_payload: Size = 1024**2
    max_body: Size = 16 * 1024**2
    keep_payload: Annotated[int, BeforeValidator(parse_size), Field(ge=0)] = 8 * 1024
    webhook_allow: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("schema_")
    @classmethod
    def _identifier(cls, value: str) -> str:
        if not value or "\0" in value or len(value.encode()) > 63:
            raise ValueError("must be an identifier of 1 to 63 bytes")
        if value.lower().startswith("pg_"):
            raise ValueError("must not start with pg_, which PostgreSQL keeps for itself")
        return value

    @field_validator("http_addr", "worker_http_addr")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None:
            parse_address(value)
        return value

    @model_validator(mode="after")
    def _together(self) -> Settings:
        if self.database_url is None:
            self.database_url = os.environ.get("DATABASE_URL") or None
        if self.drain_delay > self.shutdown_timeout:
            raise ValueError(
                "JOBQ_DRAIN_DELAY must not exceed JOBQ_SHUTDOWN_TIMEOUT, of which it is a part"
            )
        return self

    @property
    def express(self) -> int:
        """Express slots of a worker: as set, else an eighth of the slots, at least one, none at concurrency 1."""
        if self.express_slots is not None:
            return self.express_slots
        return 0 if self.concurrency == 1 else max(1, self.concurrency // 8)

    def require_database(self) -> str:
        """The database URL.

        Raises:
            ConfigurationError: none is set.
        """
        if not self.database_url:
            raise ConfigurationError(
                "JOBQ_DATABASE_URL is not set: give a PostgreSQL URL such as postgresql://user@host/db"
            )
        return self.database_url


def load(**arguments: Any) -> Settings:
    """Settings from arguments (those that are not None), the environment and the defaults.

    Args:
        arguments: by field name of `Settings`; `schema` for the schema.

    Raises:
        ConfigurationError: one sentence that names every offending setting.
    """
    known = Settings.model_fields.keys() - {"schema_"} | {"schema"}
    unknown = sorted(arguments.keys() - known)
    if unknown:
        raise ConfigurationError(f"there is no setting {', '.join(unknown)}")
    given = {name: value for name, value in arguments.items() if value is not None}
    if "schema" in given:
        given["JOBQ_SCHEMA"] = given.pop("schema")
    try:
        return Settings(**given)
    except ValidationError as error:
        problems = [_problem(dict(detail)) for detail in error.errors()]
        raise ConfigurationError("; ".join(problems)) from None


def parse_address(value: str) -> tuple[str, int]:
    """Host and port of `host:port`; `:8080` listens on loopback, `[::1]:8080` on IPv6.

    Raises:
        ValueError: no valid address.
    """
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{value!r} must be host:port, for example 127.0.0.1:8080")
    return host.strip("[]") or "127.0.0.1", int(port)


def _problem(detail: dict[str, Any]) -> str:
    place = str(detail["loc"][0]) if detail["loc"] else ""
    message = str(detail["msg"]).removeprefix("Value error, ")
    name = place if place.startswith("JOBQ_") else f"JOBQ_{place.upper()}"
    return f"{name}: {message}" if place else message
