# The commands of this project. Each prepares its environment, again only after a change of pyproject.toml or
# constraints.txt. PYTHON=/path/to/python selects the interpreter; the default is the first working CPython from 3.11
# up, and of several with the same version that of the system, whose build is usually the fastest.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-cli test-service test-gateway test-browser test-tools test-long check test-pythons bench bench-quick bench-service bench-gateway bench-dashboard clean

# Without bytecode files every test process and every program that a test starts would compile all modules.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
# Four per core, because many tests wait for a lease to expire, a process to start or a disk to sync.
PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) '*' 4)
# A process runs consecutive tests, which share their module's fixtures, and takes tests from others when it is done.
PYTEST := -m pytest -q -p tests.support.progress -o console_output_style=classic -n $(PROCESSES) --dist worksteal
# More arguments for pytest, after all others.
PYTEST_OPTIONS ?=
# In a new checkout, one process compiles the tests and the sources, the latter also as programs that tests start import
# them; otherwise each of the processes would compile all of them.
COMPILE := test -e tests/__pycache__ || { $(BIN)/python -m compileall -q src && $(BIN)/python -m pytest -qq --collect-only >/dev/null; }
# More arguments for the bench, such as BENCH="--engine postgres --only claims --huge" or BENCH=--docs.
BENCH ?=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: ## Watch jobs being leased, killed, taken over and finished (under a minute)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	@$(BIN)/holdfast demo

test: ## Run the tests of the library, except the long ones (about 5 minutes on two cores)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	@$(COMPILE)
	$(BIN)/python $(PYTEST) -m "not long" $(addprefix --ignore tests/,cli service dashboard browser gateway bench harness project type_checks) $(PYTEST_OPTIONS)

test-cli: ## Run the tests of the command line (1 minute)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	$(BIN)/python $(PYTEST) -m "not long" tests/cli $(PYTEST_OPTIONS)

test-service: ## Run the tests of the HTTP service and the dashboard (4 minutes)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	$(BIN)/python $(PYTEST) -m "not long" --over-http tests/service tests/dashboard tests/conformance $(PYTEST_OPTIONS)

test-gateway: ## Run the tests of the model gateway (3 minutes)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	$(BIN)/python $(PYTEST) -m "not long" tests/gateway $(PYTEST_OPTIONS)

test-browser: ## Walk through the dashboard with Chromium (1 minute)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	$(BIN)/python $(PYTEST) -m "not long" tests/browser $(PYTEST_OPTIONS)

test-tools: ## Run the tests of docs, project rules and our own tools: benchmarks, test servers (2 minutes)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	$(BIN)/python $(PYTEST) -m "not long" $(addprefix tests/,bench harness project type_checks) $(PYTEST_OPTIONS)

test-long: ## Run all tests, including the long ones (about 25 minutes)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	$(BIN)/python $(PYTEST) --hypothesis-profile=thorough $(PYTEST_OPTIONS)

check: ## Check style, types and the direction of imports (1 minute)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test,check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-pythons: ## Run the tests on every working CPython from 3.11 up
	@scripts/test-pythons

bench: ## Compare Holdfast with its peers, on an otherwise idle machine (about 25 minutes)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test,bench
	@bench/node/install
	@bench/postgres/prepare
	$(BIN)/python -m bench --json bench/results/latest.json $(BENCH)

bench-quick: ## Run the bench at a twentieth of its size
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test,bench
	@bench/node/install
	@bench/postgres/prepare
	$(BIN)/python -m bench --scale 0.05 --rounds 3 $(BENCH)

bench-service: ## Measure the HTTP service beside an empty handler, on an otherwise idle machine (2 minutes)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test,bench
	$(BIN)/python -m bench.service --json bench/results/service.json $(BENCH)

bench-gateway: ## Measure the model gateway beside direct calls, on an otherwise idle machine (2 minutes)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test,bench
	$(BIN)/python -m bench.gateway --json bench/results/gateway.json $(BENCH)

bench-dashboard: ## Measure the pages of the dashboard at a million jobs, on an otherwise idle machine (3 minutes)
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test,bench
	$(BIN)/python -m bench.dashboard --json bench/results/dashboard.json $(BENCH)

clean: ## Remove environments, caches and build output
	rm -rf $(VENV) .venv-* .bench build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
