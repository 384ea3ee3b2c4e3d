#!/usr/bin/env bash
# Installs what is needed to build and test and is not there yet: Debian packages (with sudo where
# not root; on a terminal it asks first); and libtorch, HiGHS and what the Python package is built
# with, into .deps/ of this checkout and never into a system's Python.  Wheels are checked against the
# hashes in scripts/wheels*.txt.  Where packages cannot be installed (no apt-get, or neither root nor sudo), it
# goes on if the tools and headers are found, and else names those that are missing.
#
# TORCH=DIR: a libtorch that is there (make TORCH=DIR); none is downloaded.
#
#   scripts/install.sh         to build and test
#   scripts/install.sh lint    also what `make lint` needs
#   scripts/install.sh clang   also the second compiler, for `make check-clang`, `make test-asan` and `make test-tsan`
#   scripts/install.sh package also what `make package` needs
#   scripts/install.sh video   also ffmpeg, and a film for `make video`
#   scripts/install.sh protein also alignments, for `make protein`
#   scripts/install.sh cuda    also what the preset `cuda` links: libtorch_cuda, and NCCL where the
#                              CUDA toolkit has none.  Where an NVIDIA driver runs, or with
#                              `cuda-run`, the libraries that libtorch_cuda loads, too (2 GB)
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ make cmake ninja-build ccache mold python3 python3-pip unzip
  nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libfmt-dev libxxhash-dev libeigen3-dev
  libpng-dev zlib1g-dev libsodium-dev
  python3-dev  # the Python package; a build does without
  libgloo-dev  # the headers alone: libtorch has Gloo inside
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
)
# The last two are what libtorch_cpu.so links even on a machine without a GPU.
wheels=(torch==2.11.0 nvidia-cuda-runtime==13.5.37 nvidia-cuda-cupti==13.5.25)
home=.deps/torch-2.11.0  # cmake/Torch.cmake looks here
highs_wheel=highsbox==1.15.1
highs_home=.deps/highs-1.15.1  # cmake/Highs.cmake looks here
# What the Python package is built and tested with; the last two lines are what these need.
python_wheels=(
  nanobind==3.1.0 scikit-build-core==1.1.2 numpy==2.4.6 mypy==2.4.1
  ast-serialize==0.13.1 librt==0.17.0 mypy-extensions==1.2.0 packaging==26.4 pathspec==1.1.1
  typing-extensions==4.16.0
)
python_home=.deps/python-3.11  # cmake/Python.cmake looks here; numpy and mypy are built for this version
# Leaves alone what system headers declare, which takes later ones less than half of the time.
tidy_wheel=clang-tidy==23.1.4
tidy_home=.deps/clang-tidy-23.1.4  # the Makefile looks here

# As torch's wheel asks for them.
nccl_wheel=nvidia-nccl-cu13==2.28.9
cuda_run_wheels=(
  "cuda-toolkit[cublas,cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvjitlink,nvrtc,nvtx]==13.0.2"
  nvidia-cudnn-cu13==9.19.0.56 nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5
)
cuda_home=.deps/torch-2.11.0-cuda  # cmake/Cuda.cmake looks here
cuda=  # "", link or run
lint=

case "${1:-}" in
  "") ;;
  lint) packages+=(clang-format-19 clang-19) lint=1 ;;
  clang) packages+=(clang-19 libclang-rt-19-dev) ;;
  package) packages+=(dpkg-dev file) ;;
  video) packages+=(ffmpeg forensics-samples-files) ;;
  protein) packages+=(hmmer-examples) ;;
  cuda) cuda='link'; [[ ! -e /proc/driver/nvidia/version ]] || cuda='run' ;;
  cuda-run) cuda='run' ;;
  *) echo "usage: scripts/install.sh [lint|clang|package|video|protein|cuda|cuda-run]" >&2; exit 2 ;;
esac

fail() {
  printf 'install.sh: %s\n' "$@" >&2
  exit 1
}

# What the packages of the build are for, one a line: command or header, and the Debian package.  ccache,
# mold and Google Benchmark are left out: a build does without them.
needed='make make
cmake cmake
ninja ninja-build
python3 python3
unzip unzip
nlohmann/json.hpp nlohmann-json3-dev
toml++/toml.h libtomlplusplus-dev
CLI/CLI.hpp libcli11-dev
fmt/format.h libfmt-dev
xxhash.h libxxhash-dev
Eigen/Core libeigen3-dev
png.h libpng-dev
zlib.h zlib1g-dev
sodium.h libsodium-dev
gloo/context.h libgloo-dev
gtest/gtest.h libgtest-dev
gmock/gmock.h libgmock-dev
rapidcheck.h librapidcheck-dev'

