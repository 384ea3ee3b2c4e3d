"""Items of a dataset: the ids of a document, and the label of each one's next.

What an item says of its tokens is read where it has one meaning, and refused by name where a plan would drop it.
"""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np

from ..data.keys import MASKS, lost_meaning

IGNORED = -100  # a label that counts nothing
# Where each token of a document by itself has the value that a plan gives it, and what it means else.
_SAID = {"attention_mask": ("ones", "padding, which a document has none of: cut it off"),
         "position_ids": ("0, 1, 2 and so on", "positions of several documents, or others: give a document an item"),
         "seq_idx": ("one number", "several documents in an item: give each an item of its own")}


def ids_and_labels(item: Any, document: int, length: int,
                   vocabulary: int | None = None) -> tuple[list[int], list[int]]:
    """Of an item of a dataset: its ids, and the label of each one's next."""
    name = f"document {document}"
    said = {"input_ids": item} if not isinstance(item, Mapping) else item
    if said.get("input_ids") is None:
        raise ValueError(f"{name} has no input_ids, but {', '.join(map(str, said)) or 'nothing'}: an item is a "
                         "list of ids, or has input_ids")
    if "labels" in said and said["labels"] is None:
        raise ValueError(f"{name} has labels that are None: give as many as ids, or leave the key out, and all "
                         "tokens count")
    ids = whole(said["input_ids"], f"{name} has input_ids")
    labels = list(ids) if "labels" not in said else whole(said["labels"], f"{name} has labels")
    if len(ids) != length or len(labels) != length:
        raise ValueError(f"{name} has {len(ids)} ids and {len(labels)} labels, but its length "
                         f"was given as {length}: lengths must be those of the dataset")
    most = float("inf") if vocabulary is None else vocabulary
    for what, values in (("input_ids", ids), ("labels", labels)):
        for value in values:
            if not 0 <= value < most and (what == "input_ids" or value != IGNORED):
                of = "" if vocabulary is None else f", of a vocabulary of {vocabulary}"
                raise ValueError(f"{name} has {value} in {what}{of}" +
                                 ("" if what == "input_ids" else f": a label that does not count is {IGNORED}"))
    for key, value in said.items():
        if value is not None and key not in ("input_ids", "labels"):
            labels = _heeded(name, str(key), value, labels)
    return ids, [*labels[1:], IGNORED]


def expect_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} {value!r}: accepted are whole numbers from {least} on")


def finite(value: Any) -> bool:
    """A number, and no infinity."""
    return isinstance(value, Real) and not isinstance(value, bool) and -math.inf < float(value) < math.inf


def length_of(item: Any) -> int:
    """Tokens of an item of a dataset."""
    ids = item.get("input_ids") if isinstance(item, Mapping) else item
    return len(whole([] if ids is None else ids, "an item has input_ids"))


def whole(values: Any, where: str) -> list[int]:
    """A row of whole numbers as a list."""
    values = values.detach().cpu() if hasattr(values, "detach") else values
    try:
        row = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of unequal lengths
        raise ValueError(f"{where} that are no row of whole numbers: {error}") from error
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        kind = f"{row.ndim} dimensions" if row.ndim != 1 and row.dtype.kind in "iu" else f"{values!r:.60}"
        raise ValueError(f"{where} that are no row of whole numbers: {kind}")
    found: list[int] = row.tolist()
    return found


def _heeded(name: str, key: str, value: Any, labels: list[int]) -> list[int]:
    """The labels that count by what an item says under another key."""
    count = len(labels)

    def refuse(why: str) -> NoReturn:
        raise ValueError(f"{name} has {key} ({value!r:.60}), {why}")

    row = numbers(value)
    if key in MASKS:
        if row is None or len(row) != count or not set(row) <= {0, 1}:
            refuse(f"which is no mask of its {count} tokens: give 0 or 1 for each")
        return [label if on else IGNORED for label, on in zip(labels, row)]
    if key in _SAID:
        plain, else_ = _SAID[key]
        wanted = {"attention_mask": [1] * count, "position_ids": list(range(count)),
                  "seq_idx": (row or [0])[:1] * count}[key]
        if row != wanted:
            refuse(f"which is not {plain} for its {count} tokens. Else it means {else_}")
    else:
        if row is None and hasattr(value, "tolist"):
            row = value.tolist()  # of several dimensions, or one number
        if why := lost_meaning(key, value if row is None else row, count):
            refuse(f"which is not read: {why}")
    return labels


def numbers(value: Any) -> list[Any] | None:
    """A row of numbers, or booleans, as a list."""
    try:
        row = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (ValueError, TypeError, RuntimeError):
        return None
    return row.tolist() if row.ndim == 1 and row.dtype.kind in "biuf" else None
