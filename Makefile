PYTHON ?= python3
# A folder of wheels to install from instead of an index
WHEELS ?=
# Passed on to the demo, the benchmark or pytest
ARGS ?=
JOBS ?= 2
# A checkout of https://github.com/meta-pytorch/tritonbench, and the modes to run (docs/tritonbench.md)
TRITONBENCH_DIR ?= ../tritonbench
MODES ?= fwd bwd fwd_bwd fwd_no_grad

# make tune DEVICE=h200 [KERNEL=] [TAGS=] [EFFORT=quick|full] [BUDGET=seconds] [FORCE=1] [OFFLINE=1] [ARGS=]
TUNE := $(if $(KERNEL),--kernel $(KERNEL)) $(if $(TAGS),--tags $(TAGS)) $(if $(EFFORT),--effort $(EFFORT)) \
	$(if $(BUDGET),--budget $(BUDGET)) $(if $(FORCE),--force) $(if $(OFFLINE),--offline)

VENV := .venv
RUN := $(VENV)/bin/python
OFFLINE := $(if $(WHEELS),--no-index --find-links $(WHEELS))

.PHONY: demo demo-model test bench lint lint-workflows format clean accuracy compare parity emulate mutants attack mutation fault-tables sanitize machine-terms device-rows attack-cache bench-tritonbench study-backward study-dot-compress tune tuning-readme

demo: $(VENV)/.ready
	$(RUN) benchmarks/demo.py $(ARGS)

# A DeepseekV4 of transformers, which it installs, with this residual path and without; 1 minute on one core
demo-model: $(VENV)/.demo-model
	$(RUN) -m benchmarks.demo_model $(ARGS)

# One thread a process: pytest runs JOBS of them
test: export OMP_NUM_THREADS ?= 1
test: $(VENV)/.ready
	$(RUN) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

# about 6 minutes on one H200; ARGS=--quick: under 90 s
bench: $(VENV)/.ready
	$(RUN) -m benchmarks.sinkhorn.bench $(ARGS)

# accuracy-<device>.json of the device at hand; the exit status is the verdict
accuracy: $(VENV)/.ready
	$(RUN) -m ci.accuracy $(ARGS)

# make compare ARGS="a/accuracy-h200.json b/accuracy-mi350.json"
compare: $(VENV)/.ready
	$(RUN) -m ci.compare $(ARGS)

# Errors of gradients over those of float32 PyTorch on a grid of peaked matrices; ARGS="--where cpu bodies"
parity: export OMP_NUM_THREADS ?= 1
parity: $(VENV)/.ready
	$(RUN) -m ci.parity_grid $(ARGS)

# AMD's machine code executed on this CPU and judged as a device is: docs/emulation.md says how long it takes;
# make emulate ARGS="--devices mi350 --workloads mhc_fp32 tail_5x3 --served"
emulate: export OMP_NUM_THREADS ?= 1
emulate: $(VENV)/.ready
	$(RUN) -m ci.emulate $(ARGS)

# Faults planted in that machine code, and what finds each
mutants: export OMP_NUM_THREADS ?= 1
mutants: $(VENV)/.ready
	$(RUN) -m ci.mutants $(ARGS)

# Bugs of every operator, run as kernels are: 5 minutes on one core
attack: export OMP_NUM_THREADS ?= 1
attack: $(VENV)/.ready
	$(RUN) -m ci.attack $(ARGS)

# Mutants of the kernel bodies' source in Helion's reference mode; ARGS="--count 0" tries all
mutation: export OMP_NUM_THREADS ?= 1
mutation: $(VENV)/.ready
	$(RUN) -m ci.mutation $(ARGS)

fault-tables: $(VENV)/.ready
	$(RUN) -m ci.fault_tables --write docs/accuracy.md

# compute-sanitizer over the kernels: an NVIDIA GPU and the CUDA toolkit
sanitize: $(VENV)/.ready
	$(RUN) -m ci.sanitize $(ARGS)

# Machine code of every committed program, compiled for four architectures on the CPU, against
# ci/machine_terms.txt: 23 minutes on 2 cores; ARGS="--only h200 mi350": 6, defaults for two of them
machine-terms: export OMP_NUM_THREADS ?= 1
machine-terms: $(VENV)/.ready
	$(RUN) -m ci.machine_terms $(ARGS)

# 100,000 tuning files changed at random, and eight tuners of which one after another is killed: 7 minutes
attack-cache: export OMP_NUM_THREADS ?= 1
attack-cache: $(VENV)/.ready
	$(RUN) tests/configs/cache_attack.py files
	$(RUN) tests/configs/cache_attack.py tuners

# Rows of ci/devices.toml as a GitHub matrix; ARGS=sanitizer: those where it is true
device-rows:
	@$(PYTHON) ci/devices.py $(ARGS)

# On the CPU: docs/backward.png and the tables of docs/backward.md
study-backward: export OMP_NUM_THREADS ?= 1
study-backward: $(VENV)/.ready
	$(RUN) -m benchmarks.sinkhorn.study_backward $(ARGS)

study-dot-compress: export OMP_NUM_THREADS ?= 1
study-dot-compress: $(VENV)/.ready
	$(RUN) -m benchmarks.dot_compress.study_rounding $(ARGS)

tune: $(VENV)/.ready
	$(RUN) -m helion_sinkhorn tune --device $(or $(DEVICE),$(error DEVICE= names what to tune for)) $(TUNE) $(ARGS)

tuning-readme: $(VENV)/.ready
	$(RUN) -m helion_sinkhorn readme

lint: $(VENV)/.lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

lint-workflows: $(VENV)/.lint
	$(RUN) -m pip install -q -c constraints.txt $(OFFLINE) check-jsonschema
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: $(VENV)/.lint
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# A process a mode; it fails when a backend is missing, raises or is inaccurate
bench-tritonbench: export OMP_NUM_THREADS ?= 1
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

$(VENV)/.demo-model: $(VENV)/.ready
	$(RUN) -m pip install -q --no-build-isolation $(OFFLINE) -e ".[demo-model]"
	touch $@

$(VENV)/.tritonbench: $(VENV)/.ready
	$(RUN) -m pip install -q --no-build-isolation $(OFFLINE) -e ".[tritonbench]"
	touch $@
