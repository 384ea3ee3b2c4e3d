"""SHA-256 of the state of a run's checkpoint (src/run/train/checkpoint_state.cc)."""

import hashlib
import json
from typing import Any


class Number(float):
    """A number of JSON as it is written: writers differ in the digits that they choose."""

    text: str

    def __new__(cls, text: str) -> "Number":
        found = super().__new__(cls, text)
        found.text = text
        return found


def compact(value: Any) -> str:
    """JSON without spaces, its keys in order, as the program takes SHA-256 of it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{compact(key)}:{compact(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact, value)) + "]"
    return value.text if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)


def sha256_of(value: Any) -> str:
    return hashlib.sha256(compact(value).encode("utf-8", "surrogatepass")).hexdigest()
