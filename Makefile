# `make` alone prints what there is. Everything runs in .venv, which `make setup` creates and every target brings up to date.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONSOLE := src/fencepost/server/http/console/vendor/htmx.min.js
KERNEL := $(wildcard src/fencepost/kernel/*.pyx src/fencepost/kernel/*.pxi src/fencepost/kernel/*.h)

# The first Python that is new enough; PYTHON=/path/to/python chooses another.
PYTHON ?= $(shell for python in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	command -v $$python >/dev/null 2>&1 || continue; \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)

CHECK_PYTHON = test -n "$(PYTHON)" || { \
	echo "make: Python 3.11 or newer is needed, none was found (PYTHON=/path/to/python names one)" >&2; exit 1; }

# Where Java and Maven are missing, `FENCEPOST_ALLOW_SKIP=1 make test` runs the rest; never in CI, and without the floors.
SKIP_KAFKA := $(if $(filter true,$(CI)),,$(filter 1,$(FENCEPOST_ALLOW_SKIP)))
PYTEST := $(BIN)/python -m pytest
# One file is one worker's, the slow files first; lines instead of dots, and at the end the commands that repeat failures.
RUN = $(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder --progress -rN
# Any of these does for the tests of the console.
CHROMIUM := $(or $(shell command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable),chromium)
# Three for each core of a small machine, since tests also wait for timeouts and for other processes.
WORKERS ?= 6

# Tests start thousands of Python processes. Some machines tell Python to write no bytecode: each process would then
# compile what it imports anew, which is a third of all CPU time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-long soak hostile access lint docs bench bench-check matrix sanitize dist smoke clean tools compiled style types check-tests test-tests

help:  ## this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) $(CONSOLE)  ## the set-up alone, into .venv in this checkout

$(STAMP): pyproject.toml setup.py $(KERNEL)
	@$(CHECK_PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "make: $(PYTHON) cannot create $(VENV): install its venv module (Debian: python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group dev -e .
	@touch $@

# The build above has fetched them already. If it could not, this says why; the next `make` tries again.
$(CONSOLE): packaging/console/package-lock.json packaging/build_backend.py | $(STAMP)
	@$(BIN)/python packaging/build_backend.py
	@test ! -e $@ || touch $@

demo: setup  ## set-up and the story in a minute: server and Spark job killed, a writer replaced, and the counts
	@$(BIN)/fencepost demo $(ARGS)

check: setup  ## before each commit: lint, types, unit and model tests
	@$(MAKE) --no-print-directory style
	@$(MAKE) --no-print-directory -j2 types check-tests

test: tools  ## set-up, lint and every promise once (WORKERS=6 processes)
	@$(MAKE) --no-print-directory style
	@$(MAKE) --no-print-directory -j2 types test-tests

# Few workers: these tests wait for nothing, and every worker has to load all of them.
check-tests: compiled
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder --progress -rN tests/unit tests/model -m "not long and not soak" $(ARGS)

test-tests: compiled
	$(RUN) --share-spark -m "not long and not soak" $(if $(SKIP_KAFKA),,--floors test) $(ARGS)

test-long: tools setup  ## what `make test` leaves out: every kill point, every client with every login
	$(RUN) -m "long and not soak" $(if $(SKIP_KAFKA),,--floors test-long) $(ARGS)

soak: tools setup  ## thousands of kills, hours
	$(PYTEST) -m soak -s $(ARGS)
	FENCEPOST_EXAMPLES=3 $(PYTEST) tests/model tests/fault/test_use_cases.py tests/fault/test_own_producer.py

hostile: setup  ## the attacks in full, and the table of what a bystander felt
	$(PYTEST) tests/hostile -m hostile --long-attacks $(ARGS)

access: tools setup  ## the authorisation matrix: who may do what, on our server and on Apache Kafka
	$(PYTEST) tests/integration/test_authorization.py -k answer_alike --access-matrix $(ARGS)

lint: style types  ## ruff, mypy and the import contracts

style: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# `make check` and `make test` do this beside the tests: mypy needs one core, and the tests wait for it no longer.
types: setup
	$(BIN)/mypy
	$(BIN)/lint-imports

# In a new checkout every worker would otherwise compile every test module.
compiled: setup
	@test -d tests/unit/__pycache__ || $(PYTEST) --collect-only -qq >/dev/null 2>&1 || true

docs: setup  ## the documentation as a site, into build/site; fails on warnings
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: tools setup  ## measure against Apache Kafka and other clients, into bench/results
	$(BIN)/python -m bench $(or $(ARGS),server)

bench-check: setup  ## is this checkout slower than another commit? Ten minutes (ARGS="COMMIT --reps 5")
	$(BIN)/python -m bench.check $(ARGS)

matrix: tools setup  ## which PySpark can do what: smoke tests on each version, into docs/spark.md
	$(BIN)/python -m tools.matrix $(ARGS)

sanitize: setup  ## the compiled kernel under AddressSanitizer, with malformed input and a fuzzer
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/fuzz/run.sh

# It needs a compiler; pip gets the build requirements, into environments of their own.
dist:  ## source distribution, and a wheel made of it, into dist
	@$(CHECK_PYTHON)
	@rm -rf dist build/dist && $(PYTHON) -m venv build/dist
	@build/dist/bin/python -m pip install --quiet --disable-pip-version-check 'build>=1.2'
	@build/dist/bin/python -m build --outdir dist >build/dist/log 2>&1 || { cat build/dist/log >&2; exit 1; }
	@ls dist/*

smoke: setup  ## the wheel in empty environments, with every Python from 3.11 on that is found here; names those that are not
	$(PYTEST) tests/integration/test_packaging.py -m "soak or not soak" -rs $(ARGS)

clean:  ## remove what was built; .venv stays, and is brought up to date by the next target
	rm -rf build dist .work .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis $(STAMP)
	rm -rf src/fencepost/server/http/console/vendor
	rm -f src/fencepost/kernel/_batch.c src/fencepost/kernel/_batch.*.so
	find src tests bench examples -name __pycache__ -prune -exec rm -rf {} +

# On Debian and as root (a container, continuous integration) the browser is installed; elsewhere a line says what to do.
tools:
	@$(CHECK_PYTHON)
	@test -n "$(SKIP_KAFKA)" || { \
		need="tests with a real Apache Kafka need"; \
		skip=$(if $(filter true,$(CI)),,'; FENCEPOST_ALLOW_SKIP=1 goes without them'); \
		java=$$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
		test "$${java:-0}" -ge 17 || { echo "make: $$need Java 17 or newer (Debian: openjdk-17-jdk-headless)$$skip" >&2; exit 1; }; \
		command -v mvn >/dev/null || { echo "make: $$need Maven (Debian: maven)$$skip" >&2; exit 1; }; \
		want=; command -v $(CHROMIUM) >/dev/null || want=chromium; \
		test -z "$$want" || test "$$(id -u)" -ne 0 || ! command -v apt-get >/dev/null || { \
			echo "make: installing $$(echo $$want) for the tests of the console"; \
			{ apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$want; } >/dev/null 2>&1 || true; }; \
		for tool in $$want; do command -v $$tool >/dev/null || { \
			echo "make: tests of the console need $$tool (Debian: $$tool)$$skip" >&2; exit 1; }; done; }
