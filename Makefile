# `make demo` and `make test` need Python 3.11 or newer and make; everything else they install into .venv themselves.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3 python3.13 python3.12 python3.11
WORKERS ?= 2
BIN := .venv/bin
BENCH := .venv-bench/bin
LOWEST := .venv-lowest/bin
NAMES ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Bytecode is kept, whatever the shell says: each process would compile the package, and all that it imports, anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-arithmetic test-lowest test-peers lint types layers docs audit lock format bench bench-quick bench-check bench-env clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.installed-nuts demo/breast_cancer.csv  ## compare every posterior, against NUTS, on a real table; results in demo/
	$(BIN)/bayescope compare demo/breast_cancer.csv --target malignant --out demo/results
	@echo "The table and the pictures lie in demo/results"

test: lint  ## everything that has to pass: lint, types, layers, the site, tests and doctests
	@$(MAKE) --no-print-directory types & types=$$!; $(MAKE) --no-print-directory layers docs; docs=$$?; \
	  wait $$types && exit $$docs  # each of the two keeps one core busy
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  echo "NO BROWSER: the tests of reports in Chromium are skipped. apt-get install chromium brings one." >&2
	BAYESCOPE_SITE=site OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(WORKERS) --dist worksteal

# The kinds of arithmetic of other processors: the oldest that torch's and NumPy's libraries know, and one in between.
# Each is a process of its own that runs every test (gw0 and gw1 where a failure is reported).
BASELINE := popen//env:ATEN_CPU_CAPABILITY=default//env:MKL_ENABLE_INSTRUCTIONS=SSE4_2//env:OPENBLAS_CORETYPE=Nehalem//env:OMP_NUM_THREADS=1
# Of two threads, those that wait are asleep: the other process has work for their core.
AVX2 := popen//env:ATEN_CPU_CAPABILITY=avx2//env:MKL_ENABLE_INSTRUCTIONS=AVX2//env:OPENBLAS_CORETYPE=Haswell//env:OMP_NUM_THREADS=2//env:OMP_WAIT_POLICY=passive//env:KMP_BLOCKTIME=0
# What is fitted to a criterion depends on rounding most. The whole suite: make test-arithmetic ARITHMETIC=tests
ARITHMETIC ?= $(addprefix tests/linear/test_,mode.py laplace.py evidence.py expansion.py tuning.py variational.py \
  expectation_propagation.py conjugate.py row_space.py) tests/training/test_convergence.py tests/training/test_lbfgs.py tests/training/test_fit_map.py tests/training/test_objective.py \
  tests/training/test_stack.py tests/laplace/test_conjugate_gradients.py tests/gallery/test_network_laplace.py

test-arithmetic: .venv/.installed-dev  ## tests of what rounding can reach, under the arithmetic of two older processors
	$(BIN)/pytest -q --dist each --tx $(BASELINE) --tx $(AVX2) $(ARITHMETIC)

test-peers: .venv/.peers/.installed  ## run the code of the pages "Coming from", that of the other packages too
	PYTHONPATH=.venv/.peers OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(WORKERS) tests/test_prose.py -k coming_from

# Beside the environment and not in it: Bambi needs a version of arviz-plots that knows no matplotlib 3.11.
PEERS := arviz-base arviz-plots arviz-stats asdfghjkl autograd autograd-gamma backpack-for-pytorch bambi cachetools cons \
  curvlinops-for-pytorch einconv einops etuples formulae graphviz interpret-core jax jaxlib laplace-torch lifelines llvmlite \
  logical-unification mapie matplotlib==3.10.8 minikanren ml-dtypes ngboost numba numpyro opt-einsum pymc pyro-api pyro-ppl \
  pytensor sparse toolz torchmetrics tqdm unfoldnd

.venv/.peers/.installed: constraints.txt .venv/.installed-dev
	@echo "Installing the packages of the pages Coming from into .venv/.peers"
	@grep -v '^matplotlib==' constraints.txt > .venv/constraints-peers.txt
	@$(PIP) --no-compile --no-deps --target .venv/.peers --constraint .venv/constraints-peers.txt $(PEERS)
	@touch $@

