#!/bin/sh
# Prints the newest Python on PATH that can make a .venv, or says what to install and fails.
# PYTHON=/path/to/python names the one to use instead.
set -u

say() { printf '%s\n' "$*" >&2; }

# A version manager's shim may be on PATH and fail when it runs: each candidate has to prove itself.
suits() { "$1" -c 'import sys, ssl, zlib; sys.exit(sys.version_info < (3, 11))' </dev/null >/dev/null 2>&1; }
has_venv() { "$1" -c 'import ensurepip, venv' </dev/null >/dev/null 2>&1; }

without_venv=
consider() {
    suits "$1" || return 0
    if has_venv "$1"; then
        printf '%s\n' "$1"
        exit 0
    fi
    without_venv=${without_venv:-$1}
}

if [ -n "${PYTHON:-}" ]; then
    consider "$PYTHON"
else
    for candidate in python3.14 python3.13 python3.12 python3.11 python3; do
        consider "$candidate"
    done
fi

if [ -n "$without_venv" ]; then
    short=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    say "jobq: $without_venv (Python $short) cannot make a .venv: its ensurepip module is missing."
    say "  Debian, Ubuntu: apt-get install python$short-venv"
    say "  Elsewhere: install the package of Python $short that holds ensurepip."
elif [ -n "${PYTHON:-}" ]; then
    say "jobq: PYTHON=$PYTHON is no working Python 3.11 or newer."
else
    say "jobq: found no working Python 3.11 or newer (tried python3.14 to python3.11 and python3)."
    say "  Install one, or name it: make PYTHON=/path/to/python3"
fi
exit 1
