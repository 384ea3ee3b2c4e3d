"""paradyse-data inspect: a document's ids, their pieces, and which of its labels count, in 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

from .corpus import Corpus
from .document import Document
from .folder import Shards
from .refusal import refuse
from .tally import number

COLUMNS = 80
Pieces = Callable[[Sequence[int]], list[str]]


def document_at(corpus: Corpus, index: int) -> Document:
    if isinstance(corpus, Shards):
        if 0 <= index < len(corpus):
            return corpus.document(index)
        refuse(corpus.name, f"has {number(len(corpus), 'document')}, numbered from 0; there is none of number {index}")
    found = next(islice(corpus, index, None), None) if index >= 0 else None
    if found is None:
        refuse(corpus.name, f"has no document of number {index}; they are numbered from 0")
    return found


def shown(document: Document, index: int, pieces: Pieces | None, begin: int, count: int) -> list[str]:
    """Lines; an asterisk is at each token whose label counts."""
    length = len(document.ids)
    lines = [line[:COLUMNS] for line in (
        f"document {index}: {number(length, 'token')}, {number(document.labels, 'label')} (*)", f"from {document.place}")]
    end = min(length, begin + count)
    if begin == length == 0:
        return lines
    if begin >= length:
        refuse(document.place, f"has {number(length, 'token')}, numbered from 0; --from {begin} is beyond them")
    part = document.ids[begin:end].tolist()
    width, wide = len(str(length)), len(str(max(part)))
    for place, (one, piece) in enumerate(zip(part, pieces(part) if pieces else [""] * len(part)), begin):
        counts = place > 0 and (document.mask is None or document.mask[place])
        lines.append(f"{place:>{width}} {one:>{wide}} {'*' if counts else ' '} {visible(piece)}"[:COLUMNS].rstrip())
    if end < length:
        lines.append(f"{number(length - end, 'token')} more: --from {end}")
    return lines


def visible(piece: str) -> str:
    """On one line, with its spaces."""
    return repr(piece)[1:-1].replace(" ", "\u00b7")
