# The commands of this project. Each sets up what it needs and does so again only when pyproject.toml or
# constraints.txt change. PYTHON=/path/to/python chooses the interpreter; otherwise the first CPython from 3.11 up
# that really starts is taken.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-bench test-long check test-pythons bench bench-quick clean

# Test processes, and the programs that tests start, would each compile all modules again if no bytecode were kept.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
# Two for each core, because many tests wait: for a lease to expire, for a process to start, for a disk to sync.
PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) '*' 2)
# A process gets tests that stand together, which share what their module sets up, and takes over some of another's
# when it is done.
PYTEST := -m pytest -q -p tests.support.progress -o console_output_style=classic -n $(PROCESSES) --dist worksteal
# More words for the bench, such as BENCH="--engine postgres --only claims --huge" or BENCH=--docs.
BENCH ?=

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: ## Watch jobs being leased, killed, taken over and finished, in under a minute
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	@$(BIN)/holdfast demo

test: ## Run the tests, except the long ones and those of the benchmarks
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	$(BIN)/python $(PYTEST) -m "not long" --ignore tests/bench

test-bench: ## Run the tests of the benchmarks
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	$(BIN)/python $(PYTEST) -m "not long" tests/bench

test-long: ## Run every test, the long ones too
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test
	$(BIN)/python $(PYTEST)

check: ## Check style, types and the direction of imports
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test,check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-pythons: ## Run the tests on every CPython from 3.11 up that really starts here
	@scripts/test-pythons

bench: ## Measure Holdfast beside its peers, in about 40 minutes, on a machine that does nothing else
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test,bench
	@bench/node/install
	@bench/postgres/prepare
	$(BIN)/python -m bench --json bench/results/latest.json $(BENCH)

bench-quick: ## The same at a twentieth of its size, for a first look
	@PYTHON="$(PYTHON)" scripts/prepare $(VENV) test,bench
	@bench/node/install
	@bench/postgres/prepare
	$(BIN)/python -m bench --scale 0.05 --rounds 3 $(BENCH)

clean: ## Remove the environments and all that the tools left behind
	rm -rf $(VENV) .venv-* .bench build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
