# The commands for people and CI; `make help` lists them. They need only Python 3.11 or newer and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
# With the tools of those who change the code. It depends on the first one, so that pip never runs twice at once.
DEVELOPER := $(VENV)/installed-for-developers

# A test run starts dozens of Python processes, which would each compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run chat demo test fast-tests slow-tests test-live matrix soak team-day fuzz check lint bench bench-peers pictures

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

run: $(INSTALLED) ## start everything on this machine; Ctrl-C stops it
	@$(BIN)/turnkeeper up

chat: $(INSTALLED) ## chat in the terminal while it runs; SESSION=<id> continues a session
	@$(BIN)/turnkeeper chat $(if $(SESSION),--session $(SESSION))

demo: $(INSTALLED) ## play a short demo with two crashes: about 20 s, offline
	@$(BIN)/turnkeeper demo

# Three processes for each core, at most eight: tests often wait, but more of them only slow each other down. Files run
# in the order of tests/file_order.py.
TEST_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(min(8, 3 * (os.cpu_count() or 1)))')

# Tests without a server, which never wait.
FAST_TESTS := tests/architecture tests/models turnkeeper/models

test: fast-tests slow-tests ## run the tests

fast-tests: $(DEVELOPER)
	$(BIN)/pytest --numprocesses=auto $(FAST_TESTS)

slow-tests: $(DEVELOPER)
	$(BIN)/pytest --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder $(addprefix --ignore=,$(FAST_TESTS))

test-live: $(DEVELOPER) ## call the real vendors whose key is set; costs a few cents
	$(BIN)/pytest -rs tests/live

# One process for each core: a process of the matrix plays many sessions at once.
matrix: $(DEVELOPER) ## run what `make test` leaves out: every fault of a model's vendor, long sessions, more kills
	$(BIN)/pytest --numprocesses=auto -m wide

# Also SESSIONS, SEED, REPORT=<file>, and BUSY=1, which keeps all cores busy with another program.
MINUTES ?= 3
SESSIONS ?= 10
PEOPLE ?= 10
SEED ?= 1

soak: $(DEVELOPER) ## kill, freeze and disconnect a stack under load, then check it; MINUTES=20 SEED=1 BUSY=1
	@$(BIN)/python -m tests.faults.campaign --minutes $(MINUTES) --sessions $(SESSIONS) --seed $(SEED) \
		$(if $(BUSY),--busy) $(if $(REPORT),--report $(REPORT))

team-day: $(DEVELOPER) ## let three tenants work with keys while services are killed; MINUTES=30 PEOPLE=10
	@$(BIN)/python -m tests.faults.team_day --minutes $(MINUTES) --people $(PEOPLE) --seed $(SEED) \
		$(if $(REPORT),--report $(REPORT))

# Also FUZZ_SEED. FUZZ_PHASES=fuzzing omits the fixed cases that follow from the OpenAPI document.
CASES ?= 20000

fuzz: $(DEVELOPER) ## send generated requests and check every response; CASES=20000
	FUZZ_CASES=$(CASES) $(BIN)/pytest -s tests/fuzz

check: lint fast-tests ## format, lint, types, import contracts and the fast tests: under a minute

lint: $(DEVELOPER)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# ONLY=streaming,turns for some of them; the results of the others stay. The names: .venv/bin/python -m benchmarks --help
bench: $(DEVELOPER) ## run the benchmarks, some 12 minutes; results in benchmarks/RESULTS.md; ONLY=streaming,turns
	@$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY))

# ARGUMENTS='--turns 20 --conversations 1 --print' for a short trial.
bench-peers: $(DEVELOPER) ## run the same work through other libraries, which it installs; results in the same file
	@$(BIN)/python -m benchmarks.peers $(ARGUMENTS)

pictures: $(DEVELOPER) ## take the README's pictures again; needs Chromium
	$(BIN)/python docs/pictures.py

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv --upgrade-deps $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt \
		--editable '.[all]'
# pip compiles on one core, which takes as long as all else. A file that is no valid module is nobody's concern.
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

$(DEVELOPER): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt \
		--editable '.[dev]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@
