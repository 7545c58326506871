# The two commands of a fresh clone are `make demo` and `make test`. They need Python 3.11 and make.
#
#   PYTHON            interpreter that the environment is made with (python3.11)
#   VENV              folder of the environment (.venv)
#   TORCH_INDEX_URL   address of PyTorch's wheel index for CPUs, where pip does not find torch's
#                     CPU build by itself (PyTorch's install page shows it under "CPU")
#   DEMO_POLICY       `scripted` runs the demo without vLLM
#   POINTS, SEED      crash points of `make twin` (100), and the seed that it replays
#   KEEP              KEEP=1 leaves the demo's stack and the Temporal UI up

PYTHON ?= python3.11
VENV ?= .venv
TORCH_INDEX_URL ?=
DEMO_POLICY ?= vllm
POINTS ?= 100
NEMO_GYM ?= nemo-gym==0.7.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
LOCKS := requirements.lock requirements-dev.lock
INSTALLED := $(VENV)/.installed
# Two test processes, each with whole files: a file's tests may share a stack.
SPREAD := -n 2 --dist loadfile
# Real tests run one after the other: stacks side by side on two cores miss their times.
SPREAD_REAL :=

.PHONY: install check test test-real test-long twin test-all demo clean help
.DEFAULT_GOAL := help
.NOTPARALLEL:

help: ## Show the targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED) ## Make the environment from the locks.

$(INSTALLED): $(LOCKS) pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps $(addprefix -r ,$(LOCKS)) \
		$(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
	# For its example rows alone: it asks for a newer Python, and its code is never imported.
	$(PIP) --no-deps --ignore-requires-python $(NEMO_GYM)
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@

check: install ## Lint, types, import contracts, unit tests: under 2 minutes.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q $(SPREAD) -m "not real and not vllm"

demo: install ## The whole story: save, kill everything, restore, go on. KEEP=1 leaves it up.
	DEMO_POLICY=$(DEMO_POLICY) KEEP=$(KEEP) $(BIN)/python -m workers.demo

test-real: install ## Tests on real processes; those about the demo read its last report.
	$(BIN)/python -m pytest -q $(SPREAD_REAL) -m "(real or vllm) and not long" $(TESTS)

test: check demo test-real ## What CI runs: at most 40 minutes with the install.

test-long: install ## Minutes of real processes; a hundred saves write docs/results/hundred_saves.json.
	$(BIN)/python -m pytest -q -m "long" $(TESTS)

twin: install ## A job with 100 crashes against the undisturbed one; SEED=N POINTS=M replays.
	$(BIN)/python -m tests.twin.in_process --points 500 $(if $(SEED),--seed $(SEED),--write)
	$(BIN)/python -m tests.twin.real --points $(POINTS) $(if $(SEED),--seed $(SEED),--write)

test-all: test test-long twin ## Everything; longer runs write dated results to docs/results.

clean: ## Remove what was made, but not the environment.
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache *.egg-info
