PYTHON ?= python3
CONFIG ?= configs/shakespeare.yaml
PROMPT ?= ROMEO:
BIN := .venv/bin
EXTRAS ?=
TORCH ?= $(shell cat .venv/torch 2> /dev/null)

.DEFAULT_GOAL := help
.PHONY: help setup demo train sample serve tensorboard test test-all test-site browser drills interop mutants test-native lint lint-python lint-cpp lint-web format web schema book site bench cuda wheels clean
.NOTPARALLEL: # two pips at once would break .venv

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

comma := ,
SERVE := .venv/with-serve
DEV := .venv/with-dev
# What has every extra has those of the tests and the linters too.
TEST := $(firstword $(wildcard $(DEV)) .venv/with-test)
LINT := $(firstword $(wildcard $(DEV)) .venv/with-lint)

setup: $(addprefix .venv/with-,$(subst $(comma), ,$(EXTRAS))) .venv/compiled ## create .venv and compile the kernels: make setup [EXTRAS=dev,gguf] [TORCH=cpu]; does nothing the second time

.venv/compiled: .venv/installed $(shell find gpt/native gpt/system/processor.py -type f -not -name "*.pyc")
	$(BIN)/python -m gpt.native
	@touch $@

# A progress bar for a person, nothing for a log.
PIP = $(BIN)/python -m pip install $$([ -t 1 ] || echo --quiet) --disable-pip-version-check -c constraints.txt

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
ifneq ($(TORCH),)
	$(PIP) uv
	$(BIN)/uv pip install --python $(BIN)/python --torch-backend $(TORCH) -c constraints.txt torch
	@echo $(TORCH) > .venv/torch  # for the next time that a pin changes
else ifeq ($(shell uname),Linux)
	@$(BIN)/python -c "import torch" 2> /dev/null || echo "On Linux, PyTorch comes with CUDA: 2.8 GB to download, 5 GB on disk. Without a GPU from NVIDIA, press Ctrl-C and add TORCH=cpu: 0.3 GB, 1 GB."
endif
	$(PIP) -e .
	@touch $@

.venv/with-%: .venv/installed
	@grep -q '^$* = \[' pyproject.toml || { echo "make: pyproject.toml has no extra $*" >&2; exit 2; }
	$(PIP) -e ".[$*]"
	@touch $@

demo: setup ## train for about a minute on Python's own documentation, then print a sample
	$(BIN)/python scripts/train.py --config configs/quickstart.yaml --resume auto
	$(BIN)/python scripts/sample.py --checkpoint runs/quickstart --prompt "The " --max-new-tokens 400

train: setup ## train CONFIG (configs/shakespeare.yaml), or resume it
	$(BIN)/python scripts/train.py --config $(CONFIG) --resume auto

sample: setup ## continue PROMPT with the newest run
	$(BIN)/python scripts/sample.py --prompt "$(PROMPT)"

serve: setup $(SERVE) ## serve the newest run: a playground and the OpenAI protocol at http://127.0.0.1:8000
	$(BIN)/python scripts/serve.py

tensorboard: setup ## show the curves of all runs in a browser
	$(BIN)/tensorboard --logdir runs

test: setup $(TEST) ## run the quick tests in 2 minutes, a worker on each core; they need no browser, Node, compiler or network
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal --hypothesis-profile quick -m "not slow and not browser and not compiler and not site"

test-all: setup $(DEV) ## run all tests; what is missing here, such as Chromium, is skipped with the reason
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test-site: setup $(DEV) ## run the tests of docs/: every block of the book, the notebooks, and the site
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal tests/docs

browser: setup $(DEV) ## install Chromium, in which the tests open pages (Debian; says what to install elsewhere)
	@tests/install_browser.sh "$(CURDIR)/$(BIN)/python"

drills: setup $(DEV) ## attack what docs/reliability.md promises, in two minutes: make drills [DRILLS=kill,disk,server] [COUNT=9]
	PYTHONPATH="$(CURDIR):$(CURDIR)/tests" $(BIN)/python -m drills $(if $(DRILLS),--drills $(DRILLS)) $(if $(COUNT),--count $(COUNT))

INTEROP := build/interop/bin/python

