#!/usr/bin/env bash
# The first contact with a GPU: first.sh OUT [--second] [--dry]; see first.py beside this.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/first.py" "$@"
