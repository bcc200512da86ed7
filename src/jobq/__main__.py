"""The `jobq` command; `python -m jobq` is the same."""

import os
import signal
import sys

#: Commands that run until a signal; what they print are logs, which may be lost.
_SERVICES = ("worker", "api")


def main() -> None:
    """Run the command line. Its import takes most of a second; a service that is stopped meanwhile ends with 0, as nothing runs yet."""
    service = sys.argv[1:2] in ([name] for name in _SERVICES)
    if sys.stdout is None and not service:
        sys.exit("jobq: standard output is closed: send it somewhere, be it /dev/null")
    _hold_standard_streams()
    stops = (signal.SIGTERM, signal.SIGINT) if service else ()
    before = {number: signal.signal(number, lambda *_: os._exit(0)) for number in stops}
    from jobq.cli import app  # noqa: PLC0415 - see above

    for number, handler in before.items():
        signal.signal(number, handler)
    app(prog_name="jobq")


def _hold_standard_streams() -> None:
    """Leave no standard descriptor closed: a connection would get its number, and what programs of a handler print."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


if __name__ == "__main__":
    main()
