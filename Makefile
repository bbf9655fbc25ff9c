PYTHON ?= python3
# A folder of wheels to install from instead of an index; `make wheels` fills it
WHEELS ?=
# Passed on to the command of a target
ARGS ?=
JOBS ?= 2
# A checkout of https://github.com/meta-pytorch/tritonbench, the operator and its modes (docs/tritonbench.md)
TRITONBENCH_DIR ?= ../tritonbench
OP ?= sinkhorn
MODES ?= fwd bwd fwd_bwd fwd_no_grad

TUNE := $(if $(KERNEL),--kernel $(KERNEL)) $(if $(TAGS),--tags $(TAGS)) $(if $(EFFORT),--effort $(EFFORT)) \
	$(if $(BUDGET),--budget $(BUDGET)) $(if $(FORCE),--force) $(if $(OFFLINE),--offline)

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install -q $(if $(WHEELS),--no-index --find-links $(WHEELS))

.DEFAULT_GOAL := help
.PHONY: help demo demo-model programs test test-jax bench bench-residual lint lint-workflows format clean accuracy compare parity emulate mutants attack fault-tables sanitize machine-terms machine-versions same-programs device-rows attack-cache bench-tritonbench study-backward study-dot-compress tune tuning-readme wheels dist docs docs-numbers

help: ## this list
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nARGS="..." is passed on to the command; WHEELS=folder installs without a network.\n'
	@printf 'OFFLINE=1 is for `tune` alone, and means "without that GPU", not "without a network".\n'

##@ Try it
demo: $(VENV)/.ready ## error, row and column sums, time beside eager and torch.compile, a picture; the first run installs .venv, minutes
	$(RUN) -m benchmarks.demo $(ARGS)

demo-model: $(VENV)/.demo-model ## a DeepseekV4 of transformers with this residual path and without; 1 minute on one core
	$(RUN) -m benchmarks.demo_model $(ARGS)

##@ Change it
# One thread a process: pytest runs JOBS of them
test: export OMP_NUM_THREADS ?= 1
test: $(VENV)/.ready ## the test suite; no GPU needed. ARGS="-k wheel", JOBS=8
	$(RUN) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-jax: $(VENV)/.jax ## the examples that call from JAX, which `test` skips without it
	$(RUN) -m pytest tests/test_examples.py tests/test_pages.py -k "jax or linear_attention" $(ARGS)

lint: $(VENV)/.lint ## ruff and the import contracts of pyproject.toml
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

lint-workflows: $(VENV)/.lint ## .github/workflows against GitHub's schema
	$(PIP) -c constraints.txt check-jsonschema
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: $(VENV)/.lint ## what ruff can correct by itself
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

wheels: WHEELS := $(or $(WHEELS),wheels)
wheels: ## download what every target needs, for a machine without an index: there, WHEELS=folder
	$(PYTHON) -m pip wheel -w $(WHEELS) -c constraints.txt "setuptools>=77" check-jsonschema jax \
		".[test,bench,cpu-codegen,oracle,demo-model,tritonbench,docs,dev]"
	$(PYTHON) -m pip wheel -w $(WHEELS) --no-deps "helion==1.5.0" "triton==3.6.0"
	rm -rf build

# Generated code depends on Helion's version, and configs on Triton's: one run for each stack that was measured
programs: $(VENV)/.ready ## generated code for the next `make dist`, so that its first calls import no Helion; 20 minutes
	rm -rf helion_sinkhorn/programs.zip build/triton-3.6.0
	$(PIP) --target build/triton-3.6.0 --no-deps triton==3.6.0
	PYTHONPATH=build/triton-3.6.0:$(VENV)/helion-1.5.0 $(RUN) -m ci.programs $(ARGS)
	$(RUN) -m ci.programs $(ARGS)

