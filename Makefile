PYTHON ?= python3
# A folder of wheels to install from instead of an index
WHEELS ?=
# Passed on to the demo, the benchmark or pytest
ARGS ?=
JOBS ?= 2
# A checkout of https://github.com/meta-pytorch/tritonbench, and the modes to run (docs/tritonbench.md)
TRITONBENCH_DIR ?= ../tritonbench
MODES ?= fwd bwd fwd_bwd fwd_no_grad

VENV := .venv
RUN := $(VENV)/bin/python
OFFLINE := $(if $(WHEELS),--no-index --find-links $(WHEELS))

# Triton 3.10 changes this default, and numbers with it
export TRITON_DEFAULT_FP_FUSION ?= 1

.PHONY: demo test bench lint format clean

demo: $(VENV)/.ready
	$(RUN) benchmarks/demo.py $(ARGS)

# One thread a process: pytest runs JOBS of them
test: export OMP_NUM_THREADS ?= 1
test: $(VENV)/.ready
	$(RUN) -m pytest -n $(JOBS) $(ARGS)

# about 6 minutes on one H200; ARGS=--quick: under 90 s
bench: $(VENV)/.ready
	$(RUN) -m benchmarks.bench $(ARGS)

lint: $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

format: $(VENV)/.lint
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

.PHONY: bench-tritonbench
# A process a mode; it fails when a backend is missing, raises or is inaccurate
bench-tritonbench: export PYTHONPATH := $(abspath $(TRITONBENCH_DIR)):$(CURDIR)
bench-tritonbench: $(VENV)/.tritonbench
	set -e; for mode in $(MODES); do $(RUN) -m tritonbench_ops --op sinkhorn --mode $$mode $(ARGS); done

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/.ready: pyproject.toml constraints.txt ci/bootstrap.py
	$(PYTHON) ci/bootstrap.py $(VENV) $(if $(WHEELS),--wheels $(WHEELS))
	touch $@

$(VENV)/.lint: $(VENV)/.ready
	$(RUN) -m pip install -q -c constraints.txt $(OFFLINE) ruff import-linter
	touch $@

$(VENV)/.tritonbench: $(VENV)/.ready
	$(RUN) -m pip install -q --no-build-isolation $(OFFLINE) -e ".[tritonbench]"
	touch $@
