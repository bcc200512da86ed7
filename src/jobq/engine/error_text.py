"""The text of a failed attempt: every reason in a chain or group of exceptions, then where each was raised."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jobq.payload import MAX_ERROR, clean_text, describe

#: Frames of a traceback that are kept.
MOST_FRAMES = 12
#: Reasons that are listed; a group of a thousand errors says how many more there are.
MOST_REASONS = 40
#: Levels of groups, causes and contexts that are followed.
MOST_LEVELS = 10
#: Notes of one exception that are kept.
MOST_NOTES = 10
#: Bytes of one reason where there are several: a long message must not displace the next.
MAX_REASON = 1024

#: Frames of jobq's own runner say nothing about a handler.
_OWN = str(Path(__file__).parent)


@dataclass(frozen=True)
class _Reason:
    """One line of the text, with the exception it is about (None for a note)."""

    level: int
    label: str
    text: str
    error: BaseException | None = None

    def line(self, limit: int) -> str:
        indent = "  " * self.level
        text = clean_text(self.label + self.text, limit)
        return indent + text.replace("\n", f"\n{indent}  ")


def unwrap(error: BaseException) -> BaseException:
    """The only exception of a group, which a TaskGroup makes even of one; otherwise the exception itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def error_text(error: BaseException) -> str:
    """An exception as people need it at night, in at most `MAX_ERROR` bytes.

    First come the reasons: the exception, its notes, the members of a group, causes and contexts, as
    deep as they are nested. Then come the frames of the handler, those of the outermost exception first.
    Tracebacks are dropped from the exceptions, since their frames hold the handler's locals.
    """
    reasons = list(_reasons(error, 0, "", set()))
    limit = MAX_ERROR if len(reasons) == 1 else MAX_REASON
    lines = [reason.line(limit) for reason in reasons[:MOST_REASONS]]
    if len(reasons) > MOST_REASONS:
        lines.append(f"  and {len(reasons) - MOST_REASONS} more")
    lines += _places(reasons)
    return clean_text("\n".join(lines))


def _reasons(error: BaseException, level: int, label: str, seen: set[int]) -> Iterator[_Reason]:
    """An exception and whatever explains it; each once, though chains may be circular."""
    if id(error) in seen or level > MOST_LEVELS or len(seen) > 4 * MOST_REASONS:
        return
    seen.add(id(error))
    inner = unwrap(error)
    wrapped = inner is not error
    seen.add(id(inner))
    yield _Reason(level, label, describe(inner), inner)
    for one in (inner, error) if wrapped else (error,):
        yield from _explanations(one, level + 1, seen, members=not wrapped)


def _explanations(
    error: BaseException, level: int, seen: set[int], *, members: bool
) -> Iterator[_Reason]:
    for note in _notes(error):
        yield _Reason(level, "note: ", note)
    if members and isinstance(error, BaseExceptionGroup):
        for number, member in enumerate(error.exceptions, 1):
            yield from _reasons(member, level, f"{number}: ", seen)
    if error.__cause__ is not None:
        yield from _reasons(error.__cause__, level, "caused by ", seen)
    elif error.__context__ is not None and not error.__suppress_context__:
        yield from _reasons(error.__context__, level, "while handling ", seen)


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, list | tuple):
        return []
    return [note for note in notes[:MOST_NOTES] if isinstance(note, str)]


def _places(reasons: list[_Reason]) -> Iterator[str]:
    """Where each exception was raised, as far as there is room."""
    shown = 0
    for number, reason in enumerate(reasons):
        error = reason.error
        if error is None:
            continue
        place = _frames(error)
        error.__traceback__ = None
        if not place or shown > MAX_ERROR:
            continue
        shown += len(place)
        if number > 0:
            yield clean_text(f"raised by {reason.text.partition(chr(10))[0]}:", 200)
        yield place


def _frames(error: BaseException) -> str:
    """The last frames of a traceback that are not the engine's own."""
    try:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not frame.filename.startswith(_OWN)]
        return "".join(traceback.format_list(theirs[-MOST_FRAMES:])).rstrip()
    except Exception:  # noqa: BLE001 - a broken source file must not hide the error itself
        return ""
