# Every target sets itself up: on a fresh machine `make demo` or `make test` is the only command to type.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Real benchmark data is never committed; tests and benchmarks that want it say so when it is absent.
ifneq ($(wildcard ../shared/data),)
export DUOGP_DATA ?= $(abspath ../shared/data)
endif

.PHONY: setup demo test test-all search fuzz soak lint format wheel bench docs docs-check clean

setup: $(STAMP)

$(STAMP): pyproject.toml packages/duogp-tasks/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e ".[dev]" -e "packages/duogp-tasks[lunar,molecules]"
	touch $@

demo: setup
	$(BIN)/python -m duogp.demo --output demo

# At most six minutes on two cores: a test of every kind, without those marked `slow`.
test: setup
	DUOGP_FUZZ_TABLES=60 $(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow"

# Everything; this is what CI runs.
test-all: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

# The property tests once more, with examples that no run has drawn before.
search: setup
	HYPOTHESIS_PROFILE=search $(BIN)/python -m pytest -n 2 --dist worksteal -q -k "identity_24 or exceeds_the_evidence or any_ or shapes or wasserstein"

# Ten times the generated tables of `make test-all`, all new, scikit-learn's checks at the default settings, and the
# export of every method.
fuzz: setup
	HYPOTHESIS_PROFILE=search DUOGP_FUZZ_TABLES=2000 DUOGP_SLOW_TESTS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/fitting/test_fuzz.py tests/sklearn/test_estimators_checks.py tests/export
	DUOGP_FUZZ_FILES=2000 $(BIN)/python -m pytest -n 2 -q tests/io/test_untrusted.py

# A long service in less than an hour: memory, threads, global state, damaged tables and folders, and processes that
# are killed at random moments. Numbers go to benchmarks/results/soak.json and kill_fits.jsonl.
soak: setup
	$(BIN)/python benchmarks/soak.py
	$(BIN)/python benchmarks/kill_fits.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Source distributions and wheels of both packages in dist/, checked as the index would check them.
wheel: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist packages/duogp-tasks
	$(BIN)/python -m twine check --strict dist/*

bench: setup
	$(BIN)/duogp bench run smoke
	$(BIN)/duogp bench table smoke

# The pages against the store: marked blocks are made anew, numbers in prose are looked up, stale rows are listed.
docs-check: setup
	$(BIN)/python benchmarks/docs_check.py

# The site, in docs/_build/html; its gallery is executed, which takes some minutes the first time. Warnings are errors.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

clean:
	rm -rf docs/_build docs/auto_gallery docs/sg_execution_times.rst
	rm -rf $(VENV) demo dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
