# make demo: train on real text for about a minute and show the memory trade-off.
# make bench: time and memory beside plain JAX and other libraries, into docs/benchmarks.md.
# make bench-beyond: uses of lax.scan that are no RNN, into docs/benchmarks_beyond.md.
# make bench-sweep SEED=1000 USES=60: the same uses and the cells of make bench at random sizes, into
# docs/benchmarks_sweep.md; with AGAINST=checkout another version of rnnscan beside, and with RECORD=file a run
# that was stopped goes on. Seeds 0 to 9 are for tuning, and write no page.
# make bench-small: small loops of a CPU by plain lax.scan, rnnscan and other libraries, with the jax for PYTHON and with
# the newest one, into docs/benchmarks_of_small_loops.md.
# make bench-cost-model: the constants of the engine's cost model, measured on this machine beside those in the code.
# make papers: figures of papers and those of rnnscan beside them, into docs/papers.md.
# make bench-imports: the processor time of `import rnnscan` beside that of `import jax`.
# make test-suites SUITES=folder: other projects' tests with their lax.scan as rs.scan, from the checkouts in a folder. It
# installs and fetches nothing; VENV has what the tests need. PROJECT names some of them, WRITE a page for the table,
# TEST_MINUTES the time limit of a test.
# make accelerators: what XLA makes of the benchmarks for a GPU and a TPU, which need not be there, into
# docs/accelerators.md. Its compilers take 6 GB. Compiled programs are remembered in .accelerators/.
# make docs: the documentation site, into site/. make docs-version: the same beside those of other versions, as a commit on
# the branch gh-pages.
# make dist: sdist and wheel into dist/, checked; the wheel is installed into an empty environment and run there.
# make test: lint, types and the tests, with the newest jax that there is for the Python that is there.
# make test-pages: the code of pages and docstrings, the notebooks, the site, the examples, commands, benchmarks, runs
# that are killed, scans on several devices; with the same jax.
# make test-oldest: the core with the oldest jax. make test-newest: the core, orders of transformations and loops that
# stop with the newest Python that is there, and the core once more with JAX_REMAT3=1. What the core is, docs/versions.md
# says: the properties that tests with the mark `core` show.
# .ci/run runs these four.
# make test-all: all of them and the slow tests too, with every Python. Its parts are make
# test-slow (TESTS=tests/engine for some of it), make test-remat and make test-pythons.
# make test-orders: every order of transformations around odd steps, and cells with planted NaN and inf, with the newest
# jax for each Python that is there. TESTS says which of them.
# make coverage: the lines that make test runs.

