# Each target sets up .venv by itself on a machine that has only Python >= 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
JOBS   ?= 2

.PHONY: demo test slow chaos audit lint format clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Tessera needs Python 3.11 or newer." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,all]"
	@touch $@

demo: $(STAMP)           ## the main job, from nothing to a report
	$(BIN)/tessera demo --out demo

test: $(STAMP)           ## the quick tests (a few minutes on 2 cores)
	$(BIN)/python -m pytest -n $(JOBS)

slow: $(STAMP)           ## the long tests, or those of them in TESTS
	$(BIN)/python -m pytest -m slow -n $(JOBS) $(TESTS)

chaos: $(STAMP)          ## kills, corruptions, fuzzed inputs, an attacked explorer: one table (15 minutes on 2 cores)
	$(BIN)/python tools/chaos.py --out chaos.json

audit: $(STAMP)          ## licenses of the dependencies, and their known vulnerabilities where advisories can be reached
	$(BIN)/python tools/audit.py

lint: $(STAMP)           ## style and types
	$(BIN)/ruff check src tests tools
	$(BIN)/ruff format --check src tests tools
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix src tests tools
	$(BIN)/ruff format src tests tools

clean:
	rm -rf $(VENV) demo build dist