# Prints what is needed and not found, as "NAME (Debian: PACKAGE)".  Headers are asked of the compiler,
# which knows CPATH and the folders of its system.
missing_tools() {
  local cxx=${CXX:-c++} name package source="" headers=1
  if ! command -v "$cxx" >/dev/null; then
    echo "$cxx, a C++20 compiler (Debian: g++)"
    headers=
  fi
  while read -r name package; do
    if [[ $name != *[./]* ]]; then
      command -v "$name" >/dev/null || echo "$name (Debian: $package)"
    elif [[ $name == Eigen/* ]]; then
      source+="#if !__has_include(<$name>) && !__has_include(<eigen3/$name>)"$'\n'"$name (Debian: $package)"$'\n#endif\n'
    else
      source+="#if !__has_include(<$name>)"$'\n'"$name (Debian: $package)"$'\n#endif\n'
    fi
  done <<<"$needed"
  [[ -z $headers ]] || "$cxx" -E -P -x c++ - <<<"$source" | sed '/^$/d'
  [[ -n $(python_with_pip) ]] || echo "pip of Python 3 (Debian: python3-pip)"
}

# Where packages cannot be installed, for the reason $1.
go_on_if_tools_are_found() {
  local found_not
  mapfile -t found_not < <(missing_tools)
  ((${#found_not[@]})) || return 0
  fail "$1, and these tools or headers are not found:" "${found_not[@]/#/  }" \
    "install them by your system's means, then run this again (headers of other folders: set CPATH and CMAKE_PREFIX_PATH)"
}

install_packages() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    go_on_if_tools_are_found "no apt-get on this machine"
    return
  fi
  local installed missing=() package sudo=()
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
  for package in "${packages[@]}"; do
    [[ $'\n'$installed$'\n' == *$'\n'"$package installed"$'\n'* ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      go_on_if_tools_are_found "neither root nor sudo to install: ${missing[*]}"
      return
    fi
    sudo=(sudo)
    if [[ -t 0 ]]; then
      local answer=
      echo "These Debian packages are missing: ${missing[*]}"
      read -r -p "Install them now with sudo apt-get install? [y/N] " answer || true
      if [[ $answer != [yY]* ]]; then
        go_on_if_tools_are_found "packages were not installed"
        return
      fi
    fi
  fi
  echo "installing: ${missing[*]}"
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update >/dev/null || echo "install.sh: apt-get update failed, trying with the old lists" >&2
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]}" \
      "check the network and the package sources (Debian 12 or later has all), then run this again"
}

# Debian's Python first, since another one in PATH may lack pip.
python_with_pip() {
  local python
  for python in /usr/bin/python3 python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      echo "$python"
      return
    fi
  done
}

# The wheels of the lines of requirements, each with its hash, into folder $1.  Platform tags are accepted
# by name: pip does not know that a later manylinux includes an earlier one.
download_lines() {
  local to=$1 lines=$2 tag platforms=() python
  python=$(python_with_pip)
  [[ -n $python ]] || fail "no Python 3 with pip; install it (Debian: python3-pip)"
  for tag in manylinux_2_28 manylinux_2_27 manylinux_2_25 manylinux_2_18 manylinux2014 manylinux2010 \
    manylinux1; do
    platforms+=(--platform "${tag}_x86_64")
  done
  echo "$lines" >.deps/partial/requirements.txt
  "$python" -m pip download --quiet --no-cache-dir --disable-pip-version-check \
    --only-binary=:all: --python-version 3.11 "${platforms[@]}" --dest "$to" --no-deps \
    --require-hashes -r .deps/partial/requirements.txt ||
    fail "pip could not download: $(sed 's/ --hash.*//' <<<"$lines" | paste -sd ' ')" \
      "check the network (and PIP_INDEX_URL where a mirror is used), then run this again;" \
      "hashes that do not match mean that the mirror's files are not those of PyPI"
}

# The wheels NAME==VERSION..., which scripts/wheels.txt has to know.
download() {
  local to=$1 wheel line lines=
  shift
  for wheel in "$@"; do
    line=$(grep -F -- "$wheel --hash=" scripts/wheels.txt) ||
      fail "scripts/wheels.txt has no hash of $wheel"
    lines+=$line$'\n'
  done
  download_lines "$to" "${lines%$'\n'}"
}

# Of two installs at once the second finds the work done; `partial` is of one that was killed.
begin_partial() {
  rm -rf .deps/partial
  mkdir -p .deps/partial/wheels .deps/partial/home
}
lock() {
  mkdir -p .deps
  exec 9>.deps/lock
  flock 9
}

# Whether folder $1 is still to be made of the wheels $2; if so, by this install alone.
begin() {
  [[ "$(cat "$1/wheels.txt" 2>/dev/null)" != "$2" ]] || return 1
  lock || exit 1  # where begin() is asked, -e is off
  [[ "$(cat "$1/wheels.txt" 2>/dev/null)" != "$2" ]] || return 1
  begin_partial || exit 1
}
# What was made in $3 takes the place of $1.
finish() {
  echo "$2" >"$3/wheels.txt"
  rm -rf "$1"
  mv "$3" "$1"
  rm -rf .deps/partial
}

install_torch() {
  begin "$home" "${wheels[*]}" || return 0
  echo "downloading: ${wheels[*]} (0.55 GB)"
  download .deps/partial/wheels "${wheels[@]}"

  # The folders stay as in the wheels: libtorch_cpu.so finds nvidia/cu13/lib relative to itself.
  # Its copy of fmt stays out: it would hide Debian's.
  local wheel
  for wheel in .deps/partial/wheels/torch-*.whl; do
    unzip -q "$wheel" 'torch/include/*' torch/lib/libtorch_cpu.so torch/lib/libc10.so \
      'torch/lib/libgomp*' '*.dist-info/licenses/*' \
      -x 'torch/include/fmt/*' -d .deps/partial/home
  done
  for wheel in .deps/partial/wheels/nvidia_*.whl; do
    unzip -q "$wheel" '*/lib/lib*.so.13' '*.dist-info/licenses/*' -d .deps/partial/home
  done
  finish "$home" "${wheels[*]}" .deps/partial/home
}

# The library, what its C interface includes, and its licence.  OpenBLAS stays out: HiGHS loads it for an
# interior-point solver that is not used.
install_highs() {
  begin "$highs_home" "$highs_wheel" || return 0
  echo "downloading: $highs_wheel (10 MB)"
  download .deps/partial/wheels "$highs_wheel"

  unzip -q .deps/partial/wheels/highsbox-*.whl '*/highs_dist/include/highs/*' \
    '*/highs_dist/lib/libhighs.so' '*/highs_dist/share/doc/HIGHS/LICENSE.txt' -d .deps/partial/home
  mv .deps/partial/home/highsbox-*.data/purelib/highsbox/highs_dist .deps/partial/highs
  mv .deps/partial/highs/share/doc/HIGHS/LICENSE.txt .deps/partial/highs
  rm -r .deps/partial/highs/share
  finish "$highs_home" "$highs_wheel" .deps/partial/highs
}

install_python() {
  begin "$python_home" "${python_wheels[*]}" || return 0
  echo "downloading: ${python_wheels[*]} (34 MB)"
  download .deps/partial/wheels "${python_wheels[@]}"

  local wheel
  for wheel in .deps/partial/wheels/*.whl; do
    unzip -q "$wheel" -d .deps/partial/home
  done
  finish "$python_home" "${python_wheels[*]}" .deps/partial/home
}

install_tidy() {
  begin "$tidy_home" "$tidy_wheel" || return 0
  echo "downloading: $tidy_wheel (45 MB)"
  download .deps/partial/wheels "$tidy_wheel"

  unzip -q .deps/partial/wheels/clang_tidy-*.whl -d .deps/partial/home
  chmod +x .deps/partial/home/clang_tidy/data/bin/clang-tidy
  finish "$tidy_home" "$tidy_wheel" .deps/partial/home
}

# Beside $home, since a build for the CPU shall not see it.  libtorch_cuda.so finds nvidia/*/lib
# relative to itself, and the rest of torch is loaded by then.
install_cuda() {
  local wanted="${wheels[0]} $nccl_wheel" done_for
  [[ $cuda == link ]] || wanted+=" ${cuda_run_wheels[*]}"
  done_for=$(cat $cuda_home/wheels.txt 2>/dev/null || true)
  [[ "$done_for" == "$wanted"* ]] && return 0
  lock
  done_for=$(cat $cuda_home/wheels.txt 2>/dev/null || true)
  [[ "$done_for" == "$wanted"* ]] && return 0
  begin_partial
  echo "downloading: $wanted ($([[ $cuda == link ]] && echo 0.8 || echo 2.7) GB)"
  download .deps/partial/wheels "${wheels[0]}" "$nccl_wheel"
  [[ $cuda == link ]] || download_lines .deps/partial/wheels "$(grep -v '^#' scripts/wheels_cuda_run.txt)"

  local wheel
  for wheel in .deps/partial/wheels/torch-*.whl; do
    unzip -q "$wheel" torch/lib/libtorch_cuda.so torch/lib/libc10_cuda.so \
      torch/lib/libtorch_nvshmem.so torch/lib/libtorch_cuda_linalg.so '*.dist-info/licenses/*' \
      -d .deps/partial/home
  done
  for wheel in .deps/partial/wheels/nvidia_*.whl; do
    unzip -q "$wheel" '*/lib/*.so.*' '*.dist-info/licenses/*' -d .deps/partial/home \
      2>/dev/null || (($? == 11))  # a wheel without one of these
  done
  unzip -q .deps/partial/wheels/nvidia_nccl_*.whl '*/include/*' -d .deps/partial/home
  finish "$cuda_home" "$wanted" .deps/partial/home
}

install_packages
if [[ -n ${TORCH:-} ]]; then
  [[ -d $TORCH ]] || fail "TORCH=$TORCH is no folder; give that of a libtorch 2.11 or of a Python's torch"
else
  install_torch
fi
install_highs
install_python
[[ -z $lint ]] || install_tidy
[[ -z $cuda ]] || install_cuda
