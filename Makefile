# Two commands are all a newcomer needs: `make demo` and `make test`. Each installs what is missing by itself.

BIN := .venv/bin
# Tests differ a thousandfold in length: an idle process takes over what another has not begun.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations 15
TYPES := $(BIN)/mypy && $(BIN)/lint-imports

.PHONY: help setup demo check test test-ops test-backends test-corpus test-integration test-guides test-distributed test-chaos test-fuzz lint style format bench test-gpu bench-gpu figures

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

setup: ## create .venv and install what is missing
	@scripts/setup.sh

demo: setup ## train a small model on this machine, from raw text to a chat (DEMO="--minutes 10" and other options)
	@$(BIN)/glmforge demo $(DEMO)

check: setup style ## before a commit, in two minutes: style, types, and the unit tests of the rooms that differ from main
	$(TYPES)
	@tests=$$($(BIN)/python scripts/changed_tests.py); [ -z "$$tests" ] || $(BIN)/python -m pytest -q -n 2 $$tests

# Types and imports take more than a minute of one core: beside the tests, and shown below them.
test: setup style ## lint, types, imports, and the tests of glmforge: unit, distributed, end to end
	@log=$$(mktemp); { $(TYPES); } >$$log 2>&1 & types=$$!; \
	$(PYTEST) --ignore tests/integration --ignore tests/ops --ignore tests/corpus --ignore tests/backends; tests=$$?; \
	wait $$types; types=$$?; cat $$log; rm $$log; exit $$((tests | types))

test-ops: setup ## the tests of glmforge_ops: checks, setup, jobs; real Slurm, ssh and Prometheus on this machine
	$(PYTEST) tests/ops

test-backends: setup ## DeepSpeed and Megatron against ours, with the real packages; installs and compiles them the first time
	@$(BIN)/python -c "import deepspeed, megatron.core" 2>/dev/null || DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet \
		--no-build-isolation -c constraints.txt -e '.[backends]'
	@export TORCH_EXTENSIONS_DIR=$(CURDIR)/.venv/torch_extensions PATH=$(CURDIR)/$(BIN):$$PATH; \
	python -W ignore scripts/compile_deepspeed.py && $(PYTEST) tests/backends

test-corpus: setup ## the tests of glmforge_corpus
	$(PYTEST) tests/corpus

test-integration: setup ## whole runs, kills and resumes, reinforcement learning, real servers, the chat page in chromium
	$(PYTEST) tests/integration

test-guides: setup ## every command of every guide, on the data that it makes; real Slurm and ssh on this machine
	$(BIN)/python -m pytest -m guides --durations 15

test-distributed: setup ## every layout against one process, on up to 8 processes
	$(BIN)/python -m pytest -m full --durations 15

test-chaos: setup ## runs that are killed, starved and signalled again and again, and finish
	$(BIN)/python -m pytest -m chaos -s --durations 15

test-fuzz: setup ## 100,000 damaged files from outside: each accepted or refused in one line; writes benchmarks/results/fuzz.json
	$(BIN)/python benchmarks/fuzz.py

lint: style ## ruff, mypy, import-linter
	$(TYPES)

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup ## let ruff put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## training step against transformers: writes benchmarks/results/train_step.json
	$(BIN)/python benchmarks/train_step.py

test-gpu: ## every test that needs a GPU, on this machine's; installs nothing (docs/gpu.md)
	@scripts/gpu.sh tests

bench-gpu: ## tests and measurements on this machine's GPU, into gpu-results/; installs nothing (docs/gpu.md)
	@scripts/gpu.sh all

figures: setup ## list results older than the code they measured, measure them again, write README and docs (FIGURES="NAME ..." for some)
	$(BIN)/python benchmarks/figures.py measure $(FIGURES)
