# The index of commands. Everything runs in .venv, which the first command makes.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Tests and comparisons start many processes, which would compile the package anew without their bytecode.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test test-slow check fmt bench clean

setup: $(STAMP)              ## make the virtual environment and install everything

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; install Python 3.11 or say make PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup                  ## train and compare the baselines and the Generalists on the embedded data
	$(BIN)/allrounder demo

# Files stay whole: what a module makes once would otherwise be made by both workers.
test: setup                  ## the tests that run everywhere, in minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: setup             ## the tests that take longer
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m slow

check: setup                 ## style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

fmt: setup                   ## put the style right
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup                 ## ratios of speed, measured in one run
	$(BIN)/python benchmarks/crafting.py
	$(BIN)/python benchmarks/train_step.py --network small-cnn --batch 32
	$(BIN)/python benchmarks/train_step.py --network resnet18 --variant d --batch 16 --rounds 2

clean:                       ## forget the virtual environment
	rm -rf $(VENV)
