# A fresh clone needs Python 3.11 or newer, a C++ compiler and make; the rest is installed into .venv.
#   make run PYTHON=python3.12    another interpreter (run `make clean` first)
#   make run ARGS="--help"        arguments for the example
#   make test PYTEST_ARGS="-x"    arguments for pytest
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?= -n 2

VENV := .venv
BIN := $(VENV)/bin
# --prefer-binary: a slightly older wheel beats compiling a newer release.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --prefer-binary
# No isolation: the compiler, CMake and nanobind of .venv are used again, so a rebuild is incremental.
PIP_SELF := $(PIP) --no-build-isolation --editable

# Python sources are absent on purpose: an editable install reads them where they are.
BUILD_INPUTS := pyproject.toml CMakeLists.txt $(wildcard native/*.h native/*.cc)
CODE := $(wildcard src tests docs examples benchmarks)

.PHONY: help run test lint clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.examples  ## build, then run the digits example
	@$(BIN)/python examples/digits/run.py $(ARGS)

test: lint  ## build, lint, then run every test
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## ruff and mypy
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy $(CODE)

clean:  ## remove .venv and everything that was built or cached
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- stamps: each says when its step last succeeded

# The build requirements are listed in pyproject.toml and nowhere else; cmake and ninja come from PyPI
# because a distribution's may be too old.
LIST_REQUIRES := import tomllib; \
  print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")

$(VENV)/.build: pyproject.toml
	@.ci/system-packages $(PYTHON)
	@echo "Preparing $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c '$(LIST_REQUIRES)' | $(PIP) --requirement /dev/stdin cmake ninja
	@touch $@

$(VENV)/.dev: $(VENV)/.build $(BUILD_INPUTS)
	@echo "Building onegru with everything the tests need"
	@$(PIP_SELF) '.[dev]'
	@touch $@ $(VENV)/.examples

# The lighter install, for people who only want to see the example. A full install contains it: where
# there is one, it is renewed instead.
$(VENV)/.examples: $(VENV)/.build $(BUILD_INPUTS)
	@if test -e $(VENV)/.dev; then $(MAKE) --no-print-directory $(VENV)/.dev; \
	else echo "Building onegru for the examples" && $(PIP_SELF) '.[examples]'; fi
	@touch $@
