"""`configure`: where the logs of this process go, ours and everybody's."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from jobq.logs import loggers
from jobq.logs.fields import Fields
from jobq.logs.output import has_colors, open_output
from jobq.logs.render import Console, render_json
from jobq.logs.values import text


def configure(
    level: str = "info",
    format: str = "json",  # noqa: A002 - named as the setting JOBQ_LOG_FORMAT is
    *,
    stream: IO[Any] | None = None,
) -> None:
    """Send all logs of this process to standard output; may be called again to change it.

    Args:
        level: debug, info, warning or error.
        format: `json`, one object a line; `console`, aligned text, coloured on a terminal.
        stream: a text or binary stream instead of standard output.
    """
    number = loggers.LEVELS[level]
    output = _Output(number, format, sys.stdout if stream is None else stream)
    _use(output)
    root = logging.getLogger()
    # A plain handler that somebody's basicConfig left would say every line twice.
    replaced = (_StdlibHandler, logging.StreamHandler)
    root.handlers = [handler for handler in root.handlers if type(handler) not in replaced]
    root.addHandler(_StdlibHandler(output))
    root.setLevel(number)
    logging.captureWarnings(True)


def reset() -> None:
    """Undo `configure` (for tests): jobq's events go to the standard library's loggers again."""
    _use(None)
    root = logging.getLogger()
    root.handlers = [h for h in root.handlers if not isinstance(h, _StdlibHandler)]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(False)


@contextmanager
def together() -> Iterator[None]:
    """Write the lines of a batch at its end, by one system call; for code that awaits nothing meanwhile."""
    if _output is None:
        yield
        return
    with _output.together():
        yield


class _Output:
    """Makes loggers, renders their events and writes the lines."""

    def __init__(self, level: int, style: str, stream: IO[Any] | None) -> None:
        self._class = loggers.logger_class(level, loggers.straight)
        self.render: Callable[[Any, str, Fields], bytes] = render_json
        if style == "console":
            self.render = Console(colors=has_colors(stream))
        self._way_out = open_output(stream)
        self.write = self._way_out.write
        self.together = self._way_out.together
        # What structlog calls with a rendered line, by level.
        self.debug = self.info = self.warning = self.error = self.critical = self.write

    def make(self, name: str, fields: Mapping[str, Any]) -> Any:
        """A logger that writes here (see `loggers.Maker`)."""
        return self._class(self, (self.render,), {"logger": name, **fields})

    def close(self) -> None:
        """Give back what was opened; the stream itself stays open."""
        self._way_out.close()


_output: _Output | None = None


def _use(output: _Output | None) -> None:
    global _output
    before, _output = _output, output
    loggers.use(None if output is None else output.make)
    if before is not None:
        before.close()


class _StdlibHandler(logging.Handler):
    """Takes records of the standard library to the same output in the same format."""

    def __init__(self, output: _Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        fields: dict[str, Any] = {"logger": record.name, "event": _message(record)}
        if record.exc_info:
            fields["exc_info"] = record.exc_info
        self._output.write(self._output.render(None, record.levelname.lower(), fields))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except BaseException:  # noqa: BLE001 - arguments that do not fit, or a hostile __str__
        return f"{text(record.msg)} {text(record.args)}"
