# make demo, make test: each makes its own .venv, once. Nothing else is needed but python3.
# Overridable, before .venv exists (make clean removes it): PYTHON=python3.13,
# CONSTRAINTS=my.txt (or empty), PIP_ARGS="--extra-index-url …".
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
PIP_ARGS ?=
PY = $(VENV)/bin/python
PINNED = $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
# Two processes with one thread each: two with two threads each crawl on two cores.
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2

.NOTPARALLEL: # one pip at a time in one .venv
.PHONY: demo test test-all lint format docs bench clean help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.lab  ## train the uRNN on the copying memory task and draw what it learned
	$(PY) examples/copying.py

test: $(VENV)/.test  ## the tests, on a covering subset of the cases
	$(PYTEST) -m "not wide"

test-all: $(VENV)/.test  ## the tests, on all cases
	$(PYTEST)

lint: $(VENV)/.test  ## ruff and mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.test  ## let ruff format and sort
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(VENV)/.docs  ## build the site into docs/_build/html
	$(VENV)/bin/sphinx-build -W --keep-going -q docs docs/_build/html
	@echo docs/_build/html/index.html

bench: $(VENV)/.test  ## time the engines against their peers, once their agreement is shown
	$(PYTEST) -m "not wide" tests/ops
	$(PY) -m pip install -q $(PIP_ARGS) $(PINNED) -r benchmarks/requirements.txt
	$(PY) benchmarks/reference.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) docs/_build runs

# The stamp .venv/.EXTRA says that the extra is installed as pyproject.toml has it now.
$(VENV)/.%: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"Python 3.11 or later is needed; say which: make PYTHON=python3.13")'
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing urnn[$*] into $(VENV) (once; a minute or two)"
	@$(PY) -m pip install -q --disable-pip-version-check $(PIP_ARGS) \
		$(PINNED) -e '.[$*]'
	@touch $@
