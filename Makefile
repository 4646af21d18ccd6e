# `make demo` and `make test` need Python 3.11 or newer and make; everything else they install into .venv themselves.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3 python3.13 python3.12 python3.11
WORKERS ?= 2
BIN := .venv/bin
BENCH := .venv-bench/bin
NAMES ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test lint types layers docs format bench bench-quick bench-check bench-env clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.installed-nuts demo/breast_cancer.csv  ## compare every posterior, against NUTS, on a real table; results in demo/
	$(BIN)/bayescope compare demo/breast_cancer.csv --target malignant --out demo/results
	@echo "The table and the pictures lie in demo/results"

# Bytecode is kept, whatever the shell says: each process that a test starts would compile the package anew.
test: lint layers .venv/.installed-docs  ## everything that has to pass: lint, types, layers, the site, tests and doctests
	@$(MAKE) --no-print-directory types & types=$$!; $(MAKE) --no-print-directory docs; docs=$$?; \
	  wait $$types && exit $$docs  # each of them keeps one core busy
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  echo "NO BROWSER: the tests of reports in Chromium are skipped. apt-get install chromium brings one." >&2
	PYTHONDONTWRITEBYTECODE= BAYESCOPE_SITE=site OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(WORKERS) --dist worksteal

lint: .venv/.installed-dev  ## ruff: code, import order, docstrings, formatting
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet

types: .venv/.installed-dev  ## mypy on the sources
	$(BIN)/mypy

layers: .venv/.installed-dev  ## import-linter: imports run strictly downward
	$(BIN)/lint-imports --no-logo

docs: .venv/.installed-docs  ## the documentation site, in site/; pictures that are missing are drawn
	$(BIN)/python docs/_site/pictures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html"

format: .venv/.installed-dev  ## let ruff mend what it can
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format --quiet

bench: bench-env  ## measure everything beside the peers: hours; goes on where it was stopped. Other: make bench NAMES="vi nuts"
	$(BENCH)/python -m bench $(NAMES)

bench-quick: bench-env  ## run every benchmark at small sizes; the results stay as they are
	$(BENCH)/python -m bench --quick $(NAMES)

bench-check: bench-env  ## fail where something is slower by a fifth than the committed results say
	$(BENCH)/python -m bench.check $(NAMES)

bench-env: .venv-bench/.installed  ## an environment of its own with the peers

clean:  ## remove what make made: environments, demo, caches
	rm -rf .venv .venv-bench demo site bench/quick build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

demo/breast_cancer.csv: examples/breast_cancer_table.py | .venv/.installed-nuts
	@mkdir -p demo
	$(BIN)/python $< $@

.venv/bin/python .venv-bench/bin/python:
	@for python in $(PYTHON); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    exec "$$python" -m venv $(patsubst %/bin/python,%,$@); fi; \
	done; \
	echo "bayescope needs Python 3.11 or newer; none of these is one: $(PYTHON). Name yours: make PYTHON=/path/to/python" >&2; \
	exit 1

# One stamp per extra, so that an edit of either file installs again.
.venv/.installed-%: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing bayescope[$*] into .venv (the first time takes minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$*]'
	@touch $@

# The peers come without their dependencies: these ask for torchvision, which has no build that fits a CPU-only torch and
# which they run without, or for packages of their authors' own examples. What they do need is in the extra "bench".
.venv-bench/.installed: pyproject.toml constraints.txt | .venv-bench/bin/python
	@echo "Installing bayescope[bench] and the peers into .venv-bench (minutes)"
	@$(BENCH)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	@$(BENCH)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps \
	  asdfghjkl \
	  laplace-torch curvlinops-for-pytorch backpack-for-pytorch \
	  bayesian-torch ivon-opt pyro-ppl pyro-api
	@touch $@
