#!/bin/sh
# Makes .venv and installs into it what requirements.lock pins, and jobq itself. Does nothing, quickly,
# where that is done already. PYTHON=/path/to/python names the Python to use.
set -eu
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/.installed
log=$venv/install.log

say() { printf '%s\n' "$*" >&2; }
base_of() { "$1" -c 'import sys; print(sys.version.split()[0], sys.base_prefix)' </dev/null 2>/dev/null; }

# What .venv was made from. The folder is part of it, for a .venv does not survive being moved.
identity() {
    pwd
    base_of "$venv/bin/python" || echo "no Python"
    cksum <requirements.lock
    cksum <pyproject.toml
}

# Whether the .venv is whole, was made here, and with the Python that is asked for, if one is.
reusable() {
    [ -f "$stamp" ] || return 1
    [ "$(identity | sed 2q)" = "$(sed 2q "$stamp")" ] || return 1
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
    [ "$(identity)" != "$(cat "$stamp")" ] || exit 0
    say "jobq: updating .venv"
else
    python=$(sh scripts/find_python.sh)
    version=$("$python" -c 'import platform; print(platform.python_version())')
    say "jobq: installing into .venv with Python $version, which takes about a minute"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

rm -f "$stamp"
: >"$log"
# A machine's settings for pip and Python that make no sense inside a .venv.
unset PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV PYTHONHOME PYTHONPATH || true
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
run "$venv/bin/python" -m pip install --no-deps --require-hashes -r requirements.lock
run "$venv/bin/python" -m pip install --no-deps --no-build-isolation -e .
identity >"$stamp"
