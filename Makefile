# Two commands on a machine with only Python and make: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OUT ?= results/latest

.PHONY: run test test-fast lint types coverage bench docs refs matrix clean

run: $(STAMP)  ## the main job: catalogue -> density -> doubling time -> report
	$(BIN)/densing run --out $(OUT)

test: $(STAMP) lint types  ## everything CI runs
	$(BIN)/python -m pytest -n auto --dist worksteal

test-fast: $(STAMP)  ## tests without browser, notebook and coverage simulations
	$(BIN)/python -m pytest -n auto -m "not slow and not browser"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

coverage: $(STAMP)  ## the coverage simulations at full budget (about an hour on one core)
	DENSING_COVERAGE_BUDGET=full $(BIN)/python -m pytest -m slow -n auto

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
