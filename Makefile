# Needs git, make and Python 3.11 or newer, and nothing else: everything goes into .venv here.
#
#   make serve     start the service with a database of its own, and show one run
#   make test      all checks and tests
#   make check     the checks alone: format, lint, types, layers, dependencies
#   make format    put the code into the common format
#   make docs      build the documentation as a site, in site/
#   make example   write config.yaml.example anew from the settings' schema
#   make eval      run the evaluation cases against the service and apply the gates
#   make bench     measure the figures that the README states
#   make exact     compare the usage of 500 random runs with what the fake provider has counted,
#                  1,500 runs at once with their limits, and 5,000 posts with their 100 keys
#   make texts     send naughty strings and broken JSON to every place that takes any
#   make burst     post 5,000 runs on 1,000 connections, and see that the rest is refused
#   make races     cancel 1,020 runs at random moments, and look for calls after the receipt
#   make chaos     let everything fail for a minute, and see that what is promised holds
#   make takeovers kill 50 processes, and measure how long their runs stand still
#   make outages   take the database away for 30 s, starve processes, and look for lost runs
#   make crashes   kill processes at every write of a run, by 100,000 seeds, and look for losses
#   make attacks   attack the service under a limit of memory, and print what each attack did
#   make mutants   change the source in 150 places, one at a time; fails if tests notice fewer than 95 %
#   make test-pythons  run the unit tests under each Python from 3.11 to 3.14 that is here
#   make pictures  make the pictures of the README anew, in docs/pictures
#   make sbom      write all dependencies and their hashes to dist/sbom.json, in CycloneDX
#   make audit     ask whether a dependency has a known vulnerability; fails if it cannot ask
#   make clean     remove what these commands made; data/ stays
#
# PYTHON=python3.12 chooses the interpreter that .venv is made with; ARGS="-k budget -x" goes to
# pytest, to the evaluation or to the benchmarks; ARGS="--hypothesis-profile thorough" tries ten
# times as many examples of each property. Tests that are marked as long come last, and are left
# out once TEST_UNTIL (seconds since 1970) has passed: .ci/run sets it 20 minutes ahead.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve test check format docs example eval bench exact texts burst races chaos takeovers outages crashes attacks \
	mutants test-pythons pictures sbom audit clean \
	checked-style checked-types checked-types-of-all checked-layers compiled-tests

VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := $(shell sed -n '/^name = "uv"$$/{n;s/^version = "\(.*\)"$$/\1/p;}' uv.lock)
UV_STAMP := $(VENV)/.uv-$(UV_VERSION)
SYNC_STAMP := $(VENV)/.synced

# The newest interpreter that can make an environment.
ifndef PYTHON
PYTHON := $(shell for each in python3.14 python3.13 python3.12 python3.11 python3; do \
	$$each -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
	>/dev/null 2>&1 && echo $$each && break; done)
endif

export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := $(VENV)
unexport VIRTUAL_ENV PYTHONDONTWRITEBYTECODE

help:
	@sed -n '/^#   make/s/^#   //p' Makefile

serve: $(SYNC_STAMP)
	LOGGING_FORMAT=$${LOGGING_FORMAT:-console} $(BIN)/caseworker serve --demo

test: $(SYNC_STAMP)
	@$(MAKE) --no-print-directory -j 2 $(CHECKS) compiled-tests
	$(BIN)/pytest -n 4 --dist worksteal $(ARGS)

CHECKS := checked-types checked-types-of-all checked-style checked-layers

check: $(SYNC_STAMP)
	@$(MAKE) --no-print-directory -j 2 $(CHECKS)

checked-style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

checked-types:
	$(BIN)/mypy

checked-types-of-all:
	$(BIN)/basedpyright --level error

checked-layers:
	$(BIN)/lint-imports
	$(BIN)/deptry app
	$(BIN)/deptry clients/python --config clients/python/pyproject.toml

# Once, while types are checked, instead of in each process that tests.
compiled-tests:
	-$(BIN)/pytest --collect-only -qq > /dev/null

