# `make first-light` trains a model and `make test` runs the tests; each first sets up .venv where it must.
PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: first-light test check lint types

first-light: $(INSTALLED)
	$(BIN)/maskzoo train

test: $(INSTALLED)
	$(BIN)/python -m pytest

check: lint types

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(INSTALLED)
	$(BIN)/python scripts/typecheck.py

# Made anew only when pyproject.toml has changed since.
$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --editable '.[dev]'
	touch $@
