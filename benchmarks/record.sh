#!/usr/bin/env bash
# Measures again what the documents state and stores it below benchmarks/results/.
#
#     benchmarks/record.sh comm steps published planner attention passes costs dtypes
#
# On a quiet machine; an argument a group, none: all.  What needs other programs beside ours has
# scripts of its own (peers.py, forest_vs_sklearn.py, two_builds.py; `paradyse-lab switching`).
set -euo pipefail
cd "$(dirname "$0")/.."
paradyse=build/release/paradyse
results=benchmarks/results
model=configs/models/bench.toml

comm() {
  $paradyse bench comm --seconds 0.15 --json > $results/comm_local.json
  $paradyse launch -n 4 -- bench comm --seconds 0.3 --json > $results/comm_gloo.json
}

steps() {
  local name
  for name in DataZ MegatronTS UlyssesZ MegatronCZ METP AllGatherKV; do
    $paradyse bench step --model $model --lengths 256,1024,4096 --attention $name --breakdown --json \
      > $results/step_$name.json
  done
}

published() {
  $paradyse-lab replay --json > $results/published.json
}

planner() {  # cmake --preset release -DPARADYSE_BENCHMARKS=ON
  build/release/bin/benchmark.layer_planner > $results/layer_planner.txt
}

attention() {  # cmake --preset release -DPARADYSE_BENCHMARKS=ON
  build/release/bin/benchmark.attention --benchmark_repetitions=3 --benchmark_enable_random_interleaving=true \
    --benchmark_format=json | benchmarks/attention_table.py --keep > $results/attention.json
}

passes() {  # cmake --preset release -DPARADYSE_BENCHMARKS=ON
  build/release/bin/benchmark.passes --benchmark_repetitions=3 --benchmark_enable_random_interleaving=true \
    --benchmark_format=json | benchmarks/passes_table.py --keep > $results/passes.json
}

costs() {
  local folder
  folder=$(mktemp -d)
  $paradyse profile -c configs/runs/switching.toml --seconds 170 --out "$folder/profile.jsonl"
  $paradyse fit --profile "$folder/profile.jsonl" --out "$folder/costs.json" --json > $results/fit_switching.json
  rm -r "$folder"
}

dtypes() {  # the same documents in each type: the mean of the last ten losses, the widest gap to float32's
  local folder dtype
  folder=$(mktemp -d)
  scripts/demo_corpus.sh
  for dtype in float32 bfloat16 float16; do
    $paradyse train -c configs/runs/demo.toml --set costs.file=none --set train.steps=200 \
      --set train.dtype=$dtype --set output.folder="$folder" --set output.name=$dtype --json > "$folder/$dtype.json"
  done
  python3 - "$folder" > $results/demo_dtypes.json << 'PYTHON'
import json, pathlib, sys

losses = {}
rows = {}
for dtype in ("float32", "bfloat16", "float16"):
    metrics = [json.loads(line) for line in (pathlib.Path(sys.argv[1]) / dtype / "metrics.jsonl").open()]
    losses[dtype] = [row["loss"] for row in metrics]
    gaps = [abs(loss / exact - 1) for loss, exact in zip(losses[dtype], losses["float32"], strict=True)]
    rows[dtype] = {
        "steps": len(metrics),
        "tokens": sum(row["tokens"] for row in metrics),
        "last_ten_mean": sum(losses[dtype][-10:]) / 10,
        "widest_gap": max(gaps),
        "least_loss_scale": min(row["loss_scale"] for row in metrics),
    }
json.dump(rows, sys.stdout, indent=2)
print()
PYTHON
  rm -r "$folder"
}

if (($# == 0)); then
  set -- comm steps published planner attention passes costs dtypes
fi
for group; do
  $group
done
