#!/usr/bin/env bash
# Installs a build into a new folder, builds examples/installed against it and runs that.
#
#   scripts/test_install.sh BUILD     BUILD: a build folder, as build/release
set -euo pipefail
build=$(realpath "${1:?usage: scripts/test_install.sh BUILD}")
source=$(realpath "$(dirname "$0")/..")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

cmake --install "$build" --prefix "$out/installed" >/dev/null
# Nothing of the checkout but the example itself.
cp -r "$source/examples/installed" "$out/example"
cp "$source/examples/axial.cc" "$out/example"
cmake -S "$out/example" -B "$out/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$out/installed" >/dev/null
cmake --build "$out/build"
"$out/build/own_mlp"
"$out/build/axial"
"$out/installed/bin/paradyse" --version
