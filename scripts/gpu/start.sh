#!/usr/bin/env bash
# Runs a program of this folder with the libraries of the installed PyTorch.
#
#   start.sh ARGUMENTS...      paradyse with these
#   start.sh exec COMMAND...   any command, with this folder's programs first in PATH
#
# PARADYSE_SITE_PACKAGES   the folder with torch/ and nvidia/; by default the one from which python3
#                          would import torch
# PARADYSE_PROGRAMS        a folder with other builds of the programs, which come first
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Finding a package takes no import, which would take seconds.
site=${PARADYSE_SITE_PACKAGES:-$(python3 - <<'END' || true
import importlib.util
import pathlib

found = importlib.util.find_spec("torch")
print(pathlib.Path(found.origin).parent.parent if found and found.origin else "")
END
)}
if [[ ! -e $site/torch/lib/libtorch_cuda.so ]]; then
  echo "start.sh: no torch/lib/libtorch_cuda.so in '$site': install PyTorch 2.11 for CUDA 13 for this" \
    "python3, or set PARADYSE_SITE_PACKAGES to the folder with torch/ and nvidia/" >&2
  exit 127
fi

libraries=$here/lib:$site/torch/lib
for folder in "$site"/nvidia/*/lib; do
  libraries+=:$folder
done
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=${PARADYSE_PROGRAMS:+$PARADYSE_PROGRAMS:}$here:$PATH
if [[ ${1:-} == exec ]]; then
  exec "${@:2}"
fi
exec paradyse "$@"