# Older versions warn of each other, so that warnings are no errors here; narwhals 2.0 knows no polars 2.
test-lowest: .venv-lowest/.installed  ## tests with each dependency at the lower bound of pyproject.toml
	OMP_NUM_THREADS=1 $(LOWEST)/pytest -q -o filterwarnings=default -n $(WORKERS) --dist worksteal --ignore=tests/bench --ignore=tests/test_docs_site.py \
	  --ignore=tests/test_prose.py tests

lint: .venv/.installed-dev  ## ruff: code, import order, docstrings, formatting; and spelling
	$(BIN)/typos --format brief
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet

types: .venv/.installed-dev  ## mypy on the sources
	$(BIN)/mypy

layers: .venv/.installed-dev  ## import-linter: imports run strictly downward
	$(BIN)/lint-imports --no-logo

docs: .venv/.installed-dev  ## the documentation site, in site/; pictures that are missing are drawn
	$(BIN)/python docs/_site/pictures.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html"

audit: .venv/.installed-dev  ## dependencies: declared, locked, licensed, unchanged since they were installed; without a network
	$(BIN)/python .ci/audit.py

lock: | .venv/bin/python  ## write lock.txt, the files that CI installs, from pyproject.toml and constraints.txt
	$(BIN)/python .ci/lock.py

format: .venv/.installed-dev  ## fix what ruff can fix
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
	rm -rf .venv .venv-bench .venv-lowest demo site bench/quick build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

demo/breast_cancer.csv: examples/breast_cancer_table.py | .venv/.installed-nuts
	@mkdir -p demo
	$(BIN)/python $< $@

.venv/bin/python .venv-bench/bin/python .venv-lowest/bin/python:
	@for python in $(PYTHON); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    exec "$$python" -m venv $(patsubst %/bin/python,%,$@); fi; \
	done; \
	echo "bayescope needs Python 3.11 or newer; none of these is one: $(PYTHON). Name yours: make PYTHON=/path/to/python" >&2; \
	exit 1

# Nothing is compiled beforehand (--no-compile): of 22,700 modules most are never imported, and one that is leaves its
# bytecode. torch and all others, which share no file, are unpacked side by side.
# All that the checks need, from files whose digests stand in lock.txt. Those of PyPI never change: another digest there
# ends in an error. torch's CPU build is no file of PyPI and may be built anew: with another digest it is installed all
# the same, and said to be unverified. So is everything on another Python or platform than the lock's.
.venv/.installed-dev: pyproject.toml constraints.txt lock.txt .ci/lock.py | .venv/bin/python
	@echo "Installing bayescope[dev] into .venv (the first time takes minutes)"
	@if $(BIN)/python .ci/lock.py fits; then \
	  grep -v '^torch==' lock.txt > .venv/lock.txt && grep '^torch==' lock.txt > .venv/lock-torch.txt && \
	  { $(PIP) --no-compile --no-deps --require-hashes --requirement .venv/lock-torch.txt & torch=$$!; \
	    $(PIP) --no-compile --no-deps --require-hashes --only-binary :all: --requirement .venv/lock.txt; others=$$?; \
	    wait $$torch || { \
	    echo "NOT VERIFIED: torch. Its CPU build in lock.txt is not to be had here, or its file is another one." >&2; \
	    $(PIP) --constraint constraints.txt torch; } && test $$others -eq 0; } && \
	  $(PIP) --no-deps --no-build-isolation --editable . && $(BIN)/python -m pip check; \
	else \
	  echo "NOT VERIFIED: lock.txt is for another Python or platform. Versions are pinned, digests are not compared." >&2; \
	  $(PIP) --constraint constraints.txt --editable '.[dev]'; \
	fi
	@touch $@

# One stamp per extra, so that an edit of either file installs again.
.venv/.installed-%: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing bayescope[$*] into .venv (the first time takes minutes)"
	@$(PIP) --constraint constraints.txt --editable '.[$*]'
	@touch $@

.venv-lowest/.installed: pyproject.toml constraints.txt tests/lowest.py | .venv-lowest/bin/python
	@echo "Installing bayescope and the lowest versions that it allows into .venv-lowest (minutes)"
	@$(LOWEST)/python tests/lowest.py > .venv-lowest/constraints.txt
	@$(LOWEST)/python -m pip install --quiet --disable-pip-version-check --constraint .venv-lowest/constraints.txt \
	  --editable '.[nuts,parquet]' hypothesis mpmath 'polars<2' pytest pytest-timeout pytest-xdist
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
