PYTHON ?= python3
# A folder of wheels to install from instead of an index
WHEELS ?=
# Passed on to the demo or to pytest
ARGS ?=
JOBS ?= 2
# make tune DEVICE=h200 [KERNEL=] [TAGS=] [EFFORT=quick|full] [BUDGET=seconds] [FORCE=1] [OFFLINE=1] [ARGS=]
TUNE := $(if $(KERNEL),--kernel $(KERNEL)) $(if $(TAGS),--tags $(TAGS)) $(if $(EFFORT),--effort $(EFFORT)) \
	$(if $(BUDGET),--budget $(BUDGET)) $(if $(FORCE),--force) $(if $(OFFLINE),--offline)

VENV := .venv
RUN := $(VENV)/bin/python
OFFLINE := $(if $(WHEELS),--no-index --find-links $(WHEELS))

# Triton 3.10 changes this default, and numbers with it
export TRITON_DEFAULT_FP_FUSION ?= 1

.PHONY: demo test tune tuning-readme lint format clean

demo: $(VENV)/.ready
	$(RUN) benchmarks/demo.py $(ARGS)

# One thread a process: pytest runs JOBS of them
test: export OMP_NUM_THREADS ?= 1
test: $(VENV)/.ready
	$(RUN) -m pytest -n $(JOBS) $(ARGS)

tune: $(VENV)/.ready
	$(RUN) -m helion_sinkhorn tune --device $(or $(DEVICE),$(error DEVICE= names what to tune for)) $(TUNE) $(ARGS)

tuning-readme: $(VENV)/.ready
	$(RUN) -m helion_sinkhorn readme

lint: $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

format: $(VENV)/.lint
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/.ready: pyproject.toml constraints.txt ci/bootstrap.py
	$(PYTHON) ci/bootstrap.py $(VENV) $(if $(WHEELS),--wheels $(WHEELS))
	touch $@

$(VENV)/.lint: $(VENV)/.ready
	$(RUN) -m pip install -q -c constraints.txt $(OFFLINE) ruff import-linter
	touch $@
