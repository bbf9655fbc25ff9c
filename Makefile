PYTHON ?= python3
# A folder of wheels to install from instead of an index; `make wheels` fills it
WHEELS ?=
# Passed on to the command of a target
ARGS ?=
# Which of its commands a target runs
WHAT ?=
JOBS ?= 2
# A checkout of https://github.com/meta-pytorch/tritonbench, the operator and its modes (tritonbench_ops/README.md)
TRITONBENCH_DIR ?= ../tritonbench
OP ?= sinkhorn
MODES ?= fwd bwd fwd_bwd fwd_no_grad

TUNE := $(if $(KERNEL),--kernel $(KERNEL)) $(if $(TAGS),--tags $(TAGS)) $(if $(EFFORT),--effort $(EFFORT)) \
	$(if $(BUDGET),--budget $(BUDGET)) $(if $(FORCE),--force) $(if $(OFFLINE),--offline)

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install -q --no-compile $(if $(WHEELS),--no-index --find-links $(WHEELS))
# What WHAT names of a target, or $(1): the variable <target>.<WHAT>
one_of = $(or $($@.$(or $(WHAT),$(1))),$(error make $@ knows no WHAT=$(WHAT); it is one of \
	$(sort $(patsubst $@.%,%,$(filter $@.%,$(.VARIABLES))))))

.DEFAULT_GOAL := help
.PHONY: help demo test lint format wheels dist hub clean bench study accuracy compare emulate equal attack sanitize machine docs docs-numbers tune programs

help: ## this list
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nARGS="..." is passed on to the command; WHEELS=folder installs without a network.\n'
	@printf 'OFFLINE=1 is for `tune` alone, and means "without that GPU", not "without a network".\n'

# Without bytecode every process compiles what Helion imports, for 20 s; none beside the sources where that is unwanted
ifneq ($(PYTHONDONTWRITEBYTECODE),)
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/$(VENV)/bytecode
endif

# One thread a process: pytest runs JOBS of them, and the others are measured on one core
test study emulate equal attack machine: export OMP_NUM_THREADS ?= 1

##@ Try it
demo.sinkhorn := benchmarks.demo
demo.model := benchmarks.demo_model
demo: $(VENV)/.$(if $(filter model,$(WHAT)),demo-model,ready) ## error, row and column sums, time beside eager and torch.compile, a picture; the first run installs .venv, minutes. WHAT=model: a DeepseekV4 of transformers with this residual path and without, 1 minute on one core
	$(RUN) -m $(call one_of,sinkhorn) $(ARGS)

##@ Change it
test.suite := -n $(JOBS) --dist worksteal
test.jax := tests/test_examples.py -k jax
test.models := tests/mhc/test_transformers.py tests/mhc/test_automodel.py tests/mhc/test_megatron.py tests/test_upstream.py
test.servers := tests/mhc/test_servers.py tests/test_upstream.py
ifneq ($(filter models servers,$(WHAT)),)
test: export PYTHONPATH := $(CURDIR)/$(VENV)/$(WHAT)
endif
test: $(VENV)/.$(or $(filter jax models servers,$(WHAT)),ready) ## the test suite; no GPU needed. ARGS="-k wheel", JOBS=8; WHAT=jax|models|servers: what is skipped without JAX, without NeMo Automodel and Megatron Core, or vLLM and SGLang
	$(RUN) -m pytest $(call one_of,suite) $(ARGS)

lint.code := ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/lint-imports
lint.workflows := check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
lint: $(VENV)/.lint ## ruff and the import contracts of pyproject.toml; WHAT=workflows: .github against GitHub's schema
	$(if $(filter workflows,$(WHAT)),$(PIP) -c constraints.txt check-jsonschema)
	$(VENV)/bin/$(call one_of,code)

format: $(VENV)/.lint ## what ruff can correct by itself
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

