# Everything from a machine with nothing but Python >= 3.11: `make demo`, `make test`, `make lint`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
DEMO_OUT ?= runs/demo
READY := $(VENV)/.ready

.PHONY: demo test unit lint format clean

demo: $(READY)
	$(BIN)/parallel-r1 run tiny --out $(DEMO_OUT)

test: $(READY)
	$(BIN)/python -m pytest -q

unit: $(READY)
	$(BIN)/python -m pytest -q -m "not slow and not browser and not gpu"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch goes first and pinned, so that nothing else pulls another build of it.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist
