# SPDX-License-Identifier: Apache-2.0
# What a person runs: make demo | test | docs | wheel | bench | profiles | figures | stubs | format | lint. Each
# sets up what it needs first, on a Debian that has git, make and python3: packages by apt-get, where they
# are missing, and .venv.
.PHONY: demo test test-cpp test-ptxas test-sanitize test-emulated test-python test-originals test-cuda test-many test-ptx sanitize-cuda wheel bench \
  bench-gpu bench-engine profiles figures stubs docs docs-links format lint clean
.NOTPARALLEL:

PYTHON := $(CURDIR)/.venv/bin/python
GPU := $(shell nvidia-smi -L 2>/dev/null)
# "h200" of "NVIDIA H200", in the names of result files.
NAME := $(shell nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 | \
  tr 'A-Z ' 'a-z\n' | grep -v nvidia | paste -sd-)
NVCC := $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
CPP := $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' ':!python/third_party')
SOURCES := CMakeLists.txt pyproject.toml $(shell git ls-files scan dispatch lib python)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(shell nproc)
# The wheel and the tests are two builds of the same objects, and so are those of another checkout:
# the compiler's cache sees paths relative to this one.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
# What a file includes is known from its compilation, so that none is preprocessed twice.
export CCACHE_DEPEND := 1
# pip's build would take the compiler's name from Python's own build, and CMake takes another: to a
# compiler's cache they are two compilers.
ifeq ($(origin CXX),default)
CXX := c++
endif
export CXX
export CMAKE_CXX_COMPILER_LAUNCHER = $(shell command -v ccache)
export CMAKE_CUDA_COMPILER_LAUNCHER = $(CMAKE_CXX_COMPILER_LAUNCHER)
ifneq ($(NVCC),)
export CUDACXX := $(NVCC)
# Machine code and PTX for the GPU that is here; where there is none, the machine code of one
# architecture shows that all of it compiles. The wheel is built for others: see there.
export CUDAARCHS := $(if $(GPU),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader | \
  head -1 | tr -d .),90-real)
endif

demo: .venv/installed
	python -m scanrnn demo

test: test-cpp $(if $(GPU),,test-ptxas) test-sanitize test-emulated test-python lint
# Where no GPU is, code that runs nowhere here need not be fast code, which takes nvcc four times as
# long; nor need the calls of it. And most of what is left is ptxas, which reads PTX that nothing has
# shortened (to shorten it takes longer: of GRU in float32 max 30 s, mid 73, min and none 190), so that
# all kernels are compiled to PTX, and test-ptxas assembles some. pip passes CMAKE_ARGS on to CMake, as
# test-cpp does.
ifeq ($(GPU),)
test: export CMAKE_ARGS := $(if $(NVCC),$(shell $(NVCC) --help | grep -q Ofast-compile && \
  echo '-DCMAKE_CUDA_FLAGS_RELEASE="--Ofast-compile=max -O0 -DNDEBUG"'))
test: export CUDAARCHS := 90a-virtual
endif

# Teams of the tests are larger than the machine on purpose, so a thread that waits should not spin.
test-cpp test-sanitize test-emulated test-python test-originals test-cuda: export OMP_WAIT_POLICY := passive

test-cpp: .venv/ready
	cmake --preset release $(CMAKE_ARGS) -DSCANRNN_BUILD_BENCH=ON -DPython_EXECUTABLE=$(PYTHON)
	cmake --build --preset release
	cmake --build --preset release --target all_verify_interface_header_sets
	tests/in_shards.sh build/release/tests/scanrnn_tests --gtest_brief=1
	ctest --preset release --parallel $$(nproc) --exclude-regex '^scanrnn_tests$$'

# Machine code of each kind of kernel by the cells that compile fastest: what ptxas may refuse are
# instructions of ours, which cells have in common, and those of 16 bits are more than others.
PTXAS := scan___half scan_backward___nv_bfloat16 lines_float MinGRU___nv_bfloat16 SLSTM_0_float \
  SLSTM_0___half GRU___nv_bfloat16_large
test-ptxas: .venv/ready
ifneq ($(NVCC),)
	cmake --preset cuda -B build/ptxas $(CMAKE_ARGS) -DCMAKE_CUDA_ARCHITECTURES=90-real \
	  -DSCANRNN_BUILD_TESTS=OFF -DPython_EXECUTABLE=$(PYTHON)
	cmake --build build/ptxas --target $(PTXAS:%=scanrnn_cuda_%)
