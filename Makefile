# pip and venv only. The constraints pin what the tests were run with; torch's pin takes its CPU build.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo smoke test lint types docs bench clean

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs,track,pretrained,onnx,nvflare]"
	touch $@

demo: setup
	$(BIN)/fedvisage run demo --fresh

smoke: setup
	$(BIN)/fedvisage run smoke --fresh

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

test: lint types
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore tests/nvflare
	$(BIN)/pytest tests/nvflare  # real hosts, which keep both cores busy by themselves

docs: setup
	$(BIN)/mkdocs build --strict

bench: setup
	$(BIN)/python -m benchmarks $(if $(FULL),--full)

clean:
	rm -rf .venv runs site .mypy_cache .ruff_cache .pytest_cache .hypothesis
