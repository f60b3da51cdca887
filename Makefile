# Two commands need nothing before them but a clone, Python 3.11+ and make:
#   make demo    the main job on an embedded Postgres
#   make test    the whole test suite on Postgres 18
# Everything is installed into .venv. Embedded servers live in a temporary directory and are gone afterwards.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LOCK   := requirements/dev.lock
STAMP  := $(VENV)/.installed

EXTRAS := binary embedded asyncpg sqlalchemy django lint mcp otel metrics sentry uvloop nats redis
# Workers of the parallel test run, each with a Postgres of its own; one more than two cores, for many tests wait.
JOBS   ?= 3
PYTEST := $(BIN)/python -m pytest -n $(JOBS)

# Where it is set, every process compiles every test anew, and there are three in each of two runs.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-system test-partitioned check format bench bench-quick bench-observability docs lock wheel clean faults mutations soak

help: ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv from the lock file (idempotent)

$(STAMP): $(LOCK) pyproject.toml scripts/setup
	@PYTHON="$(PYTHON)" sh scripts/setup "$(VENV)" "$(LOCK)"
	@touch $@

demo: setup ## the main job on an embedded Postgres
	@$(BIN)/spectral demo

test: setup ## the whole test suite on Postgres 18 (from a wheel)
	$(PYTEST) tests

# What speaks SQL is tested on both; how it is used, by real processes and under faults, on one version.
test-system: setup ## the tests of the schema and of what reads it on the system's Postgres (Debian: 15)
	SPECTRAL_TEST_POSTGRES=system $(PYTEST) -m database tests/migrations tests/conformance \
	  --ignore=tests/conformance/delivery tests/integration --ignore=tests/integration/delivery \
	  --ignore=tests/integration/relay --ignore=tests/integration/agent_tasks \
	  --deselect=tests/integration/test_dead_letters_million.py

test-partitioned: setup ## the functions, the flow and the sweep once more, on monthly partitions
	SPECTRAL_TEST_LAYOUT=partitioned $(PYTEST) tests/migrations tests/integration/delivery tests/integration/test_retention_sweep.py

faults: setup ## the fault tests: real processes, real signals, a real Postgres
	$(PYTEST) tests/faults

mutations: setup ## take out each rule of the protocol; a fault test must notice
	$(BIN)/python -m tests.faults.mutations $(ONLY)

soak: setup ## the nemesis for SECONDS=600 (from SEED=... to repeat one)
	$(BIN)/python -m tests.faults.nemesis --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

check: setup ## format, lint, types, import law, SQL lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/spectral migrate lint supabase/migrations src/spectral/platform/migrations src/spectral/worlds/migrations

format: setup ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## ours, the peers and the floor in one run (25 minutes; ONLY=drain-noop,latency for some of it)
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-quick: setup ## the same in two minutes: ours, the floor and the two fastest peers
	$(BIN)/python -m benchmarks --quick $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-observability: setup ## what logs, traces and metrics cost a busy worker, by turns with none (ROUNDS=1 ONLY=order,upsert)
	$(BIN)/python -m benchmarks.observability $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(EVENTS),--events $(EVENTS)) $(if $(ONLY),--only $(ONLY))

docs: setup ## rewrite the generated reference pages and the event catalogue
	$(BIN)/python -m docs.generate
	$(BIN)/spectral catalog build

lock: setup ## resolve the dependencies anew into the lock file
	$(BIN)/python -m pip install --quiet "uv>=0.5"
	$(BIN)/uv pip compile pyproject.toml $(EXTRAS:%=--extra %) --group dev --universal --python-version 3.11 \
	  --generate-hashes --upgrade --custom-compile-command "make lock" --quiet -o $(LOCK)

wheel: setup ## build the distribution into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## remove everything that make created
	rm -rf $(VENV) .cache dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