interop: setup $(DEV) build/interop/installed ## try exports and models in transformers 4, lm-eval, peft and nnsight, in build/interop
	$(BIN)/python -m pytest tests/interop

build/interop/installed: tests/interop/requirements.txt constraints.txt .venv/installed
	$(PYTHON) -m venv build/interop
ifneq ($(TORCH),)
	$(BIN)/uv pip install --python $(INTEROP) --torch-backend $(TORCH) "$$(grep ^torch== constraints.txt)"
endif
	$(INTEROP) -m pip install --quiet --disable-pip-version-check "$$(grep ^torch== constraints.txt)" -e . -r tests/interop/requirements.txt
	@touch $@

mutants: setup $(DEV) ## plant 300 small faults in the core, and list those that no test finds: make mutants [BEFORE=former.jsonl]
	PYTHONPATH="$(CURDIR):$(CURDIR)/tests" $(BIN)/python -m mutants $(if $(BEFORE),--before $(BEFORE))

test-native: test-native-O1 test-native-O2 ## run the kernels' tests under the address and undefined behavior sanitizers (g++, Linux)

test-native-%: setup $(DEV)
	mkdir -p build/sanitized/$*
	printf '#!/bin/sh\nexec g++ -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer "$$@" -$*\n' > build/sanitized/$*/c++
	chmod +x build/sanitized/$*/c++
	PATH="$(CURDIR)/build/sanitized/$*:$$PATH" XDG_CACHE_HOME="$(CURDIR)/build/sanitized/$*" ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
		$(BIN)/python -m pytest -p no:cacheprovider --timeout 900 -k "not zig" tests/native/simd tests/native/training tests/native/decoding tests/generation/test_work.py

WEB := gpt/extras/web
CPP = $(shell find gpt/native/src tests/native -name "*.h" -o -name "*.cpp")

lint: setup $(LINT) lint-python lint-cpp lint-web ## check style and types

lint-python:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-cpp:
	@$(BIN)/clang-format --dry-run -Werror $(CPP)
	@$(BIN)/clang-tidy --quiet $(filter gpt/%.cpp,$(CPP)) -- -std=c++17 -DGPT_LANES=16 -DGPT_BFLOAT16 -DGPT_TILES '-DGPT_EMULATED_TILES="$(CURDIR)/tests/native/emulated_tiles.h"'

lint-web:
	@if [ -d $(WEB)/node_modules ]; then cd $(WEB) && npm run --silent lint; else echo "the JavaScript was not checked: make web installs what checks it"; fi

format: setup $(LINT) ## fix style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

web: ## check the JavaScript and CSS of gpt/extras/web, and bundle them into gpt/extras/web/built (needs Node and npm)
	cd $(WEB) && npm install --silent
	cd $(WEB) && npm run --silent format
	cd $(WEB) && npm run --silent lint
	cd $(WEB) && npm run --silent build

schema: setup ## regenerate configs/schema.json, for editors
	$(BIN)/python scripts/train.py --print-schema > configs/schema.json

book: setup .venv/with-site ## execute the chapters of docs/book, and write what they print and draw into them and their notebooks (needs Chromium)
	$(BIN)/python -m docs.site outputs

site: setup .venv/with-site ## build build/site/index.html: the book, executed, the guides and the references; works offline
	$(BIN)/python -m docs.site notebooks
	$(BIN)/python -m docs.site build

bench: setup ## measure a training run against nanoGPT: make bench NANOGPT=path/to/checkout
	$(BIN)/python scripts/bench.py train race --config configs/shakespeare_nanogpt_cpu.yaml --nanogpt "$(NANOGPT)"

cuda: ## measure and test on a GPU, in 8 minutes: make cuda PYTHON=python3 NANOGPT=path/to/checkout [STAGES=] [OUTPUT=]
	@$(PYTHON) -m benchmarks.cuda $(if $(NANOGPT),--nanogpt "$(NANOGPT)") $(if $(STAGES),--stages "$(STAGES)") $(if $(OUTPUT),--output "$(OUTPUT)")

wheels: setup ## build dist/*.whl with kernels for Linux, macOS and Windows, which need no compiler (installs ziglang and what checks them)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r packaging/requirements.txt
	$(BIN)/python packaging/wheels.py

clean: ## remove build products and caches; runs and data stay
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
