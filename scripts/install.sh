#!/bin/sh
# Makes .venv and installs what a lock names, and jobq itself; nothing else. Does nothing, quickly, where that is done.
#   sh scripts/install.sh        requirements.lock: what jobq needs to run
#   sh scripts/install.sh dev    requirements-dev.lock: the same and what testing, checking and measuring need
# PYTHON=/path/to/python names the Python to use.
set -eu
cd "$(dirname "$0")/.."

venv=.venv
log=$venv/install.log
case "${1:-}" in
dev) lock=requirements-dev.lock ;;
*) lock=requirements.lock ;;
esac

say() { printf '%s\n' "$*" >&2; }
base_of() { "$1" -c 'import sys; print(sys.version.split()[0], sys.base_prefix)' </dev/null 2>/dev/null; }

# What .venv was made from. The folder is part of it, because a .venv does not survive a move.
identity() {
    pwd
    base_of "$venv/bin/python" || echo "no Python"
    cksum <"$1"
    cksum <pyproject.toml
}

# A lock was installed when its stamp holds the identity. The larger lock contains the smaller one.
installed() {
    for stamp in "$venv/.$lock" "$venv/.requirements-dev.lock"; do
        [ -f "$stamp" ] && [ "$(identity "${stamp#"$venv/."}")" = "$(cat "$stamp")" ] && return 0
    done
    return 1
}

# Whether .venv was made here, and with the requested Python if one was named.
reusable() {
    [ -f "$venv/.made" ] || return 1
    [ "$(identity "$lock" | sed 2q)" = "$(cat "$venv/.made")" ] || return 1
    [ -z "${PYTHON:-}" ] || [ "$(base_of "$PYTHON")" = "$(base_of "$venv/bin/python")" ]
}

run() {
    if ! "$@" >>"$log" 2>&1; then
        tail -n 25 "$log" >&2
        say "jobq: installing failed ($log): $*"
        exit 1
    fi
}

if reusable; then
    ! installed || exit 0
    say "jobq: updating .venv from $lock"
else
    python=$(sh scripts/find_python.sh)
    version=$("$python" -c 'import platform; print(platform.python_version())')
    say "jobq: installing into .venv with Python $version, which takes about a minute"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    identity "$lock" | sed 2q >"$venv/.made"
fi

rm -f "$venv/.$lock"
: >"$log"
# Settings of this machine's pip and Python that make no sense inside a .venv.
unset PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV PYTHONHOME PYTHONPATH || true
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# --no-deps: pip must resolve nothing. It would look the extras of locked packages up anew, and an index may offer
# releases younger than the lock. `pip check` proves that the lock lacks nothing.
run "$venv/bin/python" -m pip install --no-deps --require-hashes -r "$lock"
run "$venv/bin/python" -m pip install --no-deps --no-build-isolation -e .
run "$venv/bin/python" -m pip check
identity "$lock" >"$venv/.$lock"