wheels: WHEELS := $(or $(WHEELS),wheels)
wheels: ## download what every target needs, for a machine without an index: there, WHEELS=folder
	$(PYTHON) -m pip wheel -w $(WHEELS) -c constraints.txt "setuptools>=77" check-jsonschema jax kernels \
		".[test,bench,cpu-codegen,oracle,demo-model,tritonbench,docs,dev]"
	$(PYTHON) -m pip wheel -w $(WHEELS) --no-deps "helion==1.5.0" "triton==3.6.0"
	rm -rf build

dist: $(VENV)/.dist ## sdist and wheel in dist/, checked, and used from an empty environment with a new torch: 5 minutes of CPU time, 8 with downloads
	rm -rf dist build
	$(RUN) -m build $(if $(WHEELS),--no-isolation)
	$(RUN) -m twine check --strict dist/*
	$(RUN) ci/check_dist.py dist $(if $(WHEELS),--wheels $(WHEELS))

hub: $(VENV)/.hub ## build/hub: a repository for Hugging Face's kernels hub, loaded from there with its package `kernels`
	rm -rf build/lib build/wheel
	$(RUN) -m pip wheel -q --no-deps --no-build-isolation -w build/wheel .
	PYTHONPATH=$(CURDIR)/$(VENV)/hub $(RUN) ci/hub.py build/wheel/*.whl build/hub --load

clean: ## remove the environment and what was built
	rm -rf $(VENV) build dist site sinkhorn.png demo_model.png *.egg-info

##@ Measure it
# A process a mode of tritonbench, OP=hc_pre, MODES="fwd bwd"; it fails when a backend is missing, raises or is inaccurate
ifeq ($(WHAT),tritonbench)
bench: export OMP_NUM_THREADS ?= 1
bench: export PYTHONPATH := $(abspath $(TRITONBENCH_DIR)):$(CURDIR)
bench: $(VENV)/.tritonbench
	set -e; for mode in $(MODES); do $(RUN) -m tritonbench_ops --op $(OP) --mode $$mode $(ARGS); done
else
bench: $(VENV)/.ready ## on a GPU, 7 minutes, ARGS=--quick 90 s: beside PyTorch and other packages. WHAT=sinkhorn|residual_path|dot_compress|linear_attention|tritonbench
	$(RUN) -m benchmarks.bench $(or $(WHAT),sinkhorn) $(ARGS)
endif

STUDIES := $(basename $(notdir $(wildcard benchmarks/studies/*.py)))
study: $(VENV)/.ready ## tables and pictures of one page, most of them on a CPU: WHAT=backward|dot_compress|..., as benchmarks/studies/
	$(RUN) -m benchmarks.study $(or $(filter $(STUDIES),$(WHAT)),$(error WHAT is '$(WHAT)'; it is one of $(STUDIES))) $(ARGS)

##@ Check its accuracy (docs/accuracy.md)
accuracy.gate := ci.accuracy
accuracy.parity := ci.accuracy --parity
ifeq ($(WHAT),parity)
accuracy: export OMP_NUM_THREADS ?= 1
endif
accuracy: $(VENV)/.ready ## test the device at hand; writes accuracy-<device>.json and exits with 1 if a result is wrong. WHAT=parity: peaked gradients beside float32 PyTorch
	$(RUN) -m $(call one_of,gate) $(ARGS)

compare: $(VENV)/.ready ## what several devices wrote, side by side. ARGS="a/accuracy-h200.json b/accuracy-mi350.json"
	$(RUN) -m ci.compare $(ARGS)

# docs/dev/emulation.md says how long it takes; ARGS="--devices mi350 --workloads mhc_fp32 tail_5x3 --used"
emulate.kernels := ci.emulate
emulate.mutants := ci.mutants
emulate: $(VENV)/.ready ## AMD's machine code executed on this CPU and tested as a device is. WHAT=mutants: faults planted in that machine code, and what finds each
	$(RUN) -m $(call one_of,kernels) $(ARGS)

# ARGS="--devices mi350 mi300x" emulates where there is a GPU too; ARGS=--write puts the results into docs/equal
equal.bits := ci.equal
equal.faults := ci.equal.faults
equal: $(VENV)/.ready ## every bit, config with config and vendor with vendor, in Triton's FPSan mode; emulated without a GPU. WHAT=faults: who finds planted faults
	$(RUN) -m $(call one_of,bits) $(ARGS)

# cache: 100,000 tuning files changed at random, and eight tuners of which one after another is killed
attack.kernels := -m ci.attack
attack.tables := -m ci.fault_tables --write docs/dev/results.md
attack.cache := -m pytest tests/configs/test_cache_attack.py
ifeq ($(WHAT),cache)
attack: export HYPOTHESIS_PROFILE = nightly
endif
attack: $(VENV)/.ready ## bugs of every operator, run as kernels are: 5 minutes on one core. WHAT=tables: accuracy/faults.md, every fault; WHAT=cache: damaged tuning files, 7 minutes
	$(RUN) $(call one_of,kernels) $(ARGS)

sanitize: $(VENV)/.ready ## compute-sanitizer over the kernels: an NVIDIA GPU and the CUDA toolkit
	$(RUN) -m ci.sanitize $(ARGS)

# terms: 20 minutes on 2 cores; ARGS="--only h200 mi350" half of it, ARGS=--all hours
# versions: ARGS="--packages FOLDER-WITH-TRITON"; programs: ARGS="--base COMMIT --packages ... --restamp"
machine.terms := ci.machine_terms
machine.versions := ci.machine_versions
machine.programs := ci.same_programs
machine: $(VENV)/.ready ## machine code, compiled here, against ci/machine_terms.txt. WHAT=versions: stored configs under other Tritons; WHAT=programs: entries whose source changed
	$(RUN) -m $(call one_of,terms) $(ARGS)

docs: $(VENV)/.docs ## the pages of docs/ and the API reference as a site, in site/; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo "Open site/index.html in a browser; no server is needed."

docs-numbers: $(VENV)/.ready ## the numbers of README, docs and tuning_cache from the files they come from. ARGS=--pictures, ARGS=--check
	$(RUN) -m docs.numbers $(ARGS)

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

# Generated code depends on Helion's version, and configs on Triton's: torch 2.11 has 3.6 and Helion 1.5.0
build/triton-%:
	$(PIP) --target $@ --no-deps triton==$*

programs: $(VENV)/.ready build/triton-3.6.0 build/triton-3.8.0 ## generate what is missing of the code that comes with the package, for each stack: up to an hour on two cores
	PYTHONPATH=build/triton-3.6.0:$(VENV)/helion-1.5.0 $(RUN) -m ci.programs $(ARGS)
	PYTHONPATH=build/triton-3.8.0 $(RUN) -m ci.programs $(ARGS)
	$(RUN) -m ci.programs $(ARGS)

$(VENV)/.ready: pyproject.toml constraints.txt ci/bootstrap.py
	$(PYTHON) ci/bootstrap.py $(VENV) $(if $(WHEELS),--wheels $(WHEELS))
	touch $@

$(VENV)/.lint: $(VENV)/.ready
	$(PIP) -c constraints.txt ruff import-linter
	touch $@

$(VENV)/.jax: $(VENV)/.ready
	$(PIP) -c constraints.txt jax
	touch $@

# In a folder of their own, as the versions that models are tested with besides those of constraints.txt
$(VENV)/.models: $(VENV)/.ready
	$(PIP) --no-deps --target $(VENV)/models transformers==5.24.0 nemo_automodel==0.7.0 megatron-core==0.16.1
	touch $@

# Without what the two need, for their own files alone: 1 GB
$(VENV)/.servers: $(VENV)/.ready
	$(PIP) --no-deps --target $(VENV)/servers vllm==0.33.0 sglang==0.5.23
	touch $@

$(VENV)/.dist: $(VENV)/.ready
	$(PIP) -c constraints.txt build twine
	touch $@

# In a folder of its own: where transformers finds `kernels`, it changes what models run
$(VENV)/.hub: $(VENV)/.ready
	$(PIP) -c constraints.txt --target $(VENV)/hub kernels
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
