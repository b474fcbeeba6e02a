# Each verb makes what it needs; Python 3.11 or newer and make are enough to begin with.

.DEFAULT_GOAL := help
.PHONY: help install demo check test soak test-gpu test-peers bench bench-operator bench-placement bench-model bench-service bench-page clean

working = $(shell for python in python3.11 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo "$$python" && break; done)
PYTHON ?= $(or $(working),python3.11)

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Test files that run at a time: most wait for processes of their own now and then.
WORKERS ?= 0
BENCHMARKS := plans planner-time step even kernels memory overlap peers

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

install: .venv/dev.stamp ## everything that development needs, in .venv

demo: .venv/demo.stamp ## balancer, ranks on real text, dashboard, before and after (ARGS="--pairs 8")
	$(BIN)/libra demo $(ARGS)

check: .venv/dev.stamp ## linter, formatter, both type checkers, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

test: .venv/dev.stamp ## every test that needs no GPU (ARGS="tests/test_corpus.py -k tail", WORKERS=0 for one after the other)
	tests/install-system-packages
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

soak: .venv/dev.stamp ## the long versions of tests, hours (ARGS="tests/test_exactness.py")
	$(BIN)/python -m pytest -m soak $(ARGS)

test-gpu: .venv/dev.stamp ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu $(ARGS)

test-peers: .venv/peers.stamp ## the operator against other projects' attention
	$(BIN)/python -m pytest tests/test_peer_*.py $(ARGS)

bench: bench-operator bench-placement bench-model bench-service bench-page ## the figures in benchmarks/RESULTS.md (ARGS="--quick" only tries it)

bench-operator: .venv/dev.stamp ## the operator's alone (ARGS="--quick", BENCHMARKS="step even")
	@set -e; for name in $(BENCHMARKS); do \
		printf '\n### %s\n\n' "$$name"; \
		case $$name in step) more=--measured ;; *) more= ;; esac; \
		$(BIN)/python benchmarks/attention.py $$name $$more $(ARGS); \
	done

bench-placement: .venv/dev.stamp ## placement's, written into it (ARGS="--quick" only prints)
	$(BIN)/python benchmarks/placement_table.py --write $(ARGS)

bench-model: .venv/dev.stamp ## the cost model's and the loop's, written into it (ARGS="--quick" only prints)
	$(BIN)/python benchmarks/cost_model_table.py --write $(ARGS)
	$(BIN)/python benchmarks/control_loop.py --write $(ARGS)

bench-service: .venv/dev.stamp ## the balancer's under load, written into it (ARGS="--quick", SERVICE="kill ingest")
	$(BIN)/python benchmarks/service.py --write $(SERVICE) $(ARGS)

bench-page: .venv/dev.stamp ## what the dashboard costs a browser, written into it (ARGS="--quick")
	$(BIN)/python benchmarks/dashboard.py --write $(ARGS)

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

.venv/peers.stamp: .venv/dev.stamp
	$(PIP) -e '.[peers]'
	@touch $@
