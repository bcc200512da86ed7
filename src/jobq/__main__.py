"""The `jobq` command; `python -m jobq` is the same."""

import os
import signal
import sys

#: Commands that are asked to stop by a signal, however early it comes.
_SERVICES = ("worker", "api")


def main() -> None:
    """Run the command line. Its import takes most of a second; a service that is stopped meanwhile ends with 0, as nothing runs yet."""
    stops = (signal.SIGTERM, signal.SIGINT) if sys.argv[1:2] in ([s] for s in _SERVICES) else ()
    before = {number: signal.signal(number, lambda *_: os._exit(0)) for number in stops}
    from jobq.cli import app  # noqa: PLC0415 - see above

    for number, handler in before.items():
        signal.signal(number, handler)
    app(prog_name="jobq")


if __name__ == "__main__":
    main()
