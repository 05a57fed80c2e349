# A fresh clone needs Python 3.11 or newer, GCC 11 or Clang 14 or newer, and make; the rest is installed into .venv.
#   make run PYTHON=python3.12    another interpreter (run `make clean` first)
#   make run ARGS="--help"        arguments for the example
#   make run TARGETS=all          the kernels for every CPU, as wheels have them, not only for this one's SIMD target
#   make test PYTEST_ARGS="-x"    arguments for pytest
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
TARGETS ?= native
ARGS ?=
PYTEST_ARGS ?= -n 2 --dist worksteal
# The tests start hundreds of short processes: what they import is compiled once, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
# See .ci/install, which builds onegru itself.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --prefer-binary --no-compile

# $(call require,EXTRAS): what they want beyond onegru, which is there: installing it again would build it again.
require = $(BIN)/python .ci/extras $(1) | $(PIP) --requirement /dev/stdin

# Python sources are absent on purpose: an editable install reads them where they are.
BUILD_INPUTS := pyproject.toml CMakeLists.txt native/c/library.cmake $(filter-out native/tests/%,$(shell find native -name "*.h" -o -name "*.cc"))
CODE := $(wildcard src tests docs examples benchmarks native/build_backend.py native/c/web/pack.py)

.PHONY: help run kernels example-train test test-torch test-c test-targets test-one-cpu test-long durations coverage test-frameworks test-cluster bench conformance docs lint sanitize \
  faults threads check-native tiles vnni amx neon ports wasm web test-web real-time accuracy fuzz fuzz-native near-misses wheel clean

help:  ## Use onegru: list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{split($$2, part, ": "); group = part[1]; if (!(group in text)) order[++groups] = group; \
	  text[group] = text[group] sprintf("  make %-15s %s\n", $$1, substr($$2, length(group) + 3))} \
	  END {for (i = 1; i <= groups; i++) printf "%s%s\n%s", (i == 1 ? "" : "\n"), order[i], text[order[i]]}' $(MAKEFILE_LIST)

# The first build has the float32 kernels, so that a newcomer soon sees the example. All later builds have every kernel.
IS_FIRST := $(if $(wildcard $(VENV)/.quick $(VENV)/.examples $(VENV)/.dev),,$(filter native,$(TARGETS)))

run: $(VENV)/$(if $(IS_FIRST),.quick,.examples)  ## Use onegru: build, then run the digits example
	@$(BIN)/python examples/digits/run.py $(ARGS)
	@echo "next: . $(BIN)/activate; onegru inspect examples/digits/digits.onnx"
	@$(if $(IS_FIRST),echo "This first build has only the float32 kernels. \`make kernels\` compiles the others: one to three minutes.")

kernels: $(VENV)/.examples  ## Use onegru: compile every kernel; the first run needs only some

example-train: $(VENV)/.torch  ## Use onegru: train four programs with PyTorch and onegru: minutes
	@$(BIN)/python examples/training/train.py $(ARGS)

# The lint runs while the tests do. Its output comes last.
test: $(VENV)/.dev  ## Test: build, then lint and run the tests: minutes
	@mkdir -p build/logs; $(MAKE) --no-print-directory lint >build/logs/lint.log 2>&1 & \
	lint=$$!; $(BIN)/python -m pytest $(PYTEST_ARGS); tests=$$?; \
	wait $$lint; status=$$?; cat build/logs/lint.log; exit $$((tests | status))

test-torch: $(VENV)/.torch-tests  ## Test: with PyTorch, whose CPU build it installs (200 MB)
	@$(BIN)/python -m pytest $(PYTEST_ARGS) -q tests/torch tests/frameworks

test-c: $(VENV)/.dev  ## Test: libonegru: ten times as many cases as `make test` runs
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --seconds=2 tests/c --ignore tests/c/test_web.py

# What the quick build of `make test` leaves out. The module and the tests of the kernels are one build. The environment
# has that until the next `make run` or `make test`.
test-targets: $(VENV)/.dev  ## Test: the kernels for every CPU, tested on each SIMD target
	@rm -f $(VENV)/.targets-*
	@.ci/install all dev
	@build/module-all/onegru_check 300
	@for target in $$($(BIN)/python -c 'import onegru; print(*onegru.targets().available)'); do \
	  echo "On $$target:" && ONEGRU_TARGET=$$target $(BIN)/python -m pytest $(PYTEST_ARGS) -q tests/engines tests/layers || exit 1; done
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --long tests/contracts/numerics/test_bits.py tests/contracts/numerics/test_accuracy.py tests/cli/test_app.py

