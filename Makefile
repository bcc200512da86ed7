# jobq. `make help` lists the targets. GNU make 3.81 will do.

SHELL = /bin/sh
BIN = .venv/bin

# PYTHON=    the Python to make .venv with; without it the newest suitable one on PATH
PYTHON ?=
# TESTS=     what to test, as for pytest: TESTS=tests/test_embedded.py
TESTS ?=
# PYTEST_ARGS= further options for pytest: PYTEST_ARGS='-x -k claim'
PYTEST_ARGS ?=
# PYTEST_PROCESSES= how many run tests at a time; most tests wait for the database, not for a core
PYTEST_PROCESSES ?= 4
# PGBIN=     the PostgreSQL binaries to test with instead of the embedded ones
PGBIN ?=
# PG15BIN=   where `test-pg15` looks for a PostgreSQL 15 server
PG15BIN ?= /usr/lib/postgresql/15/bin
# ONLY=      the one benchmark to run, or how the names of several begin
ONLY ?=

# How `make lock` writes: one lock for all platforms and Pythons, no word about an index.
LOCK = --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate -q

.DEFAULT_GOAL := help
.PHONY: help install install-dev dev demo test test-pg15 check format bench bench-peers docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

install: ## .venv with jobq and what it needs to run (requirements.lock)
	@PYTHON='$(PYTHON)' sh scripts/install.sh

install-dev: ## the same and the tools to test, check and measure (requirements-dev.lock)
	@PYTHON='$(PYTHON)' sh scripts/install.sh dev

dev: install ## embedded PostgreSQL, API and a worker on http://127.0.0.1:8080
	@$(BIN)/jobq dev

demo: install ## a session with a running `make dev`
	@$(BIN)/jobq demo

test: install-dev ## the whole test suite (TESTS=, PYTEST_ARGS=, PGBIN=)
	@JOBQ_TEST_PGBIN='$(PGBIN)' $(BIN)/python -m pytest -n $(PYTEST_PROCESSES) --cov=jobq $(PYTEST_ARGS) $(TESTS)

test-pg15: install-dev ## the same against PostgreSQL 15 where it is installed, with ids above 2^31
	@if test -x '$(PG15BIN)/postgres'; then \
		JOBQ_TEST_PGBIN='$(PG15BIN)' JOBQ_TEST_FIRST_ID=3000000000 $(BIN)/python -m pytest -n $(PYTEST_PROCESSES) $(PYTEST_ARGS) $(TESTS); \
	else \
		echo 'test-pg15: SKIPPED, no PostgreSQL 15 server in $(PG15BIN) (PG15BIN= names another folder)'; \
	fi

check: install-dev ## format, lint, types, layers, sizes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_size.py

format: install-dev ## let ruff format and repair what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install-dev ## benchmarks beside their budgets (ONLY=name runs one)
	@$(BIN)/jobq bench $(if $(ONLY),--only $(ONLY))

bench-peers: install-dev ## the same loads on other queues, which it installs (ONLY=name)
	@$(BIN)/python bench/peers $(ONLY)

docs: install-dev ## check the pages: their links, examples and names
	@$(BIN)/python -m pytest $(PYTEST_ARGS) tests/docs

lock: install-dev ## resolve both locks anew (needs uv)
	uv pip compile pyproject.toml --extra build --upgrade $(LOCK) -o requirements.lock
	uv pip compile pyproject.toml --extra build --extra dev -c requirements.lock --upgrade $(LOCK) -o requirements-dev.lock

clean: ## remove the data of `make dev` and all caches; .venv stays
	@if test -d .jobq; then PYTHON='$(PYTHON)' sh scripts/install.sh && $(BIN)/python scripts/clean.py; fi
	@rm -rf .jobq .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov build dist
	@find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
