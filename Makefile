# Two commands: `make run` teaches a small model arithmetic, `make test` passes the tests. Both set up what they need.
#
#   PYTHON=python3.11     the interpreter to build .venv with: the lock is for 3.11 (by hand, prl takes newer ones too)
#   TORCH_INDEX=URL       an index that has the CPU build of torch, where yours has only the CUDA build
#   CONFIG=FILE           what `make run` runs
#   BROWSER=install       before the tests, install Debian's Chromium where there is none (as root); without a browser
#                         the tests of the page say that they are skipped
#   ARGS="..."            more arguments for `make run`, `make test`, `make faults`, `make soak`, `make network`

PYTHON ?= $(shell command -v python3.11 || echo python3)
TORCH_INDEX ?=
CONFIG ?= configs/math.toml
BROWSER ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps
UV_COMPILE := uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --extra cpu --extra dev --extra math

.PHONY: run test lint browser bench faults soak network clean setup lock

run: $(READY)
	$(BIN)/prl run $(CONFIG) $(ARGS)

test: lint browser
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

browser:
	@test "$(BROWSER)" != install || command -v chromium > /dev/null || { echo "Installing Debian's chromium."; \
	  apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium > /dev/null 2>&1; } || \
	  echo "Chromium could not be installed: the tests of the page in a browser will be skipped."

setup: $(READY)

# The stamp is made last, so an interrupted set-up starts over and a finished one costs nothing.
$(READY): locks/cpu.txt locks/torch.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info[:2] != (3, 11) and \
	  f"The lock is for Python 3.11 and {sys.executable} is {v}: make PYTHON=/path/to/python3.11")'
	@case "$$(uname -s)-$$(uname -m)" in Linux-x86_64|Darwin-*) ;; *) \
	  echo "The lock is for x86-64 Linux and macOS; here, install with: pip install -e '.[cpu,dev,math]'"; exit 1;; esac
	@echo "Setting up $(VENV): about two minutes and 4 GB, once."
	@rm -f $(READY)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -r locks/torch.txt || { echo; \
	  echo "No CPU build of torch was found. Name an index that has it (PyTorch's own: pytorch.org, Get started, CPU):"; \
	  echo "  make $(MAKECMDGOALS) TORCH_INDEX=URL"; exit 1; }
	@$(PIP) --require-hashes -r locks/cpu.txt
	@$(PIP) --no-build-isolation --editable .
	@touch $(READY)

# torch stands in a lock of its own, without a hash, since each index has another build of it. The torch companions are
# left out: no build of them matches this torch, and with them transformers does not import.
lock:
	$(UV_COMPILE) --generate-hashes --no-emit-package torch --no-emit-package torchvision --no-emit-package torchaudio \
	  --no-emit-package torchcodec --custom-compile-command "make lock" -o locks/cpu.txt

# What the benchmarks share, and the search for the numbers in one of them: no benchmark itself.
BENCH_PARTS := accuracy curves harness kept_engines side_trl stages throughput_model vs_trl_sweep

bench: $(READY)
	@for file in $(filter-out $(BENCH_PARTS:%=benchmarks/%.py),$(wildcard benchmarks/*.py)); do \
	  $(BIN)/python $$file --quick --out $${file%.py}.json || exit 1; done

# Every role struck with every signal at every moment, on real processes, and thousands of runs under random faults in
# virtual time: about an hour on two cores. It writes docs/faults.json and the table docs/faults.md.
faults: $(READY)
	$(BIN)/python -m tests.faults.matrix $(ARGS)
	$(BIN)/python -m tests.faults.chances --seeds 3000

# The default job for half an hour, with a random fault every 20 seconds.
soak: $(READY)
	$(BIN)/python -m tests.faults.soak --minutes 30 --every 20 $(ARGS)

# The default job over network namespaces as hosts: two with a rank, two with a `vllm serve`; cables are cut and healed.
# As root, on Linux; it takes a few minutes.
network: $(READY)
	PRL_NETWORK=1 $(BIN)/python -m pytest tests/test_network.py $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