test-one-cpu: $(VENV)/.dev  ## Test: threads, runtimes and promises on one CPU
	@taskset --cpu-list "$$($(BIN)/python -c 'import os; print(min(os.sched_getaffinity(0)))')" \
	  $(BIN)/python -m pytest tests/runtimes tests/contracts

test-long: lint  ## Test: every case of every test: about three times as long
	@$(BIN)/python -m pytest --long $(PYTEST_ARGS)

durations: $(VENV)/.dev  ## Test: store how long each test takes; ARGS=--long
	@$(BIN)/python -m pytest $(PYTEST_ARGS) -q --write-durations $(ARGS)

coverage: $(VENV)/.dev  ## Test: the share of src/onegru that tests run: twice as long
	@$(PIP) 'pytest-cov>=6'  # coverage.py by its own plugin, which adds up what the processes of pytest-xdist ran
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --cov=onegru --cov-report=term:skip-covered

test-frameworks: $(VENV)/.frameworks  ## Test: with PyTorch, Keras and Flax, which it installs: GBs
	@JAX_PLATFORMS=cpu KERAS_BACKEND=torch $(BIN)/python -m pytest --long tests/frameworks tests/torch

test-cluster: $(VENV)/.cluster  ## Test: scoring on Ray and Spark (0.5 GB; Spark needs Java)
	@$(BIN)/python -m pytest --long tests/scoring/test_ray.py tests/scoring/test_spark.py

bench: $(VENV)/.dev  ## Measure: time other runtimes, too: an hour; ARGS=--tables, …
	@$(BIN)/python -m benchmarks.run $(ARGS)

conformance: $(VENV)/.dev  ## Measure: run the conformance kit for docs/conformance.md
	@$(BIN)/python -m docs.generate.measure
	@$(BIN)/python -m docs.generate

docs: $(VENV)/.docs  ## Documentation: the site, in build/site; fails on any warning
	@$(BIN)/python -m docs.generate --check
	@$(BIN)/python -m docs.generate.site

