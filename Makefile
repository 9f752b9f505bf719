# Everything a person or a CI job needs; `make help` lists it. Only Python 3.11+ and make are expected to be there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help run chat demo test test-live soak fuzz check bench pictures

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

run: $(INSTALLED) ## start everything on this machine; Ctrl-C stops it
	@$(BIN)/turnkeeper up

chat: $(INSTALLED) ## talk to it in the terminal while it runs; SESSION=<id> continues a session
	@$(BIN)/turnkeeper chat $(if $(SESSION),--session $(SESSION))

demo: $(INSTALLED) ## a short story, with crashes, on a stack of its own: about 20 s, offline
	@$(BIN)/turnkeeper demo

# One process more than there are cores, since much of a test is waiting; files as they stand, the long ones early.
TEST_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) + 1))')

# They need no server.
FAST_TESTS := tests/architecture tests/models turnkeeper/models

test: $(INSTALLED) ## run every test
	$(BIN)/pytest --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder

test-live: $(INSTALLED) ## ask real vendors, those whose key is set: a few cents
	$(BIN)/pytest -rs tests/live

# Also SESSIONS, SEED, REPORT=<file>, and BUSY=1, which takes all cores for something else meanwhile.
MINUTES ?= 3
SESSIONS ?= 10
SEED ?= 1

soak: $(INSTALLED) ## kill, freeze and cut off a stack under load, then check it all; MINUTES=20 SEED=1 BUSY=1
	@$(BIN)/python -m tests.faults.campaign --minutes $(MINUTES) --sessions $(SESSIONS) --seed $(SEED) \
		$(if $(BUSY),--busy) $(if $(REPORT),--report $(REPORT))

# Also FUZZ_SEED. Beside CASES there are those that follow from the document alone: FUZZ_PHASES=fuzzing leaves them out.
CASES ?= 20000

fuzz: $(INSTALLED) ## make up requests of all kinds and check every answer; CASES=20000
	FUZZ_CASES=$(CASES) $(BIN)/pytest -s tests/fuzz

check: $(INSTALLED) ## format, lint, types, import contracts and the fast tests: under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --numprocesses=$(TEST_PROCESSES) $(FAST_TESTS)

bench: $(INSTALLED) ## measure, beside the floor; results in benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

pictures: $(INSTALLED) ## take the README's pictures again, of the real page and terminal; needs Chromium
	$(BIN)/python docs/pictures.py

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
