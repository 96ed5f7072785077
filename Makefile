# Everything that one does with this repository. `make help` lists it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := $(patsubst %/__init__.py,%,$(wildcard schemas/__init__.py transport/__init__.py replicated_db/__init__.py om_processors/__init__.py \
	datanode_processors/__init__.py producers/__init__.py spark_streaming/__init__.py stratolog/__init__.py))
SOURCES := $(PACKAGES) $(wildcard tests benchmarks examples)
UNIT := $(wildcard tests/unit tests/golden tests/properties tests/simulation tests/model)
INTEGRATION := $(wildcard tests/integration tests/chaos tests/linearizability)
SOURCES += $(wildcard build_tools)
# The versions that the tests have passed with; for one Python, others resolve their own.
LOCK := requirements-dev.lock
LOCKED = $$($(BIN)/python -c 'import sys; print("--constraint $(LOCK)" if sys.version_info[:2] == (3, 11) else "")')
# The stamp's name holds what an install depends on, so it is redone when that changes and never otherwise.
STAMP := $(VENV)/.stratolog-$(shell (cat pyproject.toml $(LOCK) schemas/native.pyx schemas/records/native.pyx spark_streaming/verdicts/native.pyx stratolog/local/poms/*.xml; echo $(PACKAGES)) | cksum | tr ' ' '-')

# Variables of `make demo`: BROKERS=1 or 3; KEEP=1 leaves the stack running; TREE=DIR is what is ingested.
BROKERS ?= 1
KEEP ?=
TREE ?=
# Variable of `make bench-bootstrap`: 0.01 makes everything a hundredth as large.
SCALE ?= 1
# Variable of `make model`: DEEP=1 adds larger bounds, some four minutes and 4 GB.
DEEP ?=
# Variables of `make linearizability`: how many histories, from which seed.
HISTORIES ?= 200
SEED ?= 1
# Variable of `make test-full`: how often each fault is injected.
ROUNDS ?= 10
# Variables of `make simulate`: how many seeds, from which on.
SEEDS ?= 10000
START ?= 1
# Variables of `make chaos`: which faults (names of `python -m tests.chaos.run --list`), how often each, and by which doors three clients write.
FAULT ?= leader-kill leader-pause broker-kill follower-kill client-kill all-brokers node-partition broker-partition \
	full-disk log-corruption sst-bit-flip wal-truncation mixed
TIMES ?= 10
DOORS ?= kafka,direct,both
# Variables of `make mutants`: packages, folders or modules, how many mutants of each (0: all); SEED. BY_LINE=1 tries each on the tests of its line.
PACKAGE ?= transport replicated_db om_processors producers datanode_processors spark_streaming
SAMPLE ?= 25

MAKEFLAGS += --no-print-directory
# Some images set it: then each of the hundreds of processes that the tests start compiles all that it imports, a second of processor time.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help check-tools install lock lint format typecheck unit integration test suite test-full simulate bench bench-datanode bench-bootstrap bench-audit bench-user model mutants linearizability chaos demo audit up down status clean reference docs

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  make demo BROKERS=3 TREE=DIR KEEP=1   three brokers, your own tree, leave the stack running"
	@echo "  make simulate SEEDS=100000 START=1    a night of simulated clusters"
	@echo "  make test-full ROUNDS=20              inject each fault twenty times"
	@echo "  make linearizability HISTORIES=50 SEED=7"
	@echo "  make chaos FAULT=leader-kill TIMES=100   one kind of fault, a hundred times"
	@echo "  make mutants PACKAGE=producers/files SAMPLE=50 SEED=3 BY_LINE=1"

check-tools: ## check that Python >= 3.11, Java >= 17 and Maven are there
	@command -v $(PYTHON) >/dev/null || { echo "error: '$(PYTHON)' not found: install Python 3.11 or newer (or set PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $$($(PYTHON) --version) is too old: Python 3.11 or newer is needed (or set PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || test -x $(BIN)/pip || \
		{ echo "error: $(PYTHON) cannot make virtual environments: install python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys, sysconfig as c; sys.exit(sys.base_prefix != "/usr" and "--enable-optimizations" not in (c.get_config_var("CONFIG_ARGS") or ""))' || \
		echo "note: $(PYTHON) was built without --enable-optimizations; a distribution's Python is a quarter faster" >&2
	@command -v java >/dev/null || { echo "error: 'java' not found: install Java 17 or newer" >&2; exit 1; }
	@java -version 2>&1 | awk -F '"' '/version/ { split($$2, part, /[.-]/); if (part[1] + 0 < 17) exit 1 }' || \
		{ echo "error: $$(java -version 2>&1 | head -n 1) is too old: Java 17 or newer is needed" >&2; exit 1; }
	@command -v mvn >/dev/null || { echo "error: 'mvn' not found: install Maven (it fetches the jars of Kafka and Spark)" >&2; exit 1; }

install: $(STAMP) ## make .venv with the stratolog command in it, and fetch the jars (once)

$(STAMP): | check-tools
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(LOCKED) --editable '.[om,datanode,ui,tracing,spark,dev]'
	$(BIN)/stratolog jars fetch
	@rm -f $(VENV)/.stratolog-*
	@touch $@

lint: install ## ruff: rules and format
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: install ## rewrite the sources in ruff's format
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

typecheck: install ## mypy, strict
	$(BIN)/mypy $(SOURCES)

unit: install ## the fast tests
	$(BIN)/python -m pytest $(UNIT) -m "not slow and not integration"

integration: install ## the tests on a real broker, real RocksDB and real processes
	$(BIN)/python -m pytest $(INTEGRATION) -m "not slow"

# mypy has one thread, so the tests begin beside it.
test: install lint ## lint, typecheck, unit and integration: 8 to 12 minutes on two cores, by their speed
	@$(MAKE) --jobs=2 typecheck suite

# One pytest run, so that its summary speaks for all and comes last. Five workers on two cores, whole files at a time (tests/conftest.py):
# what needs processes is mostly waiting for them. In a clean clone one process compiles the tests first, instead of each worker.
suite: install
	@test -d tests/unit/__pycache__ || $(BIN)/python -m pytest $(INTEGRATION) $(UNIT) --collect-only -qq >/dev/null
	$(BIN)/python -m pytest $(INTEGRATION) $(UNIT) -m "not slow" --numprocesses=5 --dist=loadscope --no-loadscope-reorder

test-full: install lint typecheck ## everything, each fault ROUNDS times, each property on all its examples
	THOROUGH=1 $(BIN)/python -m pytest $(UNIT) $(INTEGRATION) --rounds=$(ROUNDS)

model: ## Spin on the fencing protocol: every state within bounds, and a counterexample for each rule switched off (DEEP=1)
	@$(PYTHON) tests/model/check.py $(if $(filter-out 0,$(DEEP)),--deep)

simulate: install ## whole clusters under faults in one process, SEEDS seeds from START on; the first failure is shrunk and told
	$(BIN)/python -m tests.simulation $(SEEDS) $(START)

linearizability: install ## HISTORIES histories of a real stack under faults, checked (needs Go; SEED)
	$(BIN)/python -m tests.linearizability.campaign --histories $(HISTORIES) --seed $(SEED)

chaos: install ## faults on a real stack by count, everything compared at the end (FAULT, TIMES, DOORS): one JSON line a fault
	$(foreach fault,$(FAULT),$(BIN)/python -m tests.chaos.run --fault $(fault) --times $(TIMES) --doors $(DOORS) &&) true

mutants: install ## do the fast tests notice? SAMPLE mutants of each PACKAGE; survivors are written to survivors.diff (SEED, BY_LINE)
	$(BIN)/python -m pip install --quiet $(LOCKED) --editable '.[mutation]'
	nice $(BIN)/python -m tests.mutation.run $(PACKAGE) --sample $(SAMPLE) --seed $(SEED) $(if $(filter-out 0,$(BY_LINE)),--by-line)

bench: install ## createKey + commitKey at 1 to 4,000 in flight, a million keys, signed requests, 20 failovers: tables, and one JSON object a line
	$(BIN)/python -m benchmarks.om_write --keys 1000000
	$(BIN)/python -m benchmarks.om_write --in-flight 4000 --door kafka direct --auth none signed --turns 6
	$(BIN)/python -m benchmarks.failover --kills 20

bench-datanode: install ## blocks through three datanodes: ways 0 to 3, chain and star, clients, blocks, packets, recovery, leaders, TLS, block tokens: tables, and one JSON object a line
	$(BIN)/python -m benchmarks.datanode
	$(BIN)/python -m benchmarks.datanode --only base clients --wire clear tls --rounds 6
	$(BIN)/python -m benchmarks.block_tokens

bench-bootstrap: install ## a lost disk under write load, full copies, replay, the pause of a snapshot, a restart with ten million keys (SCALE): tables, and one JSON object a line
	$(BIN)/python -m benchmarks.bootstrap --scale $(SCALE)

bench-audit: install ## the running audit: idle, seconds until a verdict, operations/s on one core from a backlog: tables, and one JSON object a line
	$(BIN)/python -m benchmarks.audit

bench-user: install ## small files, lookups, one request, an idle stack, with one broker and with three: a table, and one JSON object a line (BROKERS)
	$(BIN)/python -m benchmarks.user --brokers $(if $(filter file,$(origin BROKERS)),1 3,$(BROKERS))

demo: install ## a real tree through the whole stack, and Spark's verdict (BROKERS, TREE, KEEP)
	$(BIN)/stratolog demo --brokers $(BROKERS) $(if $(filter-out 0,$(KEEP)),--keep) $(if $(TREE),--tree '$(TREE)')

audit: install ## Spark's verdict on the running stack, once
	$(BIN)/stratolog audit --once

up: install ## start the local stack (BROKERS)
	$(BIN)/stratolog up --brokers $(BROKERS)

down: install ## stop the local stack
	$(BIN)/stratolog down

status: install ## what the local stack does
	$(BIN)/stratolog status

# All that pyproject.toml wants, as new as it allows, in an environment of its own; run `make install test` then, before it is committed.
lock: check-tools ## resolve requirements-dev.lock anew (Python 3.11)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "error: the lock is for Python 3.11, not $$($(PYTHON) --version): set PYTHON=python3.11" >&2; exit 1; }
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(PYTHON) -m venv "$$folder/venv" && \
		"$$folder/venv/bin/python" -m pip install --quiet --editable '.[om,datanode,ui,tracing,spark,dev]' && \
		grep '^#' $(LOCK) > "$$folder/lock" && \
		"$$folder/venv/bin/python" -m pip freeze --all --exclude-editable | grep -v '^pip==' >> "$$folder/lock" && \
		cp "$$folder/lock" $(LOCK)

reference: install ## write docs/reference from the code: commands, settings, metrics, schemas, topics
	$(BIN)/python -m build_tools.reference

docs: install ## the site of the documentation, in site/ (SERVE=1: at http://127.0.0.1:8000, following changes)
	$(BIN)/python -m mkdocs $(if $(filter-out 0,$(SERVE)),serve,build --strict)

clean: ## remove what tools and tests leave behind (not .venv, not the cached jars)
	rm -rf build dist site survivors.diff .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	find . -maxdepth 1 -name '*.egg-info' -exec rm -rf {} +
