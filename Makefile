# `make demo` and `make test` do all the set-up themselves: a virtual environment, the pinned packages, then the job.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
DEMO_OUT ?= demo_out
# Two processes with a thread each, a file's tests together: most of a test's time is compiling, on one thread.
SHARED := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile
FAST := not slow and not grid and not soak

.PHONY: demo test lint test-fast test-slow test-grid test-soak test-mappings test-packages mappings-report install clean

demo: $(READY)
	PATH="$(abspath $(BIN)):$$PATH" python samples/demo.py --out $(DEMO_OUT)

# Tests that start ranks come by themselves: two launches at once starve each other.
test: test-fast
	$(BIN)/python -m pytest -m "$(FAST) and multi_process"

test-fast: lint
	$(SHARED) -m "$(FAST) and not multi_process"

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

test-grid: $(READY)
	$(BIN)/python -m pytest -s -m grid

test-soak: $(READY)
	$(BIN)/python -m pytest -s -m soak

test-mappings: $(READY)
	$(BIN)/python tests/mappings/factory.py

test-packages: $(READY)
	$(BIN)/python tests/code/packages/run.py $(PACKAGES)

mappings-report: $(READY)
	$(BIN)/msmigrate api --coverage

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v == (3, 11) else f"msmigrate needs Python 3.11 (MindSpore 2.10 wheels), this is {v[0]}.{v[1]}: call make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) $(DEMO_OUT) build *.egg-info
