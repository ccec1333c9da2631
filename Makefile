# Each target sets up .venv by itself; nothing needs to be installed first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench setup clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/siafu demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

bench: setup
	$(BIN)/python -m benchmarks.spmm
	$(BIN)/python -m benchmarks.epoch
	$(BIN)/python -m benchmarks.ingest --edges 10000000

clean:
	rm -rf .venv runs
