# The commands of this project; each installs what it needs.  Beneath: CMakePresets.json.
#   TORCH=DIR   builds with a libtorch 2.11 that is there: an unpacked libtorch, or a Python's torch folder
#   WERROR=ON   makes warnings errors, as .ci/run does
JOBS ?= $(shell nproc)
export TORCH
WERROR ?=
CONFIGURE = $(if $(TORCH),-DPARADYSE_TORCH=$(abspath $(TORCH))) \
  $(if $(WERROR),$(if $(filter release cuda package,$*),-DCMAKE_COMPILE_WARNING_AS_ERROR=$(WERROR)))
OUR_CODE = find $(wildcard include src lab python tests examples benchmarks) -name '*.h' -o -name '*.cc' -o -name '*.cu'

.DEFAULT_GOAL := build

.PHONY: demo video protein build check-clang build-cuda gpu-bundle check-cuda-kernels test test-long test-asan test-tsan lint format clean install package \
  deps deps-lint deps-clang deps-cuda deps-package build-all always

demo: build
	@scripts/demo_corpus.sh
	@run=demo-$$(date +%Y-%m-%d_%H%M%S); set -ex; \
	  build/release/paradyse train -c configs/runs/demo.toml --set output.name=$$run; \
	  build/release/paradyse generate --model runs/$$run/model --prompt 'def ' --max-new-tokens 150

# Trains a video model on a film, by default one of a Debian package; `make video FILM=yours.mp4`.
FILM ?= /usr/share/forensics-samples/original-files/movie2/movie-hello.mp4
video: build
	@scripts/install.sh video
	scripts/video_frames.py $(FILM) .demo/video.safetensors --rate 24
	build/release/paradyse train -c configs/runs/video.toml

# Trains a protein model on an alignment of a Debian package.
protein: build
	@scripts/install.sh protein
	@mkdir -p .demo && cp /usr/share/doc/hmmer/examples/tutorial/fn3.sto .demo/fn3.sto
	build/release/paradyse train -c configs/runs/protein.toml

build: deps build/release/build.ninja
	cmake --build --preset release -j $(JOBS) --target paradyse

# The warnings of another compiler, in tests and benchmarks too.  No code is made; `test-asan` makes the
# plan side's.
check-clang: deps-clang build/clang/build.ninja
	scripts/check_clang.py $(JOBS)

# The program with CUDA and NCCL: takes a CUDA 13 toolkit, no GPU.
build-cuda: deps-cuda build/cuda/build.ninja
	cmake --build --preset cuda -j $(JOBS) --target paradyse

check-cuda-kernels:
	scripts/check_cuda_kernels.py $(JOBS)

# What a machine with a GPU and PyTorch needs of us, in build/gpu-bundle/ (docs/reference/gpu.md).
gpu-bundle: deps-cuda build/cuda/build.ninja
	cmake --build --preset cuda -j $(JOBS) --target paradyse device_tests
	scripts/gpu_bundle.py build/cuda

# What tests left out, and why: ctest does not show it.
SKIPPED = grep -h '^skipped: ' build/release/Testing/Temporary/LastTest.log | sort -u || true

test: build-all
	scripts/short_slices.py ctest --preset release -j 3
	@$(SKIPPED)

# All tests, the long ones too, with more repetitions; and what sanitizers can be had for.  Where there
# is a CUDA toolkit, the programs with CUDA are compiled, linked and bundled for a machine with a GPU,
# and our kernels' registers are counted; `make test-long CUDA=` leaves both out.
CUDA ?= $(if $(wildcard /usr/local/cuda/bin/nvcc)$(shell command -v nvcc),gpu-bundle check-cuda-kernels)
# And libFuzzer over each reader of files, for FUZZ seconds.
FUZZ ?= 20
test-long: test-asan test-tsan build-all package $(CUDA)
	scripts/fuzz.sh $(FUZZ)
	scripts/test_package.sh build/package/paradyse_*.deb
	cd build/debug-asan && ctest -R '^plan\.fit$$' --output-on-failure  # ten times as long there
	scripts/short_slices.py ctest --preset release-long -j 2
	@$(SKIPPED)
	@$(if $(CUDA),,echo "left out: the programs with CUDA (no toolkit, or CUDA= was given)")

test-asan: deps-clang build/debug-asan/build.ninja
	cmake --build --preset debug-asan -j $(JOBS)
	ctest --preset debug-asan -j 2

# What threads share, under thread sanitizer: cmake/Threads.cmake says what, and what it does not see.
test-tsan: deps-clang build/tsan/build.ninja
	cmake --build --preset tsan -j $(JOBS)
	ctest --preset tsan -j 2

lint: deps-lint build/lint/build.ninja
	$(OUR_CODE) | xargs -n 100 -P $(JOBS) clang-format-19 --dry-run -Werror
	scripts/check_plan_side.sh
	scripts/check_layers.py
	scripts/check_json.py
	scripts/check_docs.py
	cmake -S . -B build/lint >/dev/null
	scripts/clang_tidy.py .deps/clang-tidy-23.1.4/clang_tidy/data/bin/clang-tidy $(JOBS)

format: deps-lint
	$(OUR_CODE) | xargs clang-format-19 -i

# The program, the libraries, the promised headers and a CMake package (docs/internals/tour.md).
PREFIX ?= /usr/local
install: build-all
	cmake --install build/release --prefix $(PREFIX)

# A Debian package of the program with the libtorch that it was built with (docs/guide/install.md).
package: deps-package build/package/build.ninja
	cmake --build --preset package -j $(JOBS)
	rm -f build/package/*.deb  # of another version
	cd build/package && cpack

clean:
	rm -rf build

deps:
	@scripts/install.sh

deps-lint:
	@scripts/install.sh lint

deps-clang:
	@scripts/install.sh clang

deps-package:
	@scripts/install.sh package

deps-cuda:
	@scripts/install.sh cuda

build-all: deps build/release/build.ninja
	cmake --build --preset release -j $(JOBS)

build/cuda/build.ninja: | deps-cuda
build/clang/build.ninja build/debug-asan/build.ninja build/tsan/build.ninja: | deps-clang
build/lint/build.ninja: | deps-lint
build/package/build.ninja: | deps-package

# Later changes of CMakeLists.txt are noticed by the build itself.
build/%/build.ninja: CMakePresets.json $(if $(TORCH)$(WERROR),always) | deps
	cmake --preset $* $(CONFIGURE)
	@touch $@
