# make demo, make test: each makes its own .venv, once. Nothing else is needed but python3.
# Overridable: PYTHON=python3.13, CONSTRAINTS=my.txt (or empty), PIP_ARGS="--index-url …".
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
PIP_ARGS ?=
PY = $(VENV)/bin/python
# Two processes with one thread each: two with two threads each crawl on two cores.
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest -q -n 2

.PHONY: demo test test-all lint format docs bench clean help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

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
	$(PY) -m pip install -q $(PIP_ARGS) -r benchmarks/requirements.txt
	$(PY) benchmarks/reference.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) docs/_build runs

# The stamp .venv/.EXTRA says that the extra is installed as pyproject.toml has it now.
$(VENV)/.%: pyproject.toml $(CONSTRAINTS)
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing urnn[$*] into $(VENV) (once; a minute or two)"
	@$(PY) -m pip install -q --disable-pip-version-check $(PIP_ARGS) \
		$(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[$*]'
	@touch $@
