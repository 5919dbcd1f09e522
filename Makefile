PYTHON ?= python3
CONFIG ?= configs/shakespeare.yaml
PROMPT ?= ROMEO:
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo train sample tensorboard test lint format schema bench clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: .venv/installed ## make .venv with everything in it; does nothing the second time

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,export]"
	@touch $@

demo: setup ## train for two minutes on Python's own documentation, then print text
	$(BIN)/python scripts/train.py --config configs/quickstart.yaml --resume auto
	$(BIN)/python scripts/sample.py --checkpoint runs/quickstart --prompt "The " --max-new-tokens 400

train: setup ## train CONFIG (configs/shakespeare.yaml), or go on with it
	$(BIN)/python scripts/train.py --config $(CONFIG) --resume auto

sample: setup ## go on from PROMPT with the newest run
	$(BIN)/python scripts/sample.py --prompt "$(PROMPT)"

tensorboard: setup ## show the curves of all runs in a browser
	$(BIN)/tensorboard --logdir runs

test: setup ## run the tests
	$(BIN)/python -m pytest

lint: setup ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## put style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: setup ## write configs/schema.json anew, for editors
	$(BIN)/python scripts/train.py --print-schema > configs/schema.json

bench: setup ## measure a training run against nanoGPT: make bench NANOGPT=path/to/checkout
	$(BIN)/python benchmarks/nanogpt_cpu.py --nanogpt "$(NANOGPT)"

clean: ## remove what was made; runs and data stay
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
