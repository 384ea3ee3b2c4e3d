#!/usr/bin/env bash
# Compares two builds of the program bit by bit: losses and all gradients of small models of every
# family, under every strategy, in float64, float32 and bfloat16.  For a change that is to change
# nothing.
#
#   scripts/same_bits.sh OLD NEW     two paths of the program `paradyse`
set -euo pipefail
if (($# != 2)); then
  echo "usage: scripts/same_bits.sh OLD NEW" >&2
  exit 2
fi
old=$1 new=$2
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# The file's place, but for seconds, which are of the day.
run() {  # program, name of the outputs, arguments of grad
  local program=$1 name=$2
  shift 2
  "$program" grad "$@" --out "$out/$name.safetensors" --json |
    grep -v -e seconds -e '"out"' -e '"file"' -e "$out" >"$out/$name.json"
}

same=0 different=0
compare() {  # title, arguments of grad
  local title=$1
  shift
  run "$old" old "$@"
  run "$new" new "$@"
  if cmp -s "$out/old.safetensors" "$out/new.safetensors" && cmp -s "$out/old.json" "$out/new.json"; then
    same=$((same + 1))
  else
    different=$((different + 1))
    echo "differs: $title"
  fi
}

for model in tests/golden/hf_*; do
  for strategy in MegatronTS UlyssesZ MegatronCZ ColossalZ METP USP AllGatherKV; do
    for ranks in 3 4; do
      compare "$model $strategy on $ranks" --model "$model" --data "$model/documents.jsonl" \
        --attention $strategy --ranks $ranks
    done
    for dtype in float32 bfloat16; do
      compare "$model $strategy $dtype" --model "$model" --data "$model/documents.jsonl" \
        --attention $strategy --ranks 2 --dtype $dtype --recompute light --token-tiles 2
    done
  done
done
echo "$same runs to the same bits, $different different"
((different == 0))
