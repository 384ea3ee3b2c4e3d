#!/usr/bin/env bash
# libFuzzer over the readers of files and the messages of the rendezvous: each for so many seconds, or those that
# are named.
#   scripts/fuzz.sh 60 [plan.json state.json rendezvous ...]
# It begins with the corpus in the tree, tests/fuzz/corpus/, and the sound file of tests/run/readers.h.  Ends with 1
# and the input where one did anything but read or refuse it; its form then belongs into
# tests/run/hostile_files_test.cc, an input of the rendezvous into tests/fuzz/corpus/.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?scripts/fuzz.sh SECONDS [READER ...]}
shift
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --target fuzz.readers fuzz.rendezvous
bin=build/fuzz/bin
if (($# > 0)); then
  names=()
  for name in "$@"; do names+=("fuzz.${name//\//_}"); done
else
  mapfile -t names < <("$bin/fuzz.readers" 2>/dev/null)
  names+=(fuzz.rendezvous)
fi
for name in "${names[@]}"; do
  corpus=build/fuzz/corpus/$name
  mkdir -p "$corpus" "build/fuzz/found/$name"
  echo "$name"
  if [ -d "tests/fuzz/corpus/${name#fuzz.}" ]; then
    cp "tests/fuzz/corpus/${name#fuzz.}"/* "$corpus"
  fi
  if [ "$name" != fuzz.rendezvous ]; then
    ln -sf fuzz.readers "$bin/$name"
    PARADYSE_FUZZ_CORPUS=$corpus "$bin/$name" -runs=0 "$corpus" >/dev/null 2>&1
  fi
  "$bin/$name" -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/found/$name/" "$corpus" 2>&1 | grep -vE "^#|^INFO|^\s*$" || true
  if [ -n "$(ls -A "build/fuzz/found/$name")" ]; then
    echo "found: build/fuzz/found/$name/" >&2
    exit 1
  fi
done
