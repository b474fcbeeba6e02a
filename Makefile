# Each verb makes what it needs; Python 3.11 or newer and make are enough to begin with.

.DEFAULT_GOAL := help
.PHONY: help install demo check test test-gpu bench clean

working = $(shell for python in python3.11 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo "$$python" && break; done)
PYTHON ?= $(or $(working),python3.11)

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
BENCHMARKS := $(sort $(wildcard benchmarks/bench_*.py))

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

install: .venv/dev.stamp ## everything that development needs, in .venv

demo: .venv/demo.stamp ## balancer, ranks on real text, dashboard, before and after (ARGS="--pairs 8")
	$(BIN)/libra demo $(ARGS)

check: .venv/dev.stamp ## linter, formatter, both type checkers, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

test: .venv/dev.stamp ## every test that needs no GPU (ARGS="tests/test_corpus.py -k tail")
	tests/install-system-packages
	$(BIN)/python -m pytest $(ARGS)

test-gpu: .venv/dev.stamp ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu $(ARGS)

bench: .venv/dev.stamp ## the operator's figures in benchmarks/RESULTS.md
	$(if $(BENCHMARKS),,@echo "no benchmarks/bench_*.py here")
	@set -e; for benchmark in $(BENCHMARKS); do $(BIN)/python "$$benchmark"; done

clean: ## remove .venv and the caches
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

.venv/python.stamp:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/demo.stamp: .venv/python.stamp pyproject.toml constraints.txt
	$(PIP) -e '.[demo]'
	@touch $@

.venv/dev.stamp: .venv/python.stamp pyproject.toml constraints.txt
	$(PIP) -e '.[dev]'
	@touch $@
