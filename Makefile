# make demo   install, compile the digits example for two roles, train it, show the accuracy
# make test   install, run the test suite but its slow part
# make slow   the slow part, and the comparison with PyTorch
# make test-gpu  on a machine with an NVIDIA or AMD GPU: every kernel, op and example there, bits and speed
# make lint   ruff and pyright; `make format` mends what ruff can
# make clean  remove .venv and runs

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEMO := runs/demo
SIDE_BY_SIDE := -n 2 --dist loadfile  # two processes, each with whole files of tests
SOURCES := alphac ir backends runtime tests benchmarks scripts

.PHONY: demo test slow test-gpu lint format clean

# What is installed is written down by stamps, so that a second run starts at once; a changed pyproject.toml renews them.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing alphac into $(VENV)"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "installing what the tests need"
	@$(INSTALL) --editable '.[dev]'
	@touch $@

$(VENV)/installed-peers: $(VENV)/installed-dev
	@echo "installing the peers that the slow tests compare with"
	@$(INSTALL) --editable '.[dev,peers]'
	@touch $@

$(VENV)/installed-gpu: $(VENV)/installed-dev
	@echo "installing what drives an NVIDIA GPU"
	@$(INSTALL) --editable '.[dev,cuda]'
	@touch $@

demo: $(VENV)/installed
	@rm -rf $(DEMO)
	@mkdir -p $(DEMO)
	$(BIN)/alphac compile examples/digits_mlp/digits_mlp.alpha --roles 2 -o $(DEMO)/digits_mlp.bundle
	$(BIN)/alphac run $(DEMO)/digits_mlp.bundle --out $(DEMO)/run

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "not slow and not peers"

slow: $(VENV)/installed-peers
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "slow or peers"

test-gpu: $(VENV)/installed-gpu
	$(BIN)/python -m pytest -q -m gpu tests/test_gpu_hardware.py
	$(BIN)/python benchmarks/gpu.py

# ruff does not follow the links in alphac/, so the three folders are named, each read once.
lint: $(VENV)/installed-dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/pyright

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:
	rm -rf $(VENV) runs
