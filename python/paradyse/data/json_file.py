"""JSON files, which may be a stranger's: an object, or a refusal that says where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .refusal import refuse

MOST = 1 << 30  # bytes, as the program reads of such a file


def json_file(path: Path, remedy: str, parse_float: Callable[[str], float] = float) -> dict[str, Any]:
    """The object that a file holds; `remedy` says what to do about another."""
    try:
        if not path.is_file():
            refuse(path, f"is no file that can be read; {remedy}")
        if path.stat().st_size > MOST:
            refuse(path, f"has {path.stat().st_size} bytes, and such a file at most {MOST}; {remedy}")
        found = json.loads(path.read_text("utf-8"), parse_float=parse_float)
    except (OSError, ValueError) as error:
        refuse(path, f"cannot be read ({error}); {remedy}")
    except RecursionError:
        refuse(path, f"is nested too deeply; {remedy}")
    if not isinstance(found, dict):
        refuse(path, f"is not an object of JSON; {remedy}")
    return found