format: $(SYNC_STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(SYNC_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml $(ARGS)

example: $(SYNC_STAMP)
	$(BIN)/python -m tests.support.config_example > config.yaml.example

# The selection is that of tests/acceptance/test_eval.py, by which `make test` applies the gates.
eval: $(SYNC_STAMP)
	$(BIN)/caseworker eval tests/data/cases/cases.json $(ARGS)

bench: $(SYNC_STAMP)
	$(BIN)/python -m bench $(ARGS)

exact: $(SYNC_STAMP)
	EXACT_RUNS=$${EXACT_RUNS:-500} LIMITED_RUNS=$${LIMITED_RUNS:-1500} IDEMPOTENCY_KEYS=$${IDEMPOTENCY_KEYS:-100} \
		$(BIN)/pytest -q -s --timeout=3600 tests/acceptance/test_exact_usage.py \
		tests/integration/postgres/test_idempotency.py $(ARGS)

texts: $(SYNC_STAMP)
	HOSTILE_TEXTS=all $(BIN)/pytest -q -s tests/acceptance/test_hostile_texts.py $(ARGS)

burst: $(SYNC_STAMP)
	BURST_POSTS=$${BURST_POSTS:-5000} $(BIN)/pytest -q -s tests/acceptance/test_overload.py $(ARGS)

races: $(SYNC_STAMP)
	CANCEL_RACES=$${CANCEL_RACES:-1020} $(BIN)/pytest -q -s tests/acceptance/test_cancel_races.py $(ARGS)

chaos: $(SYNC_STAMP)
	$(BIN)/python -m tests.chaos $(ARGS)

takeovers: $(SYNC_STAMP)
	TAKEOVER_KILLS=$${TAKEOVER_KILLS:-50} $(BIN)/pytest -q -s tests/acceptance/test_takeover_times.py $(ARGS)

outages: $(SYNC_STAMP)
	LONG_OUTAGE=$${LONG_OUTAGE:-30} $(BIN)/pytest -q -s tests/acceptance/test_living_processes.py $(ARGS)

crashes: $(SYNC_STAMP)
	CRASH_SEEDS=$${CRASH_SEEDS:-100000} $(BIN)/pytest -q -n 2 --timeout=0 tests/property/test_crashes.py $(ARGS)

attacks: $(SYNC_STAMP)
	$(BIN)/python -m tests.attacks $(ARGS)

mutants: $(SYNC_STAMP)
	$(BIN)/python -m tests.mutants $(ARGS)

test-pythons: $(SYNC_STAMP)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.support.pythons $(ARGS)
pictures: $(SYNC_STAMP)
	$(BIN)/python -m tests.viewer.pictures $(ARGS)

SBOM := dist/sbom.json

sbom: $(SYNC_STAMP)
	@mkdir -p $(dir $(SBOM))
	$(BIN)/uv export --quiet --locked --no-dev --format cyclonedx1.5 --output-file $(SBOM)

audit: $(SYNC_STAMP)
	@$(BIN)/uv audit --locked $(ARGS) || { \
		echo "The audit found something, or could not be made: its output says which." >&2; exit 1; }

clean:
	rm -rf $(VENV) .venv-pythons dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The target is missing, too, when the interpreter behind it is gone.
$(BIN)/python:
	@test -n "$(PYTHON)" || { \
		echo "No Python 3.11 to 3.14 that can make a virtual environment was found."; \
		echo "On Debian or Ubuntu: apt-get install python3 python3-venv"; \
		echo "Or name one: make PYTHON=/path/to/python3.12"; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make a virtual environment. On Debian or Ubuntu:"; \
		echo "    apt-get install $$(basename $(PYTHON))-venv"; \
		exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

$(UV_STAMP): $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	@touch $@

$(SYNC_STAMP): pyproject.toml clients/python/pyproject.toml uv.lock $(UV_STAMP)
	$(BIN)/uv sync --locked --quiet
	@touch $@
