# The commands of this project; each installs what it needs.  Beneath: CMakePresets.json.
JOBS ?= $(shell nproc)
OUR_CODE = find $(wildcard include src tests examples benchmarks) -name '*.h' -o -name '*.cc'

.PHONY: demo build build-cuda test test-long test-asan lint format clean install install-lint \
  install-cuda build-all

demo: build
	@scripts/demo_corpus.sh
	build/release/paradyse train -c configs/runs/demo.toml

build: install build/release/build.ninja
	cmake --build --preset release -j $(JOBS) --target paradyse

# The program with CUDA and NCCL: takes a CUDA 13 toolkit, no GPU.
build-cuda: install-cuda build/cuda/build.ninja
	cmake --build --preset cuda -j $(JOBS) --target paradyse

test: build-all
	ctest --preset release -j 2

# All tests, the long ones too, with more repetitions; and the plan side under sanitizers.  Where there
# is a CUDA toolkit, the program with CUDA is compiled and linked; `make test-long CUDA=` leaves it out.
CUDA ?= $(if $(wildcard /usr/local/cuda/bin/nvcc)$(shell command -v nvcc),build-cuda)
test-long: test-asan build-all $(CUDA)
	ctest --preset release-long -j 2
	@$(if $(CUDA),,echo "left out: the program with CUDA (no toolkit, or CUDA= was given)")

test-asan: install build/debug-asan/build.ninja
	cmake --build --preset debug-asan -j $(JOBS)
	ctest --preset debug-asan -j 2

lint: install-lint build/debug-asan/build.ninja
	$(OUR_CODE) | xargs clang-format-19 --dry-run -Werror
	scripts/check_plan_side.sh
	cmake -S . -B build/debug-asan >/dev/null
	find src/plan -name '*.cc' | sort | \
	  xargs -P $(JOBS) -n 1 clang-tidy-19 -p build/debug-asan --quiet

format: install-lint
	$(OUR_CODE) | xargs clang-format-19 -i

clean:
	rm -rf build

install:
	@scripts/install.sh

install-lint:
	@scripts/install.sh lint

install-cuda:
	@scripts/install.sh cuda

build-all: install build/release/build.ninja
	cmake --build --preset release -j $(JOBS)

build/cuda/build.ninja: | install-cuda

# Later changes of CMakeLists.txt are noticed by the build itself.
build/%/build.ninja: CMakePresets.json | install
	cmake --preset $*
	@touch $@
