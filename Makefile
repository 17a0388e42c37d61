# Each target does its own set-up: a virtual environment in .venv with the exact versions of requirements/*.lock.
# It needs make and a supported CPython with venv (3.11 to 3.14); choose another with `make PYTHON=/path/to/python`.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# What you call python3 when it is supported, else the newest supported one.
SUITS := import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c '$(SUITS)' 2>/dev/null && { echo "$$p"; break; }; done)

# More than cores: tests of whole processes mostly wait for leases and timers to end.
WORKERS ?= 4

IMAGE_TOOL ?= $(shell command -v docker || command -v podman || command -v buildah || echo docker)
IMAGE_BASE ?= docker.io/library/python:3.13-slim-bookworm
IMAGE_TAG ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGE_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench model model-long chart image types chaos lock clean

help: ## What can be made
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile

demo: $(VENV)/.ready ## 200 workflows on three nodes: one is killed, one drains
	@$(BIN)/sojourn demo

test: $(VENV)/.ready ## The whole test suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

chaos: $(VENV)/.ready ## Ten minutes of faults on real processes, judged afterwards
	@$(BIN)/python -m tests.chaos $(CHAOS)

lint: $(VENV)/.ready-lint types ## ruff, mypy --strict, pyright on the public types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p sojourn
	if ls tests/typing/*.py >/dev/null 2>&1; then $(BIN)/mypy tests/typing && $(BIN)/pyright; fi

format: $(VENV)/.ready-lint ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The interpreter for the model's search; a pypy3 is five to ten times faster.
MODEL_PYTHON ?= $(BIN)/python

model: $(VENV)/.ready ## Search the model of the protocol, bounded, and its wrong variants
	$(MODEL_PYTHON) -m tests.model full --states 2500
	$(MODEL_PYTHON) -m tests.model broken --quick

model-long: $(VENV)/.ready ## The same with bounds in seconds, and several faults at once: an hour and a half at most
	$(MODEL_PYTHON) -m tests.model broken --seconds 300
	$(MODEL_PYTHON) -m tests.model full --faults single --seconds 10
	$(MODEL_PYTHON) -m tests.model full --faults several --seconds 4
	$(MODEL_PYTHON) -m tests.model full --faults several --walks 300 --seconds 20

bench: $(VENV)/.ready ## The measurements behind the figures in the docs
	$(BIN)/python -m pytest benchmarks/*_bench.py -m benchmark -s $(PYTEST_ARGS)

chart: $(VENV)/.ready-chart ## The Helm chart and the images: lint, render, validate, scan
	CHART_SCAN=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -o faulthandler_timeout=350 tests/acceptance/test_chart_deploy.py tests/chart $(PYTEST_ARGS)

image: ## Build the container image sojourn:VERSION (IMAGE_BASE, IMAGE_TOOL to choose)
	$(IMAGE_TOOL) build --build-arg BASE=$(IMAGE_BASE) $(IMAGE_ARGS) --tag sojourn:$(IMAGE_TAG) --file Dockerfile .

# A type checker sees the package as it is installed: sojourn with its layers inside (docs/decisions/0002).
types:
	@mkdir -p .types/sojourn
	@for link in .types/sojourn/*; do [ -e "$$link" ] || rm -f "$$link"; done
	@for layer in codecs broker actors cluster examples; do ln -sfn "../../$$layer" ".types/sojourn/$$layer"; done
	@for part in sojourn/*; do \
		case "$$part" in */__pycache__) ;; *) ln -sfn "../../$$part" ".types/$$part";; esac; done

lock: ## Choose the newest allowed versions anew (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --annotation-style line \
		pyproject.toml requirements/build.in --extra dev --extra metrics --group test -o requirements/dev.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --annotation-style line \
		--group lint -c requirements/dev.lock -o requirements/lint.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --annotation-style line \
		--group chart -c requirements/dev.lock -o requirements/chart.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --annotation-style line \
		pyproject.toml requirements/build.in --extra crypto --extra metrics -c requirements/dev.lock -o requirements/image.lock

clean: ## Remove what the other targets made
	rm -rf $(VENV) .types build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .sojourn

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "No supported CPython found (3.11 to 3.14, with venv and ensurepip)." \
		"Install one, or name it: make PYTHON=/path/to/python" >&2; exit 2; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.ready: requirements/dev.lock pyproject.toml | $(VENV)/bin/python
	$(PIP) install --require-hashes -r requirements/dev.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.ready-lint: requirements/lint.lock $(VENV)/.ready
	$(PIP) install --require-hashes -r requirements/lint.lock
	@touch $@

$(VENV)/.ready-chart: requirements/chart.lock $(VENV)/.ready
	$(PIP) install --require-hashes -r requirements/chart.lock
	@touch $@
