# make demo: train on real text for about a minute and show the memory trade-off.
# make bench: time and memory beside plain JAX and other libraries, into docs/benchmarks.md.
# make docs: the documentation site, into site/.
# make dist: sdist and wheel into dist/, checked; the wheel is installed into an empty environment and run there.
# make test: all checks that every commit must pass: all tests with the oldest jax, the core with the newest Python that is
# there. make test-all: the long ones too, and all of them with every Python.

SHELL := bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
# Newer interpreters, the newest first, each with the jax that it is tested with.
PYTHONS ?= python3.13,jax~=0.12.0 python3.12,jax~=0.11.0
# What pip is told of jax beside what pyproject.toml says; empty for the newest that there is for the Python.
JAX ?=
OLDEST_JAX := jax==0.10.0 jaxlib==0.10.0
# What differs from one jax or Flax to the next shows here first.
CORE := tests/engine/test_fission.py tests/engine/test_products.py tests/linen/test_rnn.py tests/nnx/test_rnn.py
# The run-time type checks; tests that give wrong types on purpose run without them. The engine's functions are called so
# often that checking them takes an eighth of the tests' time: that is for make test-all.
comma := ,
space := $(subst ,, )
PARTS := $(filter-out rnnscan/__% rnnscan/engine rnnscan/py,$(basename $(wildcard rnnscan/*)))
TYPED := --jaxtyping-packages=$(subst $(space),$(comma),$(subst rnnscan/,rnnscan.,$(PARTS))),beartype.beartype
TYPED_ALL := --jaxtyping-packages=rnnscan,beartype.beartype
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q

# A target with the Python and the jax of a pair.
with = python=$${pair%,*}; jax=$${pair\#*,}; \
    $(MAKE) $(1) PYTHON=$$python VENV=.venv-$$(basename $$python) JAX="$$jax $${jax/jax/jaxlib}"

.PHONY: demo bench docs dist test test-here test-core test-all lint clean

demo: $(VENV)/.installed-train
	$(BIN)/rnnscan train --out runs/demo --overwrite
	$(BIN)/rnnscan tradeoff --plot runs/demo/tradeoff.png

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks --write docs/benchmarks.md
	$(BIN)/python docs/make_benchmark_picture.py

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

dist: $(VENV)/.installed-dist
	rm -rf dist build
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet dist/*.whl
	build/empty/bin/python -I -c "$$SCAN"
	rm -rf build

# What the installed wheel must be able to do; -I keeps it from importing the checkout.
define SCAN
import jax, jax.numpy as jnp, rnnscan as rs
from importlib.metadata import version
cell, xs = rs.cells.LSTM(8), jnp.ones((5, 2, 3))
params = cell.init(jax.random.key(0), input_size=3)
loss = lambda params: rs.scan(cell, params, cell.initial_carry(xs[0]), xs)[1].sum()
gradients = jax.jit(jax.grad(loss))(params)
assert 'site-packages' in rs.__file__ and all(jnp.isfinite(leaf).all() for leaf in gradients.values())
print('rnnscan', version('rnnscan'), 'runs from', rs.__file__)
endef
export SCAN

test:
	$(MAKE) test-here VENV=.venv-oldest JAX="$(OLDEST_JAX)"
	for pair in $(PYTHONS); do \
	    if $${pair%,*} -c "" 2>/dev/null; then $(call with,test-core) || exit 1; exit; fi; \
	done; echo "make test: not with the newest jax, because none of these is there: $(PYTHONS)"

# With the jax that JAX says, in the environment that VENV says.
test-here: $(VENV)/.installed-dev lint
	$(PYTEST) $(TYPED) -m "not slow and not bad_input"
	$(PYTEST) -m "bad_input and not slow"

test-core: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow and not bad_input" $(CORE)

test-all: $(VENV)/.installed-dev lint
	$(PYTEST) $(TYPED_ALL) -m "not bad_input"
	$(PYTEST) -m bad_input
	JAX_REMAT3=1 $(PYTEST) $(TYPED) -m "not bad_input and not slow"
	$(MAKE) test-here VENV=.venv-oldest JAX="$(OLDEST_JAX)"
	for pair in $(PYTHONS); do \
	    if $${pair%,*} -c "" 2>/dev/null; then $(call with,test-here) || exit 1; fi; \
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

$(VENV)/.installed-docs: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	touch $@

$(VENV)/.installed-dist: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dist]"
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]" $(JAX)
	touch $@

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
