#!/usr/bin/env bash
# Refuses a plan side (src/plan, python, and lab/ but for its program) from which a torch header, the run
# side or the command line can be reached by includes, through whatever other header.  Asks the
# compiler, so macros and comments count as they do in the build; -MG lists headers that it cannot find
# instead of failing.  Headers of other projects are opened once, all of them by one file, not by each.
set -euo pipefail
cd "$(dirname "$0")/.."

refused='(^|/)(torch|ATen|c10|caffe2)/|^(\./)?src/(run|cli)/'
ours='^(\./)?(src|include|lab|python)/'
# Of each source a line: the source and what it reaches, with a space before each.
reached() {
  "${CXX:-g++}" -std=c++20 -Iinclude -I. -x c++ -M -MG "$@" |
    sed -e ':more' -e '/\\$/{N;s/\\\n//;b more' -e '}' -e 's/^[^:]*://' | tr -s ' '
}

status=0
mapfile -d '' -t sources < <(
  find src/plan python lab/flexsp lab/grouping lab/replay \( -name '*.cc' -o -name '*.h' \) -print0 | sort -z)
of_each=$(reached -nostdinc -nostdinc++ "${sources[@]}")
if (($(wc -l <<<"$of_each") != ${#sources[@]})); then
  echo "check_plan_side: the compiler does not answer for each of ${#sources[@]} files"
  exit 1
fi
words=$(tr ' ' '\n' <<<"$of_each" | sort -u)
others=$(grep -vE "$ours|$refused" <<<"$words" | sed '/^$/d; s/.*/#include <&>/')
through=$(reached - <<<"$others" | tr ' ' '\n' | grep -E "$refused" || true)
of_each+=$'\n'" headers_of_other_projects ${through//$'\n'/ }"
while IFS= read -r line; do
  read -r source rest <<<"$line"
  found=$(tr ' ' '\n' <<<"$rest" | grep -E "$refused" | head -3 || true)
  [[ -z $found ]] && continue
  status=1
  echo "$source reaches ${found//$'\n'/, }"
  # Which of our files ask for it.
  tr ' ' '\n' <<<"$line" | grep -E "$ours" |
    xargs -r grep -HnE '#\s*include\s*["<](torch|ATen|c10|caffe2|src/run|src/cli)/' | sed 's/^/  /' || true
done < <(grep -E '[ /](torch|ATen|c10|caffe2)/| (\./)?src/(run|cli)/' <<<"$of_each" || true)

((status == 0)) || echo "check_plan_side: the plan side must do without torch and the run side"
exit $status
