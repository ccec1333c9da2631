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

# Tests of the aws-lambda pool call functions in an emulator, where there is npm to install it.
.emulator/.ready: packaging/lambda/emulator/package-lock.json
	@mkdir -p .emulator
	@if command -v npm >/dev/null; then sh packaging/lambda/emulator/install.sh .emulator; \
	else echo "no npm: tests with an emulator of Lambda will be skipped"; fi
	@touch $@

demo: setup
	$(BIN)/siafu demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint .emulator/.ready
	$(BIN)/python -m pytest

bench: setup
	$(BIN)/python -m benchmarks.spmm
	$(BIN)/python -m benchmarks.epoch
	$(BIN)/python -m benchmarks.ingest --edges 10000000

clean:
	rm -rf .venv .emulator runs
