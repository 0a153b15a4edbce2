# The commands of the project. Everything runs in .venv, which the first command creates.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
EXTRAS := docs,examples,ray
EXTRAS_STAMP := $(VENV)/.installed-extras
# Tests and comparisons start many processes; without bytecode files each of them would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test test-slow check fmt index results docs docs-serve bench faults dist clean

setup: $(STAMP)              ## create the virtual environment and install everything

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; install Python 3.11, or name another one: make PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup                  ## train and compare the baselines and the Generalists on the embedded data
	$(BIN)/allrounder demo

# loadfile: both workers would otherwise build what a test module builds once.
test: setup                  ## run the tests, a few minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(EXTRAS_STAMP)   ## run the slow tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m slow

check: setup                 ## check formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

fmt: setup                   ## fix formatting and lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

index: setup                 ## write the index of names that list, schema and completion read
	$(BIN)/python -m allrounder.cli.index

results: setup               ## write the tables and figures of the documents from results/
	$(BIN)/python scripts/make_results.py

$(EXTRAS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

docs: $(EXTRAS_STAMP)        ## build the documentation site into the folder site; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(EXTRAS_STAMP)  ## show the documentation site on this machine, and build it again after every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

bench: setup                 ## print one table of all speed goals and what is measured now, half an hour
	$(BIN)/python benchmarks/table.py $(BENCH)

faults: setup                ## run 200 random faults against trainings, evaluations and studies
	$(BIN)/python benchmarks/faults.py

dist: setup                  ## build the wheel and the source archive into dist/
	$(BIN)/python -m hatchling build -d dist

clean:                       ## delete the virtual environment
	rm -rf $(VENV)
