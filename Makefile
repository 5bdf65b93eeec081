# make demo: train on real text for about a minute and show the memory trade-off.
# make bench: time and memory beside plain JAX and other libraries, into docs/benchmarks.md.
# make test: all checks that every commit must pass. make test-all: the long ones too, with every Python that is there.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
# Newer interpreters, each of which gets the newest jax that it can have.
PYTHONS ?= python3.12 python3.13
# The run-time type checks; tests that give wrong types on purpose run without them.
TYPED := --jaxtyping-packages=rnnscan,beartype.beartype
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q

.PHONY: demo bench test test-all lint clean

demo: $(VENV)/.installed-train
	$(BIN)/rnnscan train --out runs/demo --overwrite
	$(BIN)/rnnscan tradeoff --plot runs/demo/tradeoff.png

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks --write docs/benchmarks.md

test: $(VENV)/.installed-dev lint
	$(PYTEST) $(TYPED) -m "not slow and not bad_input"
	$(PYTEST) -m "bad_input and not slow"

test-all: $(VENV)/.installed-dev lint
	$(PYTEST) $(TYPED) -m "not bad_input"
	$(PYTEST) -m bad_input
	JAX_REMAT3=1 $(PYTEST) $(TYPED) -m "not bad_input and not slow"
	for python in $(PYTHONS); do \
	    if $$python -c "" 2>/dev/null; then $(MAKE) test PYTHON=$$python VENV=.venv-$$(basename $$python) || exit 1; fi; \
	done

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

$(VENV)/.installed-train: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[train,plot]"
	touch $@

$(VENV)/.installed-bench: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