dist: $(VENV)/.dist ## sdist and wheel in dist/, checked, and used from an empty environment: 5 minutes
	rm -rf dist build
	$(RUN) -m build $(if $(WHEELS),--no-isolation)
	$(RUN) -m twine check --strict dist/*
	$(RUN) ci/check_dist.py dist $(if $(WHEELS),--wheels $(WHEELS))

clean: ## remove the environment and what was built
	rm -rf $(VENV) build dist site sinkhorn.png demo_model.png *.egg-info helion_sinkhorn/programs.zip

##@ Measure it
bench: $(VENV)/.ready ## on a GPU: time, memory and host time beside PyTorch and other packages; 7 minutes, ARGS=--quick 90 s
	$(RUN) -m benchmarks.sinkhorn.bench $(ARGS)

bench-residual: $(VENV)/.ready ## on a GPU: the residual path of mHC beside other packages; 10 minutes
	$(RUN) -m benchmarks.residual_path.bench $(ARGS)

# A process a mode; it fails when a backend is missing, raises or is inaccurate
bench-tritonbench: export OMP_NUM_THREADS ?= 1
bench-tritonbench: export PYTHONPATH := $(abspath $(TRITONBENCH_DIR)):$(CURDIR)
bench-tritonbench: $(VENV)/.tritonbench ## the same in tritonbench's tables. TRITONBENCH_DIR=../tritonbench, OP=hc_pre, MODES="fwd bwd"; on a CPU 2 minutes
	set -e; for mode in $(MODES); do $(RUN) -m tritonbench_ops --op $(OP) --mode $$mode $(ARGS); done

study-backward: export OMP_NUM_THREADS ?= 1
study-backward: $(VENV)/.ready ## docs/backward.png and the tables of docs/backward.md, on a CPU
	$(RUN) -m benchmarks.sinkhorn.study_backward $(ARGS)

study-dot-compress: export OMP_NUM_THREADS ?= 1
study-dot-compress: $(VENV)/.ready ## the rounding tables of docs/dot_compress.md, on a CPU
	$(RUN) -m benchmarks.dot_compress.study_rounding $(ARGS)

##@ Judge it (docs/accuracy.md)
accuracy: $(VENV)/.ready ## judge the device at hand; writes accuracy-<device>.json, the exit status is the verdict
	$(RUN) -m ci.accuracy $(ARGS)

compare: $(VENV)/.ready ## what several devices wrote, side by side. ARGS="a/accuracy-h200.json b/accuracy-mi350.json"
	$(RUN) -m ci.compare $(ARGS)

parity: export OMP_NUM_THREADS ?= 1
parity: $(VENV)/.ready ## errors of gradients over those of float32 PyTorch on peaked matrices. ARGS="--where cpu bodies"
	$(RUN) -m ci.parity_grid $(ARGS)

# docs/emulation.md says how long it takes; ARGS="--devices mi350 --workloads mhc_fp32 tail_5x3 --served"
emulate: export OMP_NUM_THREADS ?= 1
emulate: $(VENV)/.ready ## AMD's machine code executed on this CPU and judged as a device is
	$(RUN) -m ci.emulate $(ARGS)

mutants: export OMP_NUM_THREADS ?= 1
mutants: $(VENV)/.ready ## faults planted in that machine code, and what finds each
	$(RUN) -m ci.mutants $(ARGS)

attack: export OMP_NUM_THREADS ?= 1
attack: $(VENV)/.ready ## bugs of every operator, run as kernels are: 5 minutes on one core
	$(RUN) -m ci.attack $(ARGS)

fault-tables: $(VENV)/.ready ## the tables of docs/faults.md: what the gate catches
	$(RUN) -m ci.fault_tables --write docs/faults.md

docs: $(VENV)/.docs ## the pages of docs/ and the API reference as a site, in site/; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo "Open site/index.html in a browser; no server is needed."

docs-numbers: $(VENV)/.ready ## the numbers of README and docs from the files they come from. ARGS=--pictures, ARGS=--check
	$(RUN) -m docs.numbers $(ARGS)

sanitize: $(VENV)/.ready ## compute-sanitizer over the kernels: an NVIDIA GPU and the CUDA toolkit
	$(RUN) -m ci.sanitize $(ARGS)

# 20 minutes on 2 cores; ARGS="--only h200 mi350" half of it, ARGS=--all hours
machine-terms: export OMP_NUM_THREADS ?= 1
machine-terms: $(VENV)/.ready ## machine code of every kernel, compiled on this CPU, against ci/machine_terms.txt
	$(RUN) -m ci.machine_terms $(ARGS)

machine-versions: export OMP_NUM_THREADS ?= 1
machine-versions: $(VENV)/.ready ## stored configs under other Tritons than measured them: ARGS="--packages FOLDER-WITH-TRITON"
	$(RUN) -m ci.machine_versions $(ARGS)

same-programs: export OMP_NUM_THREADS ?= 1
same-programs: $(VENV)/.ready ## stored entries whose source changed: do they run the same code? ARGS="--base COMMIT --packages FOLDER-WITH-TRITON --restamp"
	$(RUN) -m ci.same_programs $(ARGS)

# 100,000 tuning files changed at random, and eight tuners of which one after another is killed
attack-cache: export OMP_NUM_THREADS ?= 1
attack-cache: $(VENV)/.ready ## damaged tuning files and killed tuners: 7 minutes
	$(RUN) tests/configs/cache_attack.py files
	$(RUN) tests/configs/cache_attack.py tuners

device-rows: ## rows of ci/devices.toml as a GitHub matrix. ARGS=sanitizer: those where it is true
	@$(PYTHON) ci/devices.py $(ARGS)

##@ Tune it (docs/tuning.md)
# DEVICE=h200 [KERNEL=] [TAGS=] [EFFORT=quick|full] [BUDGET=seconds] [FORCE=1] [OFFLINE=1] [ARGS=]
# A wrong DEVICE ends make here, before an environment of gigabytes is built
ifneq ($(filter tune,$(MAKECMDGOALS)),)
DEVICES := $(shell awk -F'"' '$$1 ~ /^ *Device.$$/ { print $$2 }' helion_sinkhorn/configs/device.py)
ifeq ($(filter $(DEVICE),$(DEVICES)),)
$(error DEVICE is '$(DEVICE)'; say what to tune for, make tune DEVICE=..., one of: $(DEVICES))
endif
endif
tune: $(VENV)/.ready ## time configs on this machine and store the best. DEVICE=h200; OFFLINE=1: without that GPU, rank machine code
	$(RUN) -m helion_sinkhorn tune --device $(DEVICE) $(TUNE) $(ARGS)

tuning-readme: $(VENV)/.ready ## tuning_cache/README.md from its data
	$(RUN) -m helion_sinkhorn readme

$(VENV)/.ready: pyproject.toml constraints.txt ci/bootstrap.py
	$(PYTHON) ci/bootstrap.py $(VENV) $(if $(WHEELS),--wheels $(WHEELS))
	touch $@

$(VENV)/.lint: $(VENV)/.ready
	$(PIP) -c constraints.txt ruff import-linter
	touch $@

$(VENV)/.jax: $(VENV)/.ready
	$(PIP) -c constraints.txt jax
	touch $@

$(VENV)/.dist: $(VENV)/.ready
	$(PIP) -c constraints.txt build twine
	touch $@

$(VENV)/.docs: $(VENV)/.ready
	$(PIP) -c constraints.txt mkdocs-material "mkdocstrings[python]" latex2mathml ruff
	touch $@

$(VENV)/.demo-model: $(VENV)/.ready
	$(PIP) --no-build-isolation -e ".[demo-model]"
	touch $@

$(VENV)/.tritonbench: $(VENV)/.ready
	$(PIP) --no-build-isolation -e ".[tritonbench]"
	touch $@
