# The commands of this project; each installs what it needs.  Beneath: CMakePresets.json.
JOBS ?= $(shell nproc)
OUR_CODE = find $(wildcard include src tests examples benchmarks) -name '*.h' -o -name '*.cc'

.PHONY: demo build test test-long test-asan lint format clean install install-lint build-all

demo: build
	@scripts/demo_corpus.sh
	build/release/paradyse train -c configs/runs/demo.toml

build: install build/release/build.ninja
	cmake --build --preset release -j $(JOBS) --target paradyse

test: build-all
	ctest --preset release -j 2

# All tests, the long ones too, with more repetitions; and the plan side under sanitizers.
test-long: test-asan build-all
	ctest --preset release-long -j 2

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

build-all: install build/release/build.ninja
	cmake --build --preset release -j $(JOBS)

# Later changes of CMakeLists.txt are noticed by the build itself.
build/%/build.ninja: CMakePresets.json | install
	cmake --preset $*
	@touch $@
