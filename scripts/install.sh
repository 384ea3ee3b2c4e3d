#!/usr/bin/env bash
# Installs what is needed to build and test and is not there yet: Debian packages (with sudo where
# not root) and libtorch, the latter into .deps/ of this checkout and never into a system's Python.
#
#   scripts/install.sh         to build and test
#   scripts/install.sh lint    also what `make lint` needs
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ make cmake ninja-build ccache mold python3 python3-pip unzip
  nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libfmt-dev
  libgloo-dev  # the headers alone: libtorch has Gloo inside
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
)
# The last two are what libtorch_cpu.so links even on a machine without a GPU.
wheels=(torch==2.11.0 nvidia-cuda-runtime==13.5.37 nvidia-cuda-cupti==13.5.25)
home=.deps/torch-2.11.0  # cmake/Torch.cmake looks here

case "${1:-}" in
  "") ;;
  lint) packages+=(clang-format-19 clang-tidy-19) ;;
  *) echo "usage: scripts/install.sh [lint]" >&2; exit 2 ;;
esac

fail() {
  printf 'install.sh: %s\n' "$@" >&2
  exit 1
}

install_packages() {
  local installed missing=() package sudo=()
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
  for package in "${packages[@]}"; do
    [[ $'\n'$installed$'\n' == *$'\n'"$package installed"$'\n'* ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  command -v apt-get >/dev/null ||
    fail "no apt-get on this machine; install the equivalents of: ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      fail "neither root nor sudo; ask an administrator for: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  echo "installing: ${missing[*]}"
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update >/dev/null || echo "install.sh: apt-get update failed, trying with the old lists" >&2
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]}" \
      "check the network and the package sources (Debian 12 or later has all), then run this again"
}

install_torch() {
  [[ "$(cat $home/wheels.txt 2>/dev/null)" == "${wheels[*]}" ]] && return 0
  mkdir -p .deps
  exec 9>.deps/lock
  flock 9  # of two installs at once the second finds the work done
  [[ "$(cat $home/wheels.txt 2>/dev/null)" == "${wheels[*]}" ]] && return 0
  rm -rf .deps/partial  # of an install that was killed
  mkdir -p .deps/partial/wheels .deps/partial/home

  # Debian's Python, since another one in PATH may lack pip.  Only the three wheels' platform tags
  # are accepted by name: pip does not know that a later manylinux includes an earlier one.
  echo "downloading: ${wheels[*]} (0.55 GB)"
  local tag platforms=()
  for tag in manylinux_2_28 manylinux_2_25 manylinux2014; do
    platforms+=(--platform "${tag}_x86_64")
  done
  /usr/bin/python3 -m pip download --quiet --no-cache-dir --disable-pip-version-check \
    --no-deps --only-binary=:all: --python-version 3.11 "${platforms[@]}" \
    --dest .deps/partial/wheels "${wheels[@]}" ||
    fail "pip could not download: ${wheels[*]}" \
      "check the network (and PIP_INDEX_URL where a mirror is used), then run this again"

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
  echo "${wheels[*]}" >.deps/partial/home/wheels.txt
  rm -rf "$home"
  mv .deps/partial/home "$home"
  rm -rf .deps/partial
}

install_packages
install_torch
