# Each target sets up .venv by itself; nothing needs to be installed first.
PYTHON ?= python3
BIN := .venv/bin
# Processes that tests run in, side by side (tests/lanes.py).
LANES ?= 3

.PHONY: demo test test-programs test-oldest lint docs figures bench setup clean

setup: .venv/.ready

# Of the 18,000 files of Python that are installed few are ever loaded: those compile then.
export PYTHONDONTWRITEBYTECODE :=

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
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

PYTEST = $(BIN)/python -m pytest -p tests.lanes -n $(LANES) --dist loadfile --no-loadscope-reorder
# Tests that start or run whole programs: the documents' commands, notebooks, faults, a wheel, mypy,
# Ray, every setting in every engine.
PROGRAMS := tests/unit/launch/test_settings_walk.py $(patsubst %,tests/docs/test_%.py, \
    commands fraud lambda_image notebooks pages types wheel)

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYTEST) $(patsubst %,tests/%,unit property golden parity dynamic docs) $(addprefix --ignore=,$(PROGRAMS))

test-programs: setup .emulator/.ready
	$(PYTEST) tests/faults tests/ray $(PROGRAMS)

# The oldest torch that pyproject.toml promises: import and unit tests, in an environment of its own.
.venv-oldest/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-oldest
	grep -vE '^(torch|triton)==' constraints.txt > .venv-oldest/constraints.txt
	echo 'torch==2.8.0' >> .venv-oldest/constraints.txt
	.venv-oldest/bin/pip install --quiet -c .venv-oldest/constraints.txt torch
	.venv-oldest/bin/pip install --quiet -c .venv-oldest/constraints.txt -e '.[pyg,ray,aws,test]'
	touch $@

test-oldest: .venv-oldest/.ready
	.venv-oldest/bin/python -c 'import siafu, torch; print(torch.__version__, siafu.fit)'
	.venv-oldest/bin/python -m pytest tests/unit

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Figures, plots and the recorded demo of the documents.
figures: setup
	$(BIN)/python -m benchmarks.table
	$(BIN)/python -m benchmarks.terminal

bench: setup
	$(BIN)/python -m benchmarks.spmm
	$(BIN)/python -m benchmarks.epoch
	$(BIN)/python -m benchmarks.ingest --edges 10000000

clean:
	rm -rf .venv .venv-oldest .emulator runs site
