# Two commands from a fresh clone, with nothing but Python 3.11 or 3.12:
#     make demo     the main job on the bundled agent and simulator, and a report
#     make test     lint, types and the test suite

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RIGHT_VERSION := import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))
# A process a core; the tests of a file share what they make; the longest files begin (tests/conftest.py has the order).
PARALLEL := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# More threads than cores wait for each other, and OpenBLAS's burn a core while they do.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# The first of these that starts and has the right version; override with `make PYTHON=/path/to/python`.
PYTHON ?= $(shell for p in python3.11 python3.12 python3; do \
	if "$$p" -c '$(RIGHT_VERSION)' 2>/dev/null; then echo "$$p"; break; fi; done)

.PHONY: help venv demo test test-all lint browser docs format clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      the main job on the bundled models, ending in runs/demo/report.html"
	@echo "make test      ruff, mypy and the tests"
	@echo "make test-all  the same with the slow tests, and the stages on a pretended GPU"
	@echo "make docs      the pages of docs/ and the docstrings as a site, runs/site/index.html"
	@echo "make format    let ruff format the code and mend what it can"
	@echo "make venv      only the virtual environment ($(VENV)) from requirements.lock"
	@echo "make clean     remove caches and the virtual environment; runs/ stays"

venv: $(STAMP)

$(STAMP): requirements.lock
	@"$(PYTHON)" -c '$(RIGHT_VERSION)' 2>/dev/null || { \
		echo "error: Dreamlens needs Python 3.11 or 3.12 ('$(PYTHON)' is not); install one, or make PYTHON=/path/to/python3.11" >&2; \
		exit 2; }
	@echo "Installing requirements.lock into $(VENV) (a few minutes the first time) ..."
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m validation.demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# tests/browser opens the interactive pages in the system's Chromium; where there is none, and Debian's may be installed, it is.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do \
		if command -v "$$name" >/dev/null; then exit 0; fi; done; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "Installing Debian's chromium for the tests of the interactive pages ..."; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			chromium fonts-dejavu-core; } >/dev/null 2>&1 || \
			echo "chromium could not be installed: the tests of the interactive pages are skipped (with CI=true they fail)"; \
	else \
		echo "no Chromium on PATH: the tests of the interactive pages are skipped (with CI=true they fail)"; \
	fi

test: lint browser
	$(ONE_THREAD) $(BIN)/python -m pytest -q -m "not slow" $(PARALLEL)

test-all: lint browser
	$(ONE_THREAD) $(BIN)/python -m pytest -q $(PARALLEL)
	$(ONE_THREAD) $(BIN)/python -m pytest -q $(PARALLEL) --pretend_gpu tests/stages tests/contract

docs: $(STAMP)
	PYTHONPATH=. $(BIN)/mkdocs build --strict --quiet

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
