# Podium's few commands. Everything runs from .venv, which is made when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
KERNEL ?= submissions/fp4_gemm/triton_dot_scaled.py

.PHONY: score test check format clean

score: $(VENV)/.installed  ## Submit a shipped kernel, print its table and the leaderboard
	@$(BIN)/podium submit $(KERNEL)
	@$(BIN)/podium board

test: $(VENV)/.developer  ## Every test
	$(BIN)/python -m pytest

check: $(VENV)/.developer  ## Format, lint, types: what CI runs before the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.developer
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Podium needs Python 3.11 or newer: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (torch is large: the first time takes minutes) ..."
	@$(PIP) -e .
	@touch $@

$(VENV)/.developer: $(VENV)/.installed
	@$(PIP) -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache
