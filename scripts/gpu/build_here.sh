#!/usr/bin/env bash
# Builds the programs of the bundle from its sources, where the ones that it brings do not start.
#
#   build_here.sh FOLDER [CMAKE OPTIONS...]     into FOLDER/build; `configure` after FOLDER stops there
#
# PARADYSE_SITE_PACKAGES is the folder with torch/ and nvidia/, as for start.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:?usage: build_here.sh FOLDER}
shift
only_configure=
[[ ${1:-} != configure ]] || { only_configure=1; shift; }
site=${PARADYSE_SITE_PACKAGES:-$(python3 -c '
import importlib.util, pathlib
print(pathlib.Path(importlib.util.find_spec("torch").origin).parent.parent)')}

export PATH=$PATH:/usr/local/cuda/bin
mkdir -p "$folder"
tar -xzf "$here/source.tar.gz" -C "$folder"
cmake -S "$folder/source" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" -DCMAKE_PREFIX_PATH="$folder/source/prefix" \
  -DPARADYSE_CUDA=ON -DPARADYSE_TORCH="$site" -DPARADYSE_TORCH_CUDA="$site" -DPARADYSE_HIGHS=OFF "$@"
[[ -z $only_configure ]] || exit 0
cmake --build "$folder/build" -j "$(nproc)" --target paradyse device_tests
ln -sf bin/device_tests "$folder/build/device_tests"
