#!/usr/bin/env bash
# Refuses a plan side (src/plan, python, and lab/ but for its program) from which a torch header, the run
# side or the command line can be reached by includes, through whatever other header.  Asks the
# compiler, so macros and comments count as they do in the build; -MG lists headers that it cannot find
# instead of failing.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
while IFS= read -r -d '' source; do
  reached=$("${CXX:-g++}" -std=c++20 -Iinclude -I. -x c++ -M -MG "$source" | tr -d '\\' | tr -s ' ' '\n')
  refused=$(grep -E '(^|/)(torch|ATen|c10|caffe2)/|^(\./)?src/(run|cli)/' <<<"$reached" | head -3 || true)
  [[ -z $refused ]] && continue
  status=1
  echo "$source reaches ${refused//$'\n'/, }"
  # Which of our files ask for it.
  grep -E '^(\./)?(src|include|lab)/' <<<"$reached" |
    xargs grep -HnE '#\s*include\s*["<](torch|ATen|c10|caffe2|src/run|src/cli)/' | sed 's/^/  /' || true
done < <(find src/plan python lab/flexsp lab/grouping lab/replay \( -name '*.cc' -o -name '*.h' \) -print0 | sort -z)

((status == 0)) || echo "check_plan_side: the plan side must do without torch and the run side"
exit $status