SHELL := bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
# Newer interpreters, the newest first, each with the jax that it is tested with. They are looked for on PATH, and then
# among the versions of pyenv.
PYTHONS ?= python3.13,jax~=0.12.0 python3.12,jax~=0.11.0
# What pip is told of jax beside what pyproject.toml says; empty for the newest that there is for the Python.
JAX ?=
OLDEST_JAX := jax==0.10.0 jaxlib==0.10.0
# One version for both compilers, so that their tables belong together.
COMPILERS_JAX := 0.10.2
NEW_FLAGS := JAX_REMAT3 JAX_SCAN3 JAX_CUSTOM_VJP3 JAX_CUSTOM_JVP3
# The files with tests of the core. What differs from one jax or Flax to the next shows there first.
CORE_TESTS := $(shell grep -rlE 'pytest\.mark\.(core|newest)\b' tests --include='test_*.py')
# The run-time type checks; tests that give wrong types on purpose run without them. Checking the engine's functions
# too, which are called most often, is for make test-all.
comma := ,
space := $(subst ,, )
PARTS := $(filter-out rnnscan/__% rnnscan/engine rnnscan/py,$(basename $(wildcard rnnscan/*)))
TYPED := --jaxtyping-packages=$(subst $(space),$(comma),$(subst rnnscan/,rnnscan.,$(PARTS))),beartype.beartype
TYPED_ALL := --jaxtyping-packages=rnnscan,beartype.beartype
# Bytecode is written in any case, so that no part compiles again what an earlier one did.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q
# Commands and benchmarks, which train a model or measure a table in a test.
COMMANDS := tests/benchmarks $(addprefix tests/cli/test_,train.py tradeoff.py)
# What starts processes or runs as long as a program does; docstrings, whose code is that of the reference; what needs
# onnx, which `make test` does not install.
PAGES := rnnscan tests/docs tests/notebooks tests/examples $(COMMANDS) \
    tests/cli/test_processes.py tests/export/test_processes.py \
    $(addprefix tests/interop/test_,equinox.py haiku.py) tests/export/onnx tests/insight/test_plan_on_meshes.py tests/inside/tracing/test_devices.py tests/test_mesh.py \
    $(addprefix tests/train/test_,kills.py processes.py placement.py) \
    $(addprefix tests/sharding/test_,units.py every_cell.py over_time.py pipeline.py others.py)
WITHOUT_PAGES := tests $(addprefix --ignore=,$(PAGES))
# The tests that call each public function with the run-time type checks. The checks take a fifth of the tests' time.
TYPED_TESTS := $(shell grep -rl 'pytest.mark.typed' tests --include='test_*.py')
# Files whose tests all run so, which need not be collected for the others.
ALL_TYPED := $(shell grep -rlE '^pytestmark = .*pytest.mark.typed' tests --include='test_*.py' | xargs grep -L bad_input)
# A line for each part, which `make test` shows at its end.
SUMMARY := $(abspath $(VENV))/.summary
part = TEST_SUMMARY=$(SUMMARY) TEST_PART="$(1)"
show = @echo; echo "$(1), with $$($(BIN)/python tests/support/installed.py) in $(VENV):"; cat $(SUMMARY)

# A target with the Python and the jax of a pair, where the Python is there.
find = path=$$($(PYTHON) tests/support/interpreters.py $${pair%,*})
with = jax=$${pair\#*,}; $(MAKE) $(1) PYTHON=$$path VENV=.venv-$${pair%,*} JAX="$$jax $${jax/jax/jaxlib}"

.PHONY: demo bench bench-beyond bench-sweep bench-small bench-small-here bench-cost-model bench-imports papers accelerators accelerators-here docs docs-version dist test lint-part test-parts test-oldest test-core test-newest test-newest-here test-pages test-all test-slow test-remat test-pythons test-orders test-orders-here test-suites coverage lint clean

demo: $(VENV)/.installed-train
	@echo "This demo shows the memory of training. It sets no record in language modeling."
	$(BIN)/rnnscan train --out runs/demo --overwrite
	$(BIN)/rnnscan tradeoff --plot runs/demo/tradeoff.png

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks --write docs/benchmarks.md
	$(BIN)/python -m benchmarks.loops --write docs/benchmarks_of_loops.md
	$(BIN)/python -m benchmarks.serving --write docs/benchmarks_of_serving.md
	$(BIN)/python -m benchmarks.inside --write docs/benchmarks_of_tools.md
	$(BIN)/python docs/make_benchmark_picture.py

bench-beyond: $(VENV)/.installed-train
	$(BIN)/python -m benchmarks.beyond --write docs/benchmarks_beyond.md

SEED ?= 1000
USES ?= 60
bench-sweep: $(VENV)/.installed-train
	$(BIN)/python -m benchmarks.sweep --seed $(SEED) --uses $(USES) \
	    $(addprefix --against ,$(AGAINST)) $(addprefix --record ,$(RECORD)) \
	    $(if $(PUBLISHED),--published,$(if $(filter-out 0 1 2 3 4 5 6 7 8 9,$(SEED)),--write docs/benchmarks_sweep.md))

bench-small:
	$(MAKE) bench-small-here
	for pair in $(PYTHONS); do \
	    if $(find); then $(call with,bench-small-here); exit; fi; \
	done

# Without the flag of XLA that makes larger loops one kernel, and with it.
bench-small-here: $(VENV)/.installed-bench-small
	$(BIN)/python -m benchmarks.small_loops uses --write docs/benchmarks_of_small_loops.md
	$(BIN)/python -m benchmarks.small_loops uses --flag --write docs/benchmarks_of_small_loops.md

bench-cost-model: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.cost_model

bench-imports: $(VENV)/.installed-train
	$(BIN)/python -m benchmarks.imports

papers: $(VENV)/.installed-papers
	$(BIN)/python -m benchmarks.papers --write docs/papers.md

test-suites:
	@test -n "$(SUITES)" || { echo "make test-suites: say where the checkouts are, with SUITES=folder"; exit 2; }
	@test -x $(BIN)/python || { echo "make test-suites: $(VENV) is no environment; say which one, with VENV=folder"; exit 2; }
	$(BIN)/python -m benchmarks.suites $(SUITES) --jobs $(JOBS) $(addprefix --project ,$(PROJECT)) $(addprefix --write ,$(WRITE)) \
	    $(addprefix --test-minutes ,$(TEST_MINUTES))

accelerators:
	$(MAKE) accelerators-here DEVICE=gpu VENV=.venv-gpu JAX="jax[cuda12]==$(COMPILERS_JAX)"
	$(MAKE) accelerators-here DEVICE=tpu VENV=.venv-tpu JAX="jax[tpu]==$(COMPILERS_JAX)"
	.venv-tpu/bin/python -m benchmarks.accelerators page --write docs/accelerators.md

# For the device that DEVICE says, with the jax that JAX says, in the environment that VENV says.
accelerators-here: $(VENV)/.installed-train
	$(BIN)/python -m benchmarks.accelerators compile $(DEVICE)
	$(BIN)/python -m benchmarks.accelerators measure $(DEVICE)

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# A commit on the branch gh-pages; PUSH=--push sends it. The branch keeps the pages of earlier versions.
docs-version: $(VENV)/.installed-docs
	version=$$($(BIN)/python -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])'); \
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy $(PUSH) --update-aliases $${version%.*} latest
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/mike set-default $(PUSH) latest

dist: $(VENV)/.installed-dist
	rm -rf dist build
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 315532800); \
	$(BIN)/python -m build && $(BIN)/python -m build --outdir build/again
	for file in dist/*; do cmp $$file build/again/$$(basename $$file) || exit 1; done
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

# With the jax that JAX says, in the environment that VENV says.
test: $(VENV)/.installed-dev
	rm -f $(SUMMARY)
	$(MAKE) -j2 lint-part test-parts
	$(call show,make test)
	@echo "not run: slow tests (make test-all), pages and programs (make test-pages), other versions of jax" \
	    "(make test-oldest, make test-newest)"

# Beside the first tests, because it leaves a core idle.
lint-part:
	SECONDS=0; $(MAKE) lint && echo "lint and types: passed in $$SECONDS s" >> $(SUMMARY)

test-parts:
	$(call part,tests) $(PYTEST) -m "not slow and (bad_input or not typed)" $(WITHOUT_PAGES) \
	    $(addprefix --ignore=,$(ALL_TYPED))
	$(call part,tests with type checks) $(PYTEST) $(TYPED) -m "typed and not slow and not bad_input" $(TYPED_TESTS)

test-oldest:
	$(MAKE) test-core VENV=.venv-oldest JAX="$(OLDEST_JAX)"

test-core: $(VENV)/.installed-core
	rm -f $(SUMMARY)
	$(call part,core) SMALL_LOOPS=1 $(PYTEST) -m "core and not slow" $(CORE_TESTS)
	$(call show,the core)

test-newest:
	@for pair in $(PYTHONS); do \
	    if $(find); then $(call with,test-newest-here); exit; fi; \
	    missing+=" $${pair%,*}"; echo "make test-newest: no $${pair%,*} on PATH or among the versions of pyenv" >&2; \
	done; \
	line=$$(printf '!%.0s' {1..100}); \
	printf '%s\n' "$$line" "make test-newest: NOTHING RAN, because none of these is there:$$missing" \
	    "Nothing was tested with a newer jax, nor with JAX_REMAT3=1. Install one of them." "$$line" >&2

# The second run takes compiled programs of the first.
test-newest-here: $(VENV)/.installed-core
	rm -f $(SUMMARY)
	$(call part,core) $(PYTEST) -m "(core or newest) and not slow" $(CORE_TESTS)
	$(call part,core with JAX_REMAT3=1) JAX_REMAT3=1 $(PYTEST) -m "core and not slow" $(CORE_TESTS)
	$(call show,make test-newest)

test-pages: $(VENV)/.installed-pages
	rm -f $(SUMMARY)
	$(call part,pages and programs) $(PYTEST) -m "not slow" $(PAGES)
	$(call show,make test-pages)

coverage: $(VENV)/.installed-coverage
	$(PYTEST) --cov --cov-report=term-missing:skip-covered -m "not slow" rnnscan \
	    $(filter-out $(addprefix --ignore=,rnnscan tests/export/onnx $(COMMANDS)),$(WITHOUT_PAGES))

test-all: test-slow test-remat test-pythons

# All tests, or those that TESTS says, with run-time type checks everywhere but for random cells.
test-slow: $(VENV)/.installed-pages lint
	$(PYTEST) $(TYPED_ALL) -m "not bad_input and not fuzz" $(TESTS)
	$(PYTEST) -m "bad_input or fuzz" $(TESTS)

# JAX's new transformations, each behind a variable. jax 0.10.0 has two of them, 0.10.2 JAX_REMAT3 too, 0.11.1 all. The
# tests run with each that the installed jax knows, because it ignores the others; not with JAX_SCAN3 where lax.scan has
# no gradient with it. Docstrings take what the new remat refuses.
test-remat: $(VENV)/.installed-pages
	@known="$$($(BIN)/python tests/support/jax_flags.py $(NEW_FLAGS))"; failed=""; \
	echo "make test-remat: of $(NEW_FLAGS) tests can run with $${known:-none}; docs/versions.md says why"; \
	for flag in $$known; do \
	    echo "make test-remat: $$flag=1"; \
	    env $$flag=1 $(PYTEST) $(TYPED) -m "not bad_input and not slow" $(or $(TESTS),tests) || failed="$$failed $$flag"; \
	done; \
	test -z "$$failed" || { echo "make test-remat: failed with$$failed"; exit 1; }

test-pythons:
	$(MAKE) test test-pages
	$(MAKE) test test-pages VENV=.venv-oldest JAX="$(OLDEST_JAX)"
	for pair in $(PYTHONS); do \
	    if $(find); then $(call with,test test-pages) || exit 1; \
	    else echo "make test-pythons: not run, because $${pair%,*} is not there: $$pair"; fi; \
	done

# Where a loop is compared with lax.scan: every order of transformations, and values that are not finite.
ORDERS := tests/engine/test_orders.py tests/engine/test_not_finite.py tests/cells/test_not_finite.py
test-orders:
	failed=""; $(MAKE) test-orders-here || failed="$$failed $(PYTHON)"; \
	for pair in $(PYTHONS); do \
	    if $(find); then $(call with,test-orders-here) || failed="$$failed $$pair"; \
	    else echo "make test-orders: not run, because $${pair%,*} is not there: $$pair"; fi; \
	done; \
	test -z "$$failed" || { echo "make test-orders: failed with$$failed"; exit 1; }

# With the jax that JAX says, in the environment that VENV says.
test-orders-here: $(VENV)/.installed-dev
	$(PYTEST) $(or $(TESTS),$(ORDERS))

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# An extra into the environment, beside what is there. Files are compiled by all jobs at once, which pip does not do; no
# test imports the tests of packages, and mypy runs from its extension modules. Some of torch's files are for a newer
# Python than 3.11, and do not compile.
define install
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[$(1)]" $(JAX)
	$(BIN)/python -m compileall -qq -j $(JOBS) -x 'site-packages/(.*/tests|pip|mypyc?)/' \
	    "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
	touch $@
endef

$(VENV)/.installed-train: pyproject.toml
	$(call install,train$(comma)plot)

$(VENV)/.installed-bench: pyproject.toml
	$(call install,bench)

$(VENV)/.installed-bench-small: pyproject.toml
	$(call install,bench-small)

$(VENV)/.installed-papers: pyproject.toml
	$(call install,papers)

$(VENV)/.installed-docs: pyproject.toml
	$(call install,docs)

$(VENV)/.installed-dist: pyproject.toml
	$(call install,dist)

$(VENV)/.installed-core: pyproject.toml
	$(call install,core)

$(VENV)/.installed-dev: pyproject.toml
	$(call install,dev)

$(VENV)/.installed-pages: pyproject.toml
	$(call install,pages)

$(VENV)/.installed-coverage: pyproject.toml
	$(call install,coverage)

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
