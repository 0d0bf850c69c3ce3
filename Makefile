# Everything a person or CI runs. `make help` lists it. The only tools needed beforehand: make, git, Python >= 3.11.
SHELL := /bin/bash
PYTHON ?= python3
export HAMI_CACHE ?= $(HOME)/.cache/hami
export PIP_CACHE_DIR ?= $(HAMI_CACHE)/pip
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NODES ?= 3
PROFILE ?= a100

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: changelog scenarios help setup fmt check lint types contracts test test-unit test-shim test-control-plane test-node demo control-plane bench throughput soak shim shim-debug proto lock docs-reference chart test-chart images test-cluster cluster-up cluster-down clean

help: ## Lists the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | awk -F'\t' '{printf "  %-20s %s\n", $$1, $$2}'

$(STAMP): requirements/dev.lock pyproject.toml
	@bash scripts/preflight.sh $(PYTHON)
	@echo "setup: Python environment in $(VENV) (one to two minutes the first time)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock || \
	  { echo "setup: packages could not be installed: is there a network, or a mirror in PIP_INDEX_URL?" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

setup: $(STAMP) ## Makes the Python environment

fmt: $(STAMP) ## Formats Python and C
	@$(BIN)/ruff format -q .
	@$(BIN)/ruff check -q --fix-only .
	@git ls-files '*.c' '*.h' | xargs -r $(BIN)/clang-format -i

check: $(STAMP) ## Format, lint, types and import contracts
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/check.py

test: $(STAMP) ## All tests, layer by layer, with times; what was skipped comes last
	@$(BIN)/python scripts/test_layers.py

test-unit: $(STAMP) ## Unit, property, scenario and embedded tests
	@$(BIN)/python scripts/test_layers.py unit

test-shim: $(STAMP) ## The in-container limiter over a fake driver
	@$(BIN)/python scripts/test_layers.py shim

test-control-plane: $(STAMP) ## Real etcd, kube-apiserver, kube-scheduler, kubectl
	@$(BIN)/python scripts/test_layers.py control-plane

test-node: $(STAMP) ## Real kubelet, containerd and runc with our device plugin (root)
	@$(BIN)/python scripts/test_layers.py node

test-chart: $(STAMP) ## The chart rendered by helm, against the code and against values files
	@$(BIN)/python scripts/test_layers.py chart

test-cluster: $(STAMP) ## helm install of our images on a real node, then as a user (root, Go, Debian)
	@$(BIN)/python scripts/test_layers.py cluster

cluster-up: $(STAMP) ## The same cluster in the background; prints its kubeconfig (PROFILE=a100; root)
	@$(BIN)/python -m tests.helm.up up $(PROFILE)

cluster-down: $(STAMP) ## Ends that cluster; nothing is left
	@$(BIN)/python -m tests.helm.up down

demo: $(STAMP) ## Three simulated GPU nodes, eleven pods and their stories, on this machine (ARGS="--serve")
	@$(BIN)/hami demo $(ARGS)

control-plane: $(STAMP) ## A real control plane in the foreground (NODES=3 PROFILE=a100)
	@$(BIN)/python -m tests.cluster.up --nodes $(NODES) --profile $(PROFILE)

scenarios: $(STAMP) ## One set of scenarios on the embedded cluster and the real control plane, as a table
	@$(BIN)/python -m tests.scenarios $(ARGS)

bench: $(STAMP) ## Speed as ratios to baselines of the same run (ARGS="--quick")
	@$(BIN)/python -m tests.bench $(ARGS)
	@$(BIN)/python -m tests.deviceplugin.figures
	@if command -v cc >/dev/null; then $(BIN)/python -m tests.shim.speed; else echo "shim: skipped, no C compiler"; fi

throughput: $(STAMP) ## Pods a second through the real control plane against a plain Binding (ARGS="--nodes 500 --pods 1000")
	@$(BIN)/python -m tests.cluster.namespace $(BIN)/python -m tests.cluster.throughput $(ARGS)

soak: $(STAMP) ## Two million random steps against the oracle (ARGS="--seed 7"), and the long versions of the random tests
	@$(BIN)/python -m tests.reference.soak $(ARGS)
	@HAMI_SOAK=1 $(BIN)/python scripts/test_layers.py unit shim control-plane

shim: $(STAMP) ## Builds libvgpu.so and vgpu-info into HAMI_CACHE
	@$(BIN)/python scripts/build_shim.py release

shim-debug: $(STAMP) ## The same with symbols, nothing more exported
	@$(BIN)/python scripts/build_shim.py debug

proto: $(STAMP) ## Regenerates hami/proto
	@$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. hami/proto/deviceplugin_v1beta1.proto

changelog: $(STAMP) ## Shows what the next release's changelog will say
	@$(BIN)/towncrier build --draft --version next

lock: $(STAMP) ## Renews the lock files
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile pyproject.toml --group dev --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11 -q -o requirements/dev.lock
	@$(BIN)/uv pip compile pyproject.toml --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11 -q -c requirements/dev.lock -o requirements/runtime.lock

docs-reference: $(STAMP) ## Regenerates docs/reference from the code
	@$(BIN)/python scripts/docs_reference.py

chart: $(STAMP) ## Regenerates the chart's schema and manifests/
	@$(BIN)/python -m scripts.chart

images: $(STAMP) ## Builds the container images into HAMI_CACHE/images (root, buildah, mmdebstrap)
	@$(BIN)/python -m scripts.images $(ARGS)

clean: ## Removes the environment and build leftovers of this checkout
	@rm -rf $(VENV) build dist bench-results .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
