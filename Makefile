# All that a newcomer needs is Python 3.11 or later and make. Environments are made on first use and kept:
#   .venv             casework with the tools of `pip install -e .[dev]`
#   .venvs/ministack  a DynamoDB and SQS server for the tests; pins its own botocore
#   .venvs/roto       a second DynamoDB server
#   .venvs/docs       MkDocs
#   .venvs/bench      casework and the peers it is compared with
# A stamp in each remembers what was installed; it is older than the file that lists the packages only after a change.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
JOBS ?= auto
ARGS ?=

.PHONY: help demo test lint format bench docs soak mutants contract servers wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

demo: .venv/.core ## an order machine, crashed and resumed, in a temporary folder
	@$(BIN)/casework demo

test: .venv/.dev servers ## all tests; ARGS="-k name" narrows them, JOBS=0 runs them in one process
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

lint: .venv/.dev ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/test_style.py

format: .venv/.dev ## rewrite the code in the one format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: .venvs/bench/.stamp .venvs/ministack/.stamp ## one benchmark beside its peers: make bench NAME=executions
	.venvs/bench/bin/python -m bench $(NAME) $(ARGS)

docs: .venvs/docs/.stamp ## the documentation, in site/
	NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/mkdocs build --strict --quiet

soak: .venv/.dev servers ## the tests that find faults by luck and time
	$(BIN)/python -m pytest -m soak -n $(JOBS) $(ARGS)

mutants: .venv/.dev ## changes of the source that no test notices: make mutants ARGS="streams --since main"
	$(BIN)/python -m tests.mutants $(ARGS)

contract: .venv/.dev servers ## the contract suites on any store: make contract STORE=sqlite:///x.db
	@test -n "$(STORE)" || { echo 'say which store: make contract STORE="dynamodb://?region=eu-west-1&prefix=check"'; exit 2; }
	$(BIN)/python -m pytest tests/contract --store '$(STORE)' $(ARGS)

servers: .venvs/ministack/.stamp .venvs/roto/.stamp ## the DynamoDB servers that the tests start

wheel: .venv/.dev ## dist/casework-*.whl
	$(BIN)/python -m build --wheel --outdir dist .

clean: ## remove everything that make made
	rm -rf .venv .venvs dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .mutants

# --- environments -------------------------------------------------------------------------------------------------
# pip is renewed first: the one that comes with Python 3.11 needs minutes for what a current one resolves in seconds.

define make-venv
@test -n "$(PYTHON)" || { echo "casework needs Python 3.11 or later; set PYTHON=/path/to/python"; exit 1; }
@test -x $(1)/bin/python || { echo "making $(1)"; $(PYTHON) -m venv $(1); }
@$(1)/bin/python $(PIP_INSTALL) --upgrade pip
endef

.venv/.core: pyproject.toml
	$(call make-venv,.venv)
	@$(BIN)/python $(PIP_INSTALL) -e .
	@touch $@

.venv/.dev: pyproject.toml
	$(call make-venv,.venv)
	@$(BIN)/python $(PIP_INSTALL) -e '.[dev]'
	@touch .venv/.core $@

.venvs/ministack/.stamp .venvs/roto/.stamp: .venvs/%/.stamp: tests/servers/requirements/%.txt
	$(call make-venv,.venvs/$*)
	@.venvs/$*/bin/python $(PIP_INSTALL) -r $<
	@touch $@

.venvs/docs/.stamp: pyproject.toml
	$(call make-venv,.venvs/docs)
	@.venvs/docs/bin/python $(PIP_INSTALL) -e '.[docs]'
	@touch $@

.venvs/bench/.stamp: pyproject.toml $(wildcard bench/requirements.txt)
	$(call make-venv,.venvs/bench)
	@.venvs/bench/bin/python $(PIP_INSTALL) -e '.[dynamodb]' $(patsubst %,-r %,$(wildcard bench/requirements.txt))
	@touch $@
