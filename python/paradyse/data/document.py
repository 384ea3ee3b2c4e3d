"""A document: token ids, which of their labels count, and where it comes from.

The mask is unshifted, as labels of Hugging Face are: mask[i] says whether the label of token i counts.  Nothing
predicts token 0, so its label is never one of `labels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .refusal import refuse

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Place:
    """Where a document comes from: a line or row (from 1) of a file, or (0) the whole file."""

    source: int  # index into the list of sources
    path: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True)
class Document:
    ids: Ids
    mask: Mask | None  # None: every label counts
    place: Place

    @property
    def labels(self) -> int:
        """How many labels count."""
        return max(0, len(self.ids) - 1) if self.mask is None else int(np.count_nonzero(self.mask[1:]))

    def part(self, begin: int, end: int) -> Document:
        return Document(self.ids[begin:end], None if self.mask is None else self.mask[begin:end], self.place)


def document_of(ids: Sequence[int], mask: Sequence[int] | None, place: Place) -> Document:
    return Document(np.asarray(ids, np.int64), None if mask is None else np.asarray(mask, np.uint8), place)


def dtype_for(vocab_size: int) -> str:
    """Of the ids of a vocabulary, as Megatron chooses it (DType.optimal_dtype)."""
    return "uint16" if vocab_size < 65500 else "int32"


def expect_ids(document: Document, vocab_size: int,
               remedy: str = "take the tokenizer that made the ids, or give its vocabulary's size") -> None:
    if len(document.ids) and not 0 <= int(document.ids.min()) <= int(document.ids.max()) < vocab_size:
        wrong = document.ids[(document.ids < 0) | (document.ids >= vocab_size)][0]
        refuse(document.place, f"has the id {wrong}, which is not one of a vocabulary of {vocab_size} ids (0 to "
               f"{vocab_size - 1}); {remedy}")


def one_bos(document: Document, bos_id: int | None) -> Document:
    """Without the first of two BOS tokens, which text that has one of its own gets."""
    ids, drop = document.ids, 0
    while bos_id is not None and drop + 1 < len(ids) and ids[drop] == bos_id == ids[drop + 1]:
        drop += 1
    return document.part(drop, len(ids)) if drop else document