lint: $(VENV)/.dev  ## Test: ruff, mypy and clang-format
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy $(CODE)
	@$(BIN)/clang-format --dry-run --Werror `find native -name "*.h" -o -name "*.cc" -o -name "*.hpp"` examples/c/*.cc

# The kernels by themselves, checked against plain loops (native/tests): $(call check,FOLDER,FLAGS,OPTIONS)
# builds that program. Compiled a little less, as -O3 on top of a sanitizer takes minutes.
CMAKE := $(BIN)/cmake
define check
@$(CMAKE) -S . -B build/$(1) -G Ninja "-DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)" -DONEGRU_NATIVE_TESTS=ON \
  -DONEGRU_PYTHON=OFF -DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=$(2)" $(3) >build/$(1).log || { cat build/$(1).log; exit 1; }
@$(CMAKE) --build build/$(1) >build/$(1).log || { cat build/$(1).log; exit 1; }
endef
build:
	@mkdir -p $@

# ASan calls a function for each access: checks in line, in kernels that consist of accesses, take GCC half an hour.
sanitize: $(VENV)/.build faults | build  ## Test the kernels: ASan, UBSan and TSan, after `faults`: over an hour
	$(call check,asan,-O1 -g1 -fsanitize=address --param asan-instrumentation-with-call-threshold=0)
	@echo "AddressSanitizer:" && build/asan/onegru_check
	$(call check,ubsan,-O1 -g1 -fsanitize=undefined -fno-sanitize-recover=all)
	@echo "UndefinedBehaviorSanitizer:" && build/ubsan/onegru_check
	$(call check,tsan,-O1 -g1 -fsanitize=thread)
	@echo "ThreadSanitizer:" && TSAN_OPTIONS=halt_on_error=1 build/tsan/onegru_check 150
	@TSAN_OPTIONS="halt_on_error=1 die_after_fork=0" build/tsan/onegru_check --calls 5000

faults: $(VENV)/.dev  ## Test the kernels: each allocation and thread start fails: a minute
	@$(BIN)/python -m tests.contracts.faults $(ARGS)

threads: $(VENV)/.build | build  ## Test the kernels: a million calls while threads meet: minutes
	$(call check,native,-O2)
	@build/native/onegru_check --calls 1000000

# Both builds do the same problems, so the hashes of their bits have to be equal, of each kind that both have: in int8,
# with FMA, without FMA. $(call same_bits,NAME,COMMAND)
define same_bits
@echo "This machine:" && build/native/onegru_check $(SAME_PROBLEMS) | tee build/native.out
@echo "$(1):" && $(2) $(SAME_PROBLEMS) | tr -d '\r' | tee build/other.out
@grep -q ', 0 failed$$' build/native.out && grep -q ', 0 failed$$' build/other.out
@test -z "$$(grep -h '^hash ' build/native.out build/other.out | sort -u | cut -d ' ' -f 3- | sort | uniq -d)" && \
echo "The same bits" || { echo "The bits differ" >&2; exit 1; }
endef
SAME_PROBLEMS := 300
ARM64 := -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++

check-native: $(VENV)/.build | build  ## Test the kernels: tests; CXX=clang++-14, TARGET=AVX2
	$(call check,by-$(notdir $(CXX)),-O2,-DCMAKE_CXX_COMPILER=$(CXX) -DONEGRU_TARGETS=$(or $(TARGET),all))
	@build/by-$(notdir $(CXX))/onegru_check $(SAME_PROBLEMS)

tiles: $(VENV)/.build | build  ## Test the kernels: tests with AVX-512's tile shapes on every target
	$(call check,native,-O2)
	$(call check,tiles,-O2,-DONEGRU_LARGE_TILES=ON)
	$(call same_bits,With large tiles,build/tiles/onegru_check)

vnni: $(VENV)/.build | build  ## Test the kernels: tests with AVX-512's encoding of AVX-VNNI
	$(call check,native,-O2)
	$(call check,vnni,-O2,-DONEGRU_VNNI_AS_EVEX=ON)
	$(call same_bits,With AVX-512's VNNI on AVX2,build/vnni/onegru_check)
	@grep -q '^avx2 .* by vnni$$' build/other.out || { echo "AVX2 ran without VNNI: the CPU or the compiler has none" >&2; exit 1; }

amx: $(VENV)/.build | build  ## Test the kernels: tests with plain loops for AMX, on AVX-512 VNNI
	$(call check,native,-O2)
	$(call check,amx,-O2,-DONEGRU_EMULATED_AMX=ON)
	$(call same_bits,With AMX emulated,build/amx/onegru_check)
	@grep -q '^avx3 .* by amx$$' build/other.out || { echo "AVX-512 VNNI is missing here" >&2; exit 1; }

neon: $(VENV)/.build | build  ## Test the kernels: tests for 64-bit Arm, emulated
	@.ci/arm64-packages
	$(call check,native,-O2)
	$(call check,neon,-O2,$(ARM64))
	$(call same_bits,64-bit Arm emulated,ONEGRU_EMULATED=1 qemu-aarch64 build/neon/onegru_check)

# $(call port,SYSTEM,PROCESSOR,TARGET): cross compiles with Zig's Clang. Highway is the one that CMake would download:
# this machine's is for this machine.
ZIG := $(foreach tool,C_COMPILER=cc CXX_COMPILER=c++ AR=ar RANLIB=ranlib RC_COMPILER=rc,\
  "-DCMAKE_$(subst =,=$(abspath build/zig)/,$(tool))")
port = $(ZIG) -DCMAKE_SYSTEM_NAME=$(1) -DCMAKE_SYSTEM_PROCESSOR=$(2) -DCMAKE_C_COMPILER_TARGET=$(3) \
  -DCMAKE_CXX_COMPILER_TARGET=$(3) -DCMAKE_INSTALL_NAME_TOOL=true -DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON \
  "-DFETCHCONTENT_SOURCE_DIR_HIGHWAY=$$(ls -d "$(abspath build/highway)" 2>/dev/null)"

# Zig compiles the C++ library of each system once: the first time takes minutes longer.
ports: $(VENV)/.build | build  ## Test the kernels: tests for macOS (built only) and Windows (by Wine)
	@.ci/ports-packages $(BIN)/python
	$(call check,macos-arm64,-O1,$(call port,Darwin,arm64,aarch64-macos))
	$(call check,macos-x86-64,-O1,$(call port,Darwin,x86_64,x86_64-macos))
	$(call check,windows,-O2,$(call port,Windows,AMD64,x86_64-windows-gnu))
	@command -v wine >/dev/null || { echo "All are built; no Wine runs the one for Windows" >&2; exit 1; }
	$(call check,native,-O2)
	$(call same_bits,Windows,WINEPREFIX="$(abspath build/wine)" WINEDEBUG=-all wine build/windows/onegru_check.exe)

# WebAssembly cannot choose while it runs: there is a build for each of its targets, neither with FMA. Highway's EMU128
# has the same bits as its scalar target, but takes Clang a quarter of an hour.
wasm: $(VENV)/.build | build  ## Test the kernels: tests for WebAssembly, with SIMD and without
	@.ci/zig $(BIN)/python
	@$(PIP) wasmtime
	$(call check,wasm,-O2 -msimd128,$(call port,WASI,wasm32,wasm32-wasi))
	$(call check,wasm-scalar,-O2 -DHWY_COMPILE_ONLY_SCALAR,$(call port,WASI,wasm32,wasm32-wasi))
	$(call check,native,-O2)
	$(call same_bits,WebAssembly,$(BIN)/python .ci/run-wasm build/wasm/onegru_check)
	$(call same_bits,WebAssembly without SIMD,$(BIN)/python .ci/run-wasm build/wasm-scalar/onegru_check)

# $(call web,NAME,FLAGS): libonegru as WebAssembly. For a browser it has to be small, and float32 and int8 do.
define web
@echo "Compiling libonegru to WebAssembly: $(1)"
@$(CMAKE) -S . -B build/web-$(1) -G Ninja "-DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)" -DONEGRU_SMALL=ON \
  -DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=-Os $(2)" $(call port,WASI,wasm32,wasm32-wasi) >build/web-$(1).log 2>&1 && \
  $(CMAKE) --build build/web-$(1) --target onegru_web >build/web-$(1).log 2>&1 || { cat build/web-$(1).log; exit 1; }
endef
build/web/onegru.js: $(VENV)/.build $(BUILD_INPUTS) $(wildcard native/c/web/*) | build
	@.ci/zig $(BIN)/python
	$(call web,simd,-msimd128)
	$(call web,scalar,-DHWY_COMPILE_ONLY_SCALAR)
	@$(BIN)/python native/c/web/pack.py build/web-simd/onegru_web build/web-scalar/onegru_web build/web
	@gzip -9 -c $@ | wc -c | xargs printf '%s: %s bytes, compressed\n' $@

web: build/web/onegru.js  ## Browsers: libonegru for browsers, and a page; PORT=8000
	@cp examples/web/* examples/c/denoiser.safetensors build/web/
	@echo "http://localhost:$(PORT)" && $(BIN)/python -m http.server --bind localhost --directory build/web $(PORT)
PORT ?= 8000

test-web: $(VENV)/.dev build/web/onegru.js  ## Browsers: build it, and test it in Node and Chromium
	@cp examples/web/* examples/c/denoiser.safetensors build/web/
	@$(BIN)/python -m pytest -rs tests/c/test_web.py

real-time: $(VENV)/.dev  ## Measure: a million steps of streams: median and longest
	@$(BIN)/python -m benchmarks.real_time $(ARGS)

accuracy: $(VENV)/.dev  ## Measure: activations at all float32 numbers; ARGS=Sigmoid
	@$(BIN)/python -m benchmarks.accuracy $(ARGS)

fuzz: $(VENV)/.fuzz  ## Fuzz: broken files of every kind, ten minutes; ARGS=--minutes
	@$(BIN)/python -m tests.fuzz.run $(ARGS)

near-misses: $(VENV)/.dev  ## Fuzz: 20,000 perturbed GRUs fused: half an hour; ARGS=--count
	@$(BIN)/python -m tests.fusion.near_misses $(ARGS)

fuzz-native: $(VENV)/.dev | build  ## Fuzz: layers and nodes of any bytes under ASan, ten minutes
	@.ci/clang-packages >/dev/null
	$(call check,fuzzers,-O1,-DONEGRU_FUZZERS=ON -DCMAKE_CXX_COMPILER=$$(.ci/clang-packages))
	@$(BIN)/python -m tests.fuzz.run --ways native $(ARGS)

wheel:  ## Release and clean: this machine's wheel and the sdist, in dist/; PYTHON=
	@.ci/system-packages $(PYTHON)
	@.ci/wheel $(PYTHON)

clean:  ## Release and clean: remove .venv and everything that was built or cached
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- stamps: each says when its step last succeeded

# The build requirements are listed in pyproject.toml and nowhere else; cmake and ninja come from PyPI
# because a distribution's may be too old. Python 3.11 brings a pip that needs twice the time for the packages, so the
# environment gets a new one at once, where the interpreter has a pip that can install it.
NEW_PIP := $(PYTHON) -m pip --disable-pip-version-check --python $(BIN)/python install --quiet --no-compile 'pip>=25'
LIST_REQUIRES := import tomllib; \
  print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")

$(VENV)/.build: pyproject.toml
	@.ci/system-packages $(PYTHON)
	@echo "Preparing $(VENV)"
	@test -x $(BIN)/python || { $(PYTHON) -m venv --without-pip $(VENV) && $(NEW_PIP) 2>/dev/null; } || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c '$(LIST_REQUIRES)' | $(PIP) --requirement /dev/stdin cmake ninja 'pip>=25'
	@touch $@

# For which targets the module in the environment is.
$(VENV)/.targets-$(TARGETS): $(VENV)/.build
	@rm -f $(VENV)/.targets-* && touch $@

$(VENV)/.dev: $(VENV)/.build $(VENV)/.targets-$(TARGETS) $(BUILD_INPUTS)
	@$(PIP) openvino  # before the build, which makes an operator for it
	@.ci/install $(TARGETS) dev
	@$(CMAKE) --build build/module-$(TARGETS) --target $(FOR_TESTS) >/dev/null
	@touch $@ $(VENV)/.examples

FOR_TESTS := onegru_execution_provider onegru onegru_static $(if $(filter Linux,$(shell uname)),onegru_real_time)

# Before other packages, which would bring a build with CUDA.
$(VENV)/.torch: $(VENV)/.examples
	@echo "Installing PyTorch"
	@.ci/torch $(BIN)/python
	@touch $@

# PyTorch's exporter needs onnxscript.
$(VENV)/.torch-tests: $(VENV)/.dev $(VENV)/.torch
	@$(PIP) onnxscript
	@touch $@

# Keras runs on PyTorch; Flax on JAX's CPU build.
$(VENV)/.frameworks: $(VENV)/.torch-tests
	@echo "Installing Keras, Flax and TensorFlow"
	@$(call require,torch keras flax safetensors)
	@$(PIP) tensorflow-cpu tf2onnx  # which write Keras' GRUs out as loops, as most files of Keras have them
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@echo "Installing what makes the site"
	@$(call require,docs)
	@touch $@

# libFuzzer keeps the inputs that reach new code; atheris counts what code of Python's they reach. The field's standard.
# Where there is no wheel of it for a Python, `make fuzz` does without.
$(VENV)/.fuzz: $(VENV)/.dev
	@$(PIP) --only-binary :all: atheris || echo "No atheris for this Python: files are drawn, not guided"
	@touch $@

$(VENV)/.cluster: $(VENV)/.dev
	@echo "Installing Spark"
	@$(PIP) pyspark
	@touch $@

$(VENV)/.quick: $(VENV)/.build $(VENV)/.targets-$(TARGETS)
	@.ci/install quick examples
	@touch $@

# The lighter install, for people who only want to see the example. A full install contains it: where
# there is one, it is renewed instead.
$(VENV)/.examples: $(VENV)/.build $(VENV)/.targets-$(TARGETS) $(BUILD_INPUTS)
	@if test -e $(VENV)/.dev; then $(MAKE) --no-print-directory $(VENV)/.dev; \
	else .ci/install $(TARGETS) examples; fi
	@touch $@
