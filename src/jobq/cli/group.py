"""How commands end: an error jobq knows is one sentence on standard error and exit code 1."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, NoReturn

import psycopg
import typer
from typer.core import TyperGroup

from jobq import db, logs
from jobq.errors import JobQError

#: What a full disk, a quota or a device that is gone says.
_OF_OUTPUT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


class Commands(TyperGroup):
    """A group of commands whose errors are sentences; usage errors stay click's, with exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line."""
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if error.errno not in _OF_OUTPUT or error.filename is not None:
                raise
            _discard_output()
            sys.exit(f"jobq: standard output cannot be written: {error.strerror}")

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except JobQError as error:
            fail(str(error))
        except psycopg.Error as error:
            fail(_sentence(error))
        except BrokenPipeError:
            # Who read our output has left (`jobq jobs list | head`).
            _discard_output()
            raise typer.Exit(1) from None


def _discard_output() -> None:
    """Send what is still buffered nowhere; Python would complain about it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(sentence: str) -> NoReturn:
    """Say why on standard error and end with 1; passwords in the text are masked.

    Raises:
        typer.Exit: always.
    """
    typer.echo(f"jobq: {logs.mask(sentence.strip())}", err=True)
    raise typer.Exit(1)


def _sentence(error: psycopg.Error) -> str:
    if db.is_unavailable(error):
        return f"{db.unavailable(error)}: {_first_line(error)}"
    return f"PostgreSQL refused: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
