# Every target works on a fresh machine with only python3 and pip: it creates .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: demo test test-fast test-cluster test-suites oracles coverage test-page lint docs docs-serve architecture wheel-check bench clean

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '.[gym,minatar,report,tune,onnx,dev]'
	touch $@

.venv/.docs: .venv/.installed
	$(BIN)/pip install --quiet -e '.[docs]'
	touch $@

# The CPU build of torch first, so that stable-baselines3 does not bring several GB of CUDA packages.
TORCH := 'torch==2.13.0'

.venv/.peers: .venv/.installed
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet -e '.[peers]'
	touch $@

.venv/.cluster: .venv/.installed
	$(BIN)/pip install --quiet -e '.[cluster]'
	touch $@

.venv-oracles/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-oracles
	.venv-oracles/bin/pip install --quiet --upgrade pip
	.venv-oracles/bin/pip install --quiet $(TORCH)
	.venv-oracles/bin/pip install --quiet -e '.[gym,minatar,report,tune,dev,oracles]'
	touch $@

# For capo bench suite: Stable-Baselines3, LunarLander and MiniGrid, apart from what the tests use.
.venv-suite/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-suite
	.venv-suite/bin/pip install --quiet --upgrade pip
	.venv-suite/bin/pip install --quiet $(TORCH)
	.venv-suite/bin/pip install --quiet -e '.[gym,minatar,report,suite]'
	touch $@

demo: .venv/.installed
	rm -rf runs/demo
	$(BIN)/capo train minatar-breakout --preset cpu --frames 3000000 --out runs/demo
	$(BIN)/capo watch runs/demo --out runs/demo/play.gif

test: .venv/.installed
	$(BIN)/pytest -n $(JOBS)

# What compiles no training program: under a minute.
FAST := tests/docs tests/report tests/tabular $(wildcard tests/test_*.py) \
  $(wildcard tests/neural/test_checkpoint.py tests/neural/test_config.py tests/neural/test_re[pt]*.py)
test-fast: .venv/.installed
	$(BIN)/pytest -n $(JOBS) -m 'not oracle and not slow' $(FAST)

# Sweeps on a Ray cluster of three nodes on this machine, some of which are killed: about three minutes.
test-cluster: .venv/.cluster
	$(BIN)/pytest -m cluster tests/sweeps

# The suites of jitted environments, all in one venv.
.venv-suites/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-suites
	.venv-suites/bin/pip install --quiet --upgrade pip
	.venv-suites/bin/pip install --quiet -e '.[gym,gymnax,pgx,jumanji,craftax,navix,dev]'
	touch $@

test-suites: .venv-suites/.installed
	.venv-suites/bin/pytest tests/neural/test_suites.py

# The tests that compare with other libraries (Stable-Baselines3, rlax, rliable, TensorBoard), in a venv of their own.
oracles: .venv-oracles/.installed
	.venv-oracles/bin/pytest -m oracle

# The share of the lines of src/capo that the tests run; the total is the last line.
coverage: .venv/.installed
	$(BIN)/pytest -n $(JOBS) --cov --cov-report=term

# The report page in a real browser; apart from test, since it needs a system package.
CHROMIUM ?= chromium
test-page: .venv/.installed
	@command -v $(CHROMIUM) >/dev/null || { \
	  echo "make test-page needs a browser: apt-get install chromium (or CHROMIUM=path of another Chrome)"; exit 1; }
	CHROMIUM=$(CHROMIUM) $(BIN)/pytest tests/page/check_page.py

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a website in site/; a broken link or reference is an error.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "built site/index.html; make docs-serve shows it at http://127.0.0.1:8000"

docs-serve: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# The picture of the import graph in docs/architecture.md, and its problems if it has any.
architecture:
	$(PYTHON) tools/import_graph.py --draw

# Build the wheel, install it in a venv of its own and use it from another folder.
wheel-check:
	$(PYTHON) tools/check_wheel.py

bench: .venv/.peers
	$(BIN)/python benchmarks/tabular.py
	$(BIN)/python benchmarks/tabular_scale.py
	$(BIN)/python benchmarks/neural.py --out runs/bench/neural.json

clean:
	rm -rf .venv .venv-oracles .venv-suite .venv-suites runs site dist build .coverage* .pytest_cache .mypy_cache .ruff_cache
