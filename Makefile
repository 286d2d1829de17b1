# Needs git, make and Python 3.11 or newer, and nothing else: everything goes into .venv here.
#
#   make serve     start the service with a database of its own, and show one run
#   make quick     format, lint, layers and unit tests, in less than a minute: for the edit loop
#   make test      all checks, and tests that prove every requirement and guarantee once
#   make proofs    the long proofs: thousands of seeds, chaos, attacks, outages, releases
#   make guard     exact usage, races of cancels, 2,000 crash seeds, a minute of chaos: for
#                  changes of the engine, the journal or the recovery; also make exact, races,
#                  crashes, takeovers by themselves
#   make check     the checks alone: format, lint, types, layers, dependencies
#   make format    put the code into the common format
#   make docs      build the documentation as a site, in site/
#   make example   write config.yaml.example, the tables of gateway.md and problems.md
#   make eval      run the evaluation cases against the service and apply the gates
#   make bench     measure the figures of docs/benchmarks.md
#   make chaos     let everything fail for a minute and check every promise
#   make attacks   attack the service under a memory limit and print the effect of each attack
#   make mutants   break the source in 150 places; fails if the tests notice fewer than 90 %
#   make image-check  build the image, start the Compose files, stop and kill their workers; needs
#                  Docker or Podman with Compose
#   make test-pythons  run the unit tests under each installed Python from 3.11 to 3.14
#   make pictures  take the screenshots of docs/pictures
#   make dist      build the wheels and source archives of the service, cases and the client, in dist/
#   make sbom      write all dependencies and their hashes to dist/sbom.json, in CycloneDX
#   make audit     check all dependencies for known vulnerabilities; fails without an answer
#   make clean     remove the output of these commands; data/ stays
#
# PYTHON=python3.12 chooses the interpreter of .venv. ARGS="-k budget -x" goes to pytest, to the
# evaluation or to the benchmarks: make proofs ARGS="-k crashes" runs one kind of proof.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve quick test proofs check format docs example eval bench chaos attacks \
	mutants image-check test-pythons pictures dist sbom audit clean \
	guard exact races crashes takeovers \
	checked-style checked-types checked-types-of-all checked-layers checked-words

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
	@exec env LOGGING_FORMAT=$${LOGGING_FORMAT:-console} $(BIN)/caseworker serve --demo

quick: $(SYNC_STAMP)
	@$(MAKE) --no-print-directory checked-style
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n 2 --dist worksteal tests/unit tests/architecture $(ARGS)

test: $(SYNC_STAMP)
	@$(MAKE) --no-print-directory -j 2 $(CHECKS)
	$(BIN)/pytest -n 3 --dist worksteal $(ARGS)

# Hypothesis draws new examples here; a failure prints the lines that repeat it. The last lines
# name the seeds that were drawn.
proofs: $(SYNC_STAMP)
	$(BIN)/pytest -n 2 --dist worksteal --timeout 7200 -m "proof or hypothesis" --hypothesis-profile proofs $(ARGS)

PROOF = $(BIN)/pytest -q -n 2 --dist worksteal --timeout 7200 -m proof
EXACT := tests/acceptance/test_exact_usage.py
RACES := tests/acceptance/test_cancel_races.py tests/integration/postgres/test_early_cancel_interleavings.py \
	tests/integration/postgres/test_idempotency.py
CRASHES := tests/property/test_crashes.py

guard: $(SYNC_STAMP)
	$(PROOF) $(EXACT) $(RACES) $(CRASHES)
	$(BIN)/python -m tests.chaos $(ARGS)

exact: $(SYNC_STAMP)
	$(PROOF) $(EXACT) $(ARGS)

races: $(SYNC_STAMP)
	$(PROOF) $(RACES) $(ARGS)

crashes: $(SYNC_STAMP)
	$(PROOF) $(CRASHES) $(ARGS)

takeovers: $(SYNC_STAMP)
	$(PROOF) tests/acceptance/test_takeover_times.py $(ARGS)

CHECKS := checked-types checked-types-of-all checked-style checked-layers checked-words

check: $(SYNC_STAMP)
	@$(MAKE) --no-print-directory -j 2 $(CHECKS)

checked-style:
	@{ $(BIN)/ruff format --check . && $(BIN)/ruff check .; } || { \
		echo 'Run `make format`; fix by hand what it still reports.' >&2; exit 1; }

checked-types:
	$(BIN)/mypy

checked-types-of-all:
	$(BIN)/basedpyright --level error

checked-layers:
	$(BIN)/lint-imports
	$(BIN)/deptry app/caseworker
	$(BIN)/deptry app/caseworker_cases --config app/caseworker_cases/pyproject.toml
	$(BIN)/deptry clients/python --config clients/python/pyproject.toml

checked-words:
	$(BIN)/python -m tests.register

format: $(SYNC_STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(SYNC_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml $(ARGS)

example: $(SYNC_STAMP)
	$(BIN)/python -m tests.support.config_example > config.yaml.example
	$(BIN)/python -m tests.support.fields_page
	$(BIN)/python -m tests.support.problems_page

# The selection is that of tests/acceptance/test_eval.py, by which `make test` applies the gates.
eval: $(SYNC_STAMP)
	$(BIN)/caseworker eval tests/data/cases/cases.json $(ARGS)

bench: $(SYNC_STAMP)
	$(BIN)/python -m bench $(ARGS)

chaos: $(SYNC_STAMP)
	$(BIN)/python -m tests.chaos $(ARGS)

attacks: $(SYNC_STAMP)
	$(BIN)/python -m tests.attacks $(ARGS)

mutants: $(SYNC_STAMP)
	$(BIN)/python -m tests.mutants $(ARGS)

image-check: $(SYNC_STAMP)
	@$(BIN)/python -m tests.image

test-pythons: $(SYNC_STAMP)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.support.pythons $(ARGS)
pictures: $(SYNC_STAMP)
	$(BIN)/python -m tests.viewer.pictures $(ARGS)

dist: $(SYNC_STAMP)
	$(BIN)/uv build --quiet --all-packages --out-dir dist

SBOM := dist/sbom.json

sbom: $(SYNC_STAMP)
	@mkdir -p $(dir $(SBOM))
	$(BIN)/uv export --quiet --locked --all-extras --no-dev --format cyclonedx1.5 --output-file $(SBOM)

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
	@$(PYTHON) -m venv --clear $(VENV)

$(UV_STAMP): $(BIN)/python
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null || { \
		echo "$(VENV) has no pip. Remove it with \`rm -rf $(VENV)\`, and run make again."; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	@touch $@

MEMBERS := app/caseworker_cases/pyproject.toml clients/python/pyproject.toml

$(SYNC_STAMP): pyproject.toml $(MEMBERS) uv.lock $(UV_STAMP)
	@echo "Installing into $(VENV) ..."
	@$(BIN)/uv sync --locked --all-extras --inexact --quiet
	@touch $@
