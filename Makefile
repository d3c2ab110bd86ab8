# Two commands do everything on a fresh machine: make demo, make test.
# As root, what Debian packages they need is installed; otherwise what needs them is skipped.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
RUN_AS_ROOT := $(filter 0,$(shell id -u))

.PHONY: help setup demo test lint bench clean

help:
	@echo "make demo   set up, then show the main job on this machine's GPUs or on a sample node"
	@echo "make test   set up, then lint and test everything"
	@echo "make lint   formatting, types and layers"
	@echo "make bench  speed and size, as ratios"
	@echo "make setup  only set up what the tests need"

$(VENV)/.tool: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed; name one with: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(MAKE) --no-print-directory debian PACKAGES=python3-venv
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.tests: $(VENV)/.tool tests/debian-packages.txt
	@$(MAKE) --no-print-directory debian PACKAGES="$$(grep -v '^#' tests/debian-packages.txt | tr '\n' ' ')"
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[plugin,dev]'
	@touch $@

.PHONY: debian
debian:
ifneq ($(RUN_AS_ROOT),)
	@dpkg-query -W -f '$${db:Status-Status}\n' $(PACKAGES) 2>&1 | grep -qvx installed || exit 0; \
	apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends $(PACKAGES) >/dev/null
else
	@echo "not root, so these packages are not installed, and tests that need them are skipped: $(PACKAGES)"
endif

setup: $(VENV)/.tests

demo: $(VENV)/.tool
	@PATH="$(CURDIR)/$(BIN):$$PATH" packaging/demo.sh

lint: $(VENV)/.tests
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports

# The longest first, two at a time: most of them wait for kernels and containers to start.
FOLDERS := kernel cluster libamvgpu integration packaging plugin cli unit

test: lint
	@echo "Testing $(FOLDERS): what each says is shown when it has ended."
	@$(MAKE) --no-print-directory --jobs=2 --output-sync --keep-going $(FOLDERS:%=test-%)

test-%:
	@echo "== tests/$*"
	@$(BIN)/pytest tests/$*

# Each fails if one of its bounds is broken; all are run, the storm of ten minutes last.
BENCHES := tests.bench tests.bench.ocihook tests.bench.plugin tests.bench.libamvgpu_speed \
	tests.bench.libamvgpu_storm

bench: $(VENV)/.tests
	@status=0; for bench in $(BENCHES); do \
		echo "== $$bench"; $(BIN)/python -m $$bench || status=1; done; exit $$status

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
