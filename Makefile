# Every target that needs Python makes .venv and installs by itself. Run `make` for the list.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
CANDIDATES = $(if $(PYTHON),$(PYTHON),python3 python3.11 python3.12 python3.13 python3.14 python)
# pytest's workers: a number, or `auto`. Tests wait for servers and for other processes about as long as they compute, so
# that is more than one a core; what only computes gets one a core.
JOBS ?= auto
CORES := $(shell getconf _NPROCESSORS_ONLN)
export PYTEST_XDIST_AUTO_NUM_WORKERS ?= $(shell expr $(CORES) + 3)
# A test of the inner loop waits for commands and threads that it started: one process more than cores keeps these busy.
check: export PYTEST_XDIST_AUTO_NUM_WORKERS = $(shell expr $(CORES) + 1)
test-interpreters: export PYTEST_XDIST_AUTO_NUM_WORKERS = $(CORES)
ARGS ?=

# Without it `python -c` and `python -m` put the root on sys.path, and our avro/ and streams/ become importable.
export PYTHONSAFEPATH := 1
# Hundreds of tests start processes: without bytecode on the disk each would compile all of refold anew.
unexport PYTHONDONTWRITEBYTECODE

# The native kernel, where it can be built.
NATIVE = $(if $(shell command -v cargo),$(VENV)/.installed-kernel)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo kafka kernel check test suite kernel-properties test-kernel test-interpreters test-faults fuzz record-faults bench soak docs pictures looks lint format clean

help: ## this list
	@echo 'refold: start with `make demo`; while you work, `make check`; before you push, `make test`.'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'The first run makes .venv with Python 3.11 or newer and installs into it; later runs start at once.'
	@echo 'Add PYTHON=/path/to/python3 to choose the interpreter, and ARGS="..." for the command behind a target:'
	@echo '  make test ARGS="-k cut -x"'

demo: $(VENV)/.installed ## see it work: the main job, end to end, on the embedded log
	@$(BIN)/refold demo $(ARGS)

kafka: $(VENV)/.installed-dev ## run a real Apache Kafka in the foreground, to try refold on (needs Java 17 and Maven)
	@$(BIN)/python -m refold.testing.kafka $(ARGS)

kernel: $(VENV)/.installed-kernel ## build the native kernel into .venv, and use it from then on (needs Rust's cargo)

check: lint ## for the inner loop: lint, types, and every test that starts no server and kills no process
	@.ci/in_memory $(BIN)/pytest -q -n $(JOBS) --dist loadgroup -m inner $(ARGS)

test: lint ## what CI runs: lint, then every test, the fault tests in their short form
	@$(MAKE) --no-print-directory suite

suite: $(VENV)/.installed-dev $(VENV)-adk/.installed ## every test without lint; ARGS="--durations=20" ends with the costs of each file
	@.ci/in_memory $(BIN)/pytest -n $(JOBS) --dist loadgroup $(ARGS)

# A shim of pyenv's fails for a version that is not chosen: then the interpreter itself is looked for.
test-interpreters: $(VENV)/.installed-dev ## the tests of codec, fold and recorder on each other Python from 3.11 to 3.13 that is here
	@own=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	for version in 3.11 3.12 3.13; do \
	    test $$version != $$own || continue; \
	    found=; \
	    for python in "python$$version" "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python; do \
	        "$$python" -c 'import ensurepip, venv' 2>/dev/null && found=$$python && break; \
	    done; \
	    if test -z "$$found"; then echo "Python $$version is not here: left out."; continue; fi; \
	    echo "Python $$version: the tests of codec, fold and recorder"; \
	    $(MAKE) --no-print-directory $(VENV)-$$version/.installed-test INTERPRETER="$$found" || exit 1; \
	    $(VENV)-$$version/bin/pytest -q -n $(JOBS) --hypothesis-profile=brief -m inner \
	        tests/avro tests/reducers tests/agents/recorder $(ARGS) || exit 1; \
	done

# The comparison with Python, and what folds: the embedded log, workers on Kafka, standbys.
KERNEL_TESTS = tests/kernel tests/streams/file_log tests/streams/test_verify.py \
    tests/streams/worker/test_fold_conformance.py tests/streams/worker/test_fold_definitions.py \
    tests/streams/worker/test_fold_faults.py tests/streams/worker/test_fold_kernel.py tests/streams/worker/test_standby.py

kernel-properties: ## what holds for the native kernel's own parts, whatever bytes they get (proptest); PROPTEST_CASES=1000000
	@cargo test --quiet --release --locked --manifest-path kernel/properties/Cargo.toml

test-kernel: $(VENV)/.installed-dev $(VENV)/.installed-kernel kernel-properties ## the native kernel against Python, and the fold's suites with it
	@REFOLD_KERNEL=1 $(BIN)/pytest -q -n $(JOBS) --dist loadgroup $(KERNEL_TESTS) $(ARGS)

test-faults: $(VENV)/.installed-dev ## the fault tests, 30 rounds each: kill -9, zombies, lost disks, brokers that die
	@REFOLD_FAULT_ROUNDS=$${REFOLD_FAULT_ROUNDS:-30} \
	    $(BIN)/pytest -n $(JOBS) --dist loadgroup --timeout=0 -m faults $(ARGS)

fuzz: $(VENV)/.installed-dev $(NATIVE) ## drive every entrance with damaged and hostile input, for 10 minutes; ARGS="--seconds 36000"
	@$(if $(NATIVE),PYTHONPATH=tests/support $(BIN)/python -P -m refold_tests.fuzz.kernel)
	@PYTHONPATH=tests/support $(BIN)/python -P -m refold_tests.fuzz.campaign $(ARGS)

record-faults: $(VENV)/.installed-dev ## record a worker's metrics in real faults anew, for the tests of alerts: 25 minutes, or one: ARGS="--only damaged"
	@PYTHONPATH=tests/support $(BIN)/python -P -m refold_tests.record_faults $(ARGS)

soak: $(VENV)/.installed-dev ## fault tests with 300 rounds and property tests with many more examples: hours
	@REFOLD_SOAK=1 REFOLD_FAULT_ROUNDS=$${REFOLD_FAULT_ROUNDS:-300} \
	    $(BIN)/pytest -n $(JOBS) --dist loadgroup --timeout=0 -m 'faults or hypothesis or soak' $(ARGS)

bench: $(VENV)/.installed-dev $(NATIVE) ## measure on this machine, with the native kernel too where cargo is
	@PYTHONPATH=bench $(BIN)/python bench/run.py $(ARGS)

docs: $(VENV)/.installed-dev ## build the documentation as a site, in build/docs/site; it needs no network to be read (needs npm)
	@$(BIN)/python -P docs/site/build.py $(ARGS)

pictures: $(VENV)/.installed-dev ## take the pictures of the explorer anew, from the demo (needs Debian's chromium)
	@PYTHONPATH=tests/support $(BIN)/python -P -m refold_tests.pictures $(ARGS)

looks: $(VENV)/.installed-dev ## write how the explorer's pages and the deck's screens look, for their tests, after an intended change
	@REFOLD_RENEW_LOOKS=1 $(BIN)/pytest -q tests/explorer/web/test_looks.py \
	    tests/explorer/deck/test_deck.py::test_screens_match_their_snapshots $(ARGS)

lint: $(VENV)/.installed-dev ## ruff and mypy --strict, changing nothing
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@$(BIN)/mypy --explicit-package-bases tests

format: $(VENV)/.installed-dev ## let ruff fix and format
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

clean: ## remove .venv, caches and builds; your logs (.refold) stay
	rm -rf $(VENV) $(VENV)-3.* $(VENV)-adk build dist kernel/target kernel/properties/target .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: an install is repeated when pyproject.toml or the interpreter behind .venv changes, else never.
# An interpreter that was removed leaves a dangling link, and stamps newer than whatever it will point to next.
$(shell test -x $(BIN)/python || rm -f $(VENV)/.installed* $(VENV)/.pip $(VENV)/kernel-wheel/.built)

$(VENV)/.installed: pyproject.toml $(BIN)/python
	@echo 'Installing refold into $(VENV) (once)...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# The wheel of the Claude Agent SDK brings 180 MB of Claude Code, which no test runs; its source distribution does not.
SMALL = --no-binary claude-agent-sdk
$(VENV)/.installed-dev: pyproject.toml $(VENV)/.pip
	@echo 'Installing refold and its development tools into $(VENV) (once)...'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(SMALL) --editable '.[dev]'
	@touch $(VENV)/.installed $@

# Google's agents, which need older releases than the rest of the tests has (tests/support/adk-requirements.txt).
$(VENV)-adk/.installed: tests/support/adk-requirements.txt $(VENV)/.pip
	@$(BIN)/python -m venv --clear --without-pip $(VENV)-adk
	@$(BIN)/python -m pip --python $(VENV)-adk/bin/python install --quiet --disable-pip-version-check --no-compile --no-deps -r $<
	@touch $@

# The pip that comes with an interpreter may be years old, and a minute slower at finding versions that agree.
$(VENV)/.pip: $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@touch $@

# A wheel first: building one writes nothing into .venv, so it can go on beside the installation of everything else.
# pip keeps an installed kernel of the same version unless it is told to take the new one.
KERNEL_WHEEL = $(VENV)/kernel-wheel
$(VENV)/.installed-kernel: $(KERNEL_WHEEL)/.built
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(KERNEL_WHEEL)/*.whl
	@touch $@

$(KERNEL_WHEEL)/.built: kernel/Cargo.toml kernel/Cargo.lock kernel/pyproject.toml $(wildcard kernel/src/*.rs) $(VENV)/.pip
	@command -v cargo >/dev/null || { \
	    echo "error: cargo is missing: the native kernel is written in Rust (1.88 or newer; a distribution's may be older)." >&2; \
	    echo "       refold works without it. Install Rust, or leave it: REFOLD_KERNEL=0 turns an old one off." >&2; exit 1; }
	@echo 'Building the native kernel into $(VENV) (half a minute when it changed)...'
	@rm -rf $(KERNEL_WHEEL)
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(KERNEL_WHEEL) ./kernel
	@touch $@

$(VENV)-3.%/.installed-test: pyproject.toml
	@"$(INTERPRETER)" -m venv --clear $(VENV)-3.$*
	@$(VENV)-3.$*/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(VENV)-3.$*/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

$(BIN)/python:
	@found=; \
	for candidate in $(CANDIDATES); do \
	    "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	    found=$$candidate; \
	    "$$candidate" -c 'import ensurepip, venv' 2>/dev/null || continue; \
	    "$$candidate" -m venv --clear $(VENV) && exit 0; \
	    rm -rf $(VENV); \
	    exit 1; \
	done; \
	if [ -n "$$found" ]; then \
	    echo "error: $$found cannot make a virtual environment: its venv or ensurepip module is missing." >&2; \
	    echo "       On Debian and Ubuntu: apt install python3-venv (or python3.NN-venv, for its version)." >&2; \
	else \
	    echo "error: refold needs Python 3.11 or newer, and none of these is: $(CANDIDATES)" >&2; \
	    echo "       Install one, or name it: make demo PYTHON=/path/to/python3" >&2; \
	fi; \
	exit 1
