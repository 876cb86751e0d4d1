# Everything starts here: each target does its own set-up and says what it does.
#
# PYTHON    the interpreter that makes .venv (3.11 to 3.13)
# PIP_ARGS  more arguments for pip, for example another package index. The default index may carry
#           torch for Linux built for NVIDIA GPUs only: it runs on a CPU too, but is gigabytes
#           larger. To get the CPU build, name an index that has it:
#           make venv PIP_ARGS="--extra-index-url URL"
# ARGS      more arguments for pytest or for the server

PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=
MODEL ?= smollm2

BIN := .venv/bin
STAMP := .venv/installed
NATIVE := .venv/native
NATIVE_SOURCES := setup.py $(wildcard kernels/cpu/src/*.cpp kernels/cpu/src/*.h)
CHECK_PYTHON := import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 14) \
  else f"radixserve needs Python 3.11 to 3.13, this is {sys.version.split()[0]}: set PYTHON")

.PHONY: help venv native model demo test test-compiled lint serve nightly sanitize gpu-check clean

help:
	@echo "make demo     run a program on the embedded model"
	@echo "make test     run the tests"
	@echo "make lint     run the static checks"
	@echo "make serve    serve the embedded model over HTTP"
	@echo "make nightly  run every test, the long ones too, with coverage and sanitizers"
	@echo "make gpu-check  measure and check everything on a GPU, a few minutes"
	@echo "make sanitize  run the tests of the native kernels under sanitizers"
	@echo "make test-compiled  run the tests of the cache and the scheduler on the compiled tree"
	@echo "make venv     make .venv with everything in it"
	@echo "make native   compile the CPU kernels again where their sources have changed"
	@echo "make clean    remove .venv and all caches"

venv: $(STAMP) $(NATIVE)

native: venv

# Without a GPU torch is held to the version that the gate uses; with one, pip may choose.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c '$(CHECK_PYTHON)'
	@echo "== making .venv (first time: a few minutes)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@if nvidia-smi -L >/dev/null 2>&1; then \
	  echo "== NVIDIA GPU found: torch is not pinned"; \
	  grep -Ev '^(torch|triton)==' constraints.txt > .venv/constraints.txt; \
	else \
	  cp constraints.txt .venv/constraints.txt; \
	fi
	$(BIN)/python -m pip install -q --disable-pip-version-check \
	  -c .venv/constraints.txt $(PIP_ARGS) -e '.[dev]'
	@touch $(STAMP) $(NATIVE)

# Without a compiler this says so and goes on: the runtime then computes in torch.
$(NATIVE): $(STAMP) $(NATIVE_SOURCES)
	@echo "== compiling the CPU kernels"
	@rm -f kernels/cpu/libradixserve_cpu.so
	@$(BIN)/python setup.py -q build_ext --inplace --force
	@test -e kernels/cpu/libradixserve_cpu.so || echo "== no native CPU kernels: torch computes"
	@touch $(NATIVE)

model: venv
	@echo "== the model $(MODEL)"
	@$(BIN)/python -m radixserve.weights.source $(MODEL)

demo: model
	@echo "== examples/quickstart.py: a program that forks, selects and runs as a batch"
	@$(BIN)/python examples/quickstart.py

test: model
	@echo "== tests (all but the slow ones)"
	@$(BIN)/python -m pytest $(ARGS)

# The state machines see 1,000 examples, which takes a busy machine longer than the gate's limit.
nightly: model
	@echo "== every test, the slow ones too, coverage over radixserve, lang and kernels"
	@RADIXSERVE_TEST_PROFILE=nightly $(BIN)/python -m pytest -m "slow or not slow" \
	  --timeout 1800 --cov --cov-report=term $(ARGS)
	@$(MAKE) --no-print-directory sanitize
	@$(MAKE) --no-print-directory test-compiled

# The tests of the native kernels on a build that checks addresses and undefined behaviour. Python
# itself is not built so, which is why the runtime is loaded first and leaks are not looked for.
# Without its library the tests would all be skipped, and pass.
CHECK_LIBRARY := import ctypes, os; ctypes.CDLL(os.environ["RADIXSERVE_LIBRARY"])
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined
sanitize: venv
	@echo "== native kernels under the address and undefined-behaviour sanitizers"
	@RADIXSERVE_COMPILE=0 CFLAGS="$(SANITIZE)" CXXFLAGS="$(SANITIZE)" LDFLAGS="$(SANITIZE)" $(BIN)/python setup.py -q \
	  build_ext --force --build-lib build/sanitize --build-temp build/sanitize/objects
	@export LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)"; \
	  export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1; \
	  export RADIXSERVE_LIBRARY=build/sanitize/radixserve/kernels/cpu/libradixserve_cpu.so; \
	  $(BIN)/python -c '$(CHECK_LIBRARY)' && $(BIN)/python -m pytest tests/kernels -k cpu $(ARGS)

# The tree as a wheel has it, in a folder of its own: here the sources are what runs.
COMPILED := build/compiled/lib
test-compiled: venv
	@echo "== the cache and the scheduler, with the tree compiled"
	@RADIXSERVE_COMPILE=1 $(BIN)/python setup.py -q build --build-base build/compiled \
	  --build-lib $(COMPILED)
	@RADIXSERVE_TEST_COMPILED=1 $(BIN)/python -m pytest -o "pythonpath=$(COMPILED) ." \
	  $(wildcard tests/unit/test_cache*.py tests/unit/test_sched*.py) \
	  tests/unit/test_bench_trees.py tests/unit/test_tracing.py $(ARGS)

# On a machine that has torch for its GPU and little else: PYTHON runs it, nothing is installed.
# ARGS="--tiny" runs the same code on a CPU.
gpu-check:
	@$(PYTHON) -m benchmarks.gpu_check $(ARGS)

lint: venv
	@echo "== ruff format"
	@$(BIN)/ruff format --check .
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== mypy --strict"
	@$(BIN)/mypy
	@echo "== import-linter"
	@$(BIN)/lint-imports --no-logo

serve: model
	@echo "== serving $(MODEL); end with ctrl-c"
	@$(BIN)/radixserve serve --model $(MODEL) $(ARGS)

clean:
	@echo "== removing .venv and caches (the model cache stays)"
	@rm -rf .venv *.egg-info build dist kernels/cpu/*.so .coverage .coverage.* .hypothesis
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