endif

# Without the long sequences of other tests, which ask how accurate sums are.
test-sanitize: .venv/ready
	cmake --preset cpu-asan -DPython_EXECUTABLE=$(PYTHON)
	cmake --build --preset cpu-asan
	tests/in_shards.sh build/cpu-asan/tests/scanrnn_tests --gtest_brief=1 \
	  --gtest_filter='-*Million*:*HundredThousand*'
	ctest --preset cpu-asan --exclude-regex '^scanrnn_tests$$'

# Every kernel of CUDA on this processor, translated to C++: right or wrong, but not how fast. It
# needs CUDA's headers, not a GPU. EMULATED names other tests, for which all files are compiled: all
# but a few can be run.
EMULATED_FILES := $(if $(filter command,$(origin EMULATED)),.,kernels|seed|at_once|persistent|shared_lines|warp_groups|ragged_draws|ragged_test|log_output|stream_test)
EMULATED := Kernels/*:HalfKernels/*:BulkCopies/*:Seed*:AtOnceConformance.MatchesTheOracle:AtOnceConformance.PassesApartMatchTheOracle:*DrawsAreThoseOfSteps:WarpGroups.RowsAtOddElements:WarpGroups.RaggedBatch:SharedLinesOnCuda.SomeResetsAlone:LineTables.*:RaggedDraws.*:*RaggedTest.LostGradients*:ScanLogOutput.TheEndsOfTheRange:ScanLogOutput.NothingCrossesAReset:CudaStreamTest.MemoryBesideACapture
test-emulated: export SCANRNN_TEST_DEVICE := cuda
test-emulated: export SCANRNN_TEST_SECONDS := 0
test-emulated: .venv/ready
ifneq ($(NVCC),)
	cmake -S tests/emulator -B build/emulated -G Ninja -DPython_EXECUTABLE=$(PYTHON) \
	  -DSCANRNN_EMULATED_FILES='$(EMULATED_FILES)'
	cmake --build build/emulated
	tests/in_shards.sh build/emulated/emulated_tests --gtest_brief=1 --gtest_filter='$(EMULATED)'
else
	@echo "no nvcc, and so no headers of CUDA: its kernels are not emulated"
endif

# In as many processes as there are processors, up to eight. The tests of a file stay together: they may
# share what takes long to make.
test-python: .venv/installed .venv/frameworks
	python -m pytest --numprocesses $$(($$(nproc) < 8 ? $$(nproc) : 8)) --dist loadscope

# The tests that compare with other libraries, none of which may be missing.
ORIGINALS := jax_models keras layout_files torch_models torch_onnx
test-originals: export SCANRNN_REQUIRE_ORIGINALS := 1
test-originals: .venv/installed
	pip install --quiet --group torch --group jax --group originals
	python -m pytest $(ORIGINALS:%=tests/python/test_%.py)

# The same tests on the GPU, and those that are only there, and the programs of the documentation. No
# test may be skipped.
test-cuda: export SCANRNN_TEST_DEVICE := cuda
test-cuda: export SCANRNN_REQUIRE_GPU := 1
test-cuda: .venv/installed .venv/frameworks-cuda build/cuda/tests/scanrnn_tests
	tests/in_shards.sh build/cuda/tests/scanrnn_tests --gtest_brief=1
	ctest --preset cuda --tests-regex _on_cuda
	tests/cuda/shared_device.sh build/cuda/tests/scanrnn_tests
	python -m pytest

# Sequences and batches over the GPUs of this host, with NCCL, which does without NVLink's multicast.
# What wants more GPUs than there are is skipped.
test-many: export SCANRNN_TEST_DEVICE := cuda
test-many: export NCCL_NVLS_ENABLE ?= 0
test-many: .venv/installed .venv/frameworks-cuda
	cmake --preset cuda -DPython_EXECUTABLE=$(PYTHON)
	cmake --build --preset cuda --target example_two_devices
	ctest --preset cuda --tests-regex example_two_devices_on_cuda
	python -m pytest tests/python/test_torch_distributed.py tests/python/test_jax_sharded.py

# Every kernel from PTX alone, as a later device would compile it. CUDA_FORCE_PTX_JIT=1 will not do:
# cuBLASLt has no PTX, so that no context could be made.
test-ptx: export SCANRNN_TEST_DEVICE := cuda
test-ptx: .venv/ready
	cmake --preset cuda -B build/ptx -DCMAKE_CUDA_ARCHITECTURES=90-virtual \
	  -DPython_EXECUTABLE=$(PYTHON)
	cmake --build build/ptx --target scanrnn_tests
	build/ptx/tests/scanrnn_tests --gtest_brief=1 --gtest_filter='*Kernels/*:BulkCopies/*'

# Every kernel under compute-sanitizer's tools.
sanitize-cuda: .venv/installed build/cuda/tests/scanrnn_tests
	python tests/cuda/sanitize.py build/cuda/tests/scanrnn_tests \
	  --out bench/results/$(NAME)-sanitizers.json

.PHONY: build/cuda/tests/scanrnn_tests
build/cuda/tests/scanrnn_tests: .venv/ready
	cmake --preset cuda -DPython_EXECUTABLE=$(PYTHON)
	cmake --build --preset cuda --target scanrnn_tests example_streaming_inference \
	  example_training_step example_two_devices example_thrust_buffers example_scan_thrust

# What a user installs, into dist/: a manylinux wheel for each CPython that is here, without CUDA and,
# where there is nvcc, with it, for the architectures of lib/cuda.cmake. The library is compiled once
# for each variant. Each wheel runs where there is no compiler: debootstrap makes such a Debian.
WHEEL_JSON := build/wheels.json
wheel: .venv/ready
	@command -v debootstrap >/dev/null || [ $$(id -u) != 0 ] || \
	  apt-get install -q -y --no-install-recommends debootstrap || true
	pip install --quiet --group wheel
	python tests/package/wheel.py $(if $(NVCC),,--no-cuda) --json $(WHEEL_JSON)

# Half an hour on a quiet machine, less on a GPU: the sweeps, and what comes from them. Sources that
# are in no repository do not know their commit: BENCH_COMMIT tells it.
bench: .venv/installed
	python -m scanrnn bench crossover --grid full --out bench/results/cpu-crossover.json
	python -m scanrnn bench layer --out bench/results/cpu-layer.json
	python -m scanrnn bench ragged --out bench/results/cpu-ragged.json
	python -m scanrnn bench stacks --out bench/results/cpu-stacks.json
	python -m scanrnn bench calls --out bench/results/cpu-calls.json
	$(if $(GPU),$(MAKE) bench-gpu)
	$(MAKE) profiles
	$(MAKE) figures

# One GPU beside its peers, which need PyTorch: pip install torch fla-core accelerated-scan jax
# nvidia-ml-py; flashrnn for the parts of its name.
bench-gpu: .venv/installed
	python -m scanrnn bench crossover --device cuda --grid full \
	  --out bench/results/$(NAME)-crossover.json
	python -m scanrnn bench calls --device cuda --out bench/results/$(NAME)-calls.json
	python -m scanrnn bench memory --device cuda --out bench/results/$(NAME)-memory.json
	python bench/peers.py --out bench/results/$(NAME)-peers.json

# The planner's rules and the documentation's figures, from the JSON in bench/results: on any machine.
profiles: .venv/installed
	python -m scanrnn tune --from $(patsubst %,bench/results/cpu-%.json,crossover-epyc-scans random-3 \
	  random-4 scans-bfloat16 scans-float16 crossover) --out dispatch/profiles/cpu-generic.json
	python -m scanrnn tune --from $(patsubst %,bench/results/cpu-avx2-%.json,crossover-scans random-3 \
	  random-4 scans-bfloat16 scans-float16) --out dispatch/profiles/AVX2.json
	for name in sm_90 cuda-generic; do python -m scanrnn tune --from $(patsubst %, \
	  bench/results/%.json,h200-layer h100-layer h200-scan h100-scan h200-random-tf32 \
	  h100-random-scans h200-random-scans h200-random h200-crossover-2 h200-random-31 h200-random-33 \
	  h200-random-halves h200-random-half-scans h200-random-half-vectors h200-random-66 \
	  h200-random-short h200-few-steps h200-crossover) \
	  --out dispatch/profiles/$$name.json; done

figures: .venv/installed
	python bench/figures.py

# Without Python: the engine by itself, and scans and layers by the public API in C++.
bench-engine: PRESET := $(if $(GPU),cuda,release)
bench-engine: .venv/ready
	@test -e /usr/include/benchmark/benchmark.h || { sudo=$$([ $$(id -u) = 0 ] || echo sudo); \
	  $$sudo apt-get update -q && $$sudo apt-get install -q -y libbenchmark-dev; }
	cmake --preset $(PRESET) -DSCANRNN_BUILD_BENCH=ON -DPython_EXECUTABLE=$(PYTHON)
	cmake --build --preset $(PRESET) --target engine_cpu $(if $(GPU),engine_cuda scan_cuda layer_cuda dense_cuda stack_cuda)
	build/$(PRESET)/bench/engine_cpu
	$(if $(GPU),build/cuda/bench/engine_cuda)
	$(if $(GPU),build/cuda/bench/scan_cuda --json bench/results/$(NAME)-scan.json)
	$(if $(GPU),build/cuda/bench/layer_cuda --json bench/results/$(NAME)-layer.json)
	$(if $(GPU),build/cuda/bench/dense_cuda --json bench/results/$(NAME)-dense.json)
	$(if $(GPU),build/cuda/bench/stack_cuda --json bench/results/$(NAME)-stacks.json)

# The site, in build/docs. A link within it that leads nowhere is an error; docs-links tries the
# others, for which it needs the network.
SITE = python -m sphinx -c docs -d build/docs/doctrees .
docs: .venv/installed .venv/frameworks .venv/docs
	mkdir -p build/doxygen
	doxygen docs/Doxyfile
	$(SITE) -b html --fail-on-warning --keep-going --quiet build/docs/html
	@echo "The site: build/docs/html/index.html"

docs-links: docs
	$(SITE) -b linkcheck --quiet build/docs/links

# What type checkers read of the classes that the registry makes.
stubs: .venv/installed .venv/frameworks
	python python/src/stubs.py
	ruff format --check python/scanrnn

format: .venv/ready
	clang-format -i $(CPP)
	ruff format
	ruff check --fix

lint: .venv/ready
	clang-format --dry-run --Werror $(CPP)
	ruff format --check
	ruff check

clean:
	rm -rf build .venv

# The package from the sources as they are. --no-build-isolation: with the tools in .venv, so that
# only what has changed is compiled again.
.venv/installed: .venv/ready $(SOURCES)
	pip install --quiet --no-build-isolation '.[plot,test]'
	python -m scanrnn info
	touch $@

# What the tests try the package with; without it they are skipped, and say so. `make FRAMEWORKS=`
# leaves all of it out.
FRAMEWORKS := torch jax
.venv/frameworks: .venv/ready
	@for group in $(FRAMEWORKS); do \
	  pip install --quiet --group $$group || \
	    echo "WARNING: $$group cannot be installed here: ITS TESTS ARE SKIPPED" >&2; \
	done
	touch $@

# The same on a GPU. Where they cannot be installed, FRAMEWORKS_FROM=/path/to/python names a Python
# of our version that has them.
.venv/frameworks-cuda: .venv/ready
ifdef FRAMEWORKS_FROM
	python tests/package/borrow.py $(FRAMEWORKS_FROM)
else
	pip install --quiet --group frameworks-cuda
endif
	touch $@

.venv/docs: .venv/ready
	@command -v doxygen >/dev/null || { sudo=$$([ $$(id -u) = 0 ] || echo sudo); \
	  $$sudo apt-get update -q && \
	  $$sudo apt-get install -q -y --no-install-recommends doxygen; }
	pip install --quiet --group docs
	touch $@

.venv/ready: Makefile pyproject.toml
	@missing=; \
	have() { package=$$1; shift; "$$@" >/dev/null 2>&1 || missing="$$missing $$package"; }; \
	have g++ command -v g++; \
	have ccache command -v ccache; \
	have libgtest-dev test -e /usr/include/gtest/gtest.h; \
	have libhwy-dev test -e /usr/include/hwy/highway.h; \
	have python3-dev python3 -c 'import os, sysconfig; \
	  os.stat(sysconfig.get_path("include") + "/Python.h")'; \
	have python3-venv python3 -c 'import ensurepip'; \
	if [ -n "$$missing" ]; then \
	  echo "Installing Debian packages:$$missing"; \
	  sudo=$$([ $$(id -u) = 0 ] || echo sudo); \
	  $$sudo apt-get update -q && $$sudo env DEBIAN_FRONTEND=noninteractive \
	    apt-get install -q -y --no-install-recommends $$missing; \
	fi
	python3 -m venv .venv
	python -m pip install --quiet --upgrade pip
	pip install --quiet --group build --group lint $(if $(NVCC),--group cuda)
	touch $@
