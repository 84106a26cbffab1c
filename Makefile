# Every target works on a fresh machine with only python3 and pip: it creates .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: demo test test-page lint bench clean

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '.[gym,minatar,report,dev]'
	touch $@

# The CPU build of torch first, so that stable-baselines3 does not bring several GB of CUDA packages.
.venv/.peers: .venv/.installed
	$(BIN)/pip install --quiet 'torch==2.13.0'
	$(BIN)/pip install --quiet -e '.[peers]'
	touch $@

demo: .venv/.installed
	rm -rf runs/demo
	$(BIN)/capo train minatar-breakout --preset cpu --frames 3000000 --out runs/demo
	$(BIN)/capo watch runs/demo --out runs/demo/play.gif

test: .venv/.installed
	$(BIN)/pytest -n $(JOBS)

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

bench: .venv/.peers
	$(BIN)/python benchmarks/tabular.py
	$(BIN)/python benchmarks/neural.py --out runs/bench/neural.json

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache
