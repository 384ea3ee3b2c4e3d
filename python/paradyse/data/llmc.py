"""The .bin files of llm.c: 256 int32 (magic, version, tokens), then one stream of ids.

Source: karpathy/llm.c, dev/data/data_common.py (write_datafile) and fineweb.py.  Nothing but a delimiter before each
document tells documents apart: <|endoftext|> of GPT-2, <|begin_of_text|> of Llama 3.  GPT-2's is also its end of a
document, which a document that is trained by itself must end with, so it moves there, and back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .container import discard, named, new_file, put, settle
from .document import Document, Ids, Place
from .refusal import refuse
from .tally import Tally

HEADER = 256  # int32


@dataclass(frozen=True)
class Flavour:
    magic: int
    version: int
    dtype: str
    delimiter: int
    at_end: bool  # the delimiter also ends a document
    vocab_size: int


FLAVOURS = {"llmc-gpt2": Flavour(20240520, 1, "<u2", 50256, True, 50257),
            "llmc-llama3": Flavour(20240801, 7, "<u4", 128000, False, 128256)}


def flavour_of(path: Path) -> Flavour | None:
    with named(path):
        head = np.fromfile(path, "<i4", 2)
    return next((flavour for flavour in FLAVOURS.values() if head.tolist() == [flavour.magic, flavour.version]), None)


def is_llmc(path: Path) -> bool:
    return flavour_of(path) is not None


class LlmC:
    def __init__(self, name: str, tally: Tally) -> None:
        flavour = flavour_of(Path(name))
        assert flavour is not None, f"{name} is no file of llm.c"
        self.name, self.sources, self.flavour, self.tally = name, [name], flavour, tally
        self.vocab_size: int | None = flavour.vocab_size
        self.end_id: int | None = flavour.delimiter if flavour.at_end else None
        with named(Path(name)):
            count = int(np.fromfile(name, "<i4", 3)[2])
        size, whole = os.path.getsize(name), HEADER * 4 + count * np.dtype(flavour.dtype).itemsize
        if size != whole:
            refuse(name, f"has {size} bytes, but its {count} tokens take {whole}; it is cut or damaged: write it anew")
        with named(Path(name)):
            self._stream = np.memmap(name, flavour.dtype, "r", HEADER * 4) if count else np.zeros(0, flavour.dtype)

    def __iter__(self) -> Iterator[Document]:
        delimiter, at_end = self.flavour.delimiter, self.flavour.at_end
        begins = np.flatnonzero(self._stream == delimiter).tolist()
        place = Place(0, self.name)
        if not begins or begins[0] != 0:
            self.tally.note(f"begins without the delimiter {delimiter}, so within a document", place)
            begins.insert(0, 0)
        if at_end:
            self.tally.note(f"the delimiter {delimiter} before each document of llm.c ends it here", place, len(begins))
        for begin, end in zip(begins, [*begins[1:], len(self._stream)]):
            ids: Ids = np.asarray(self._stream[begin:end], np.int64)
            if at_end and len(ids) and ids[0] == delimiter:
                ids = np.roll(ids, -1)
            yield Document(ids, None, place)


def write_llmc(documents: Iterable[Document], kind: str, out: Path, tally: Tally) -> None:
    flavour, count = FLAVOURS[kind], 0
    file = new_file(out)
    try:
        put(file, out, bytes(HEADER * 4))
        for document in documents:
            ids = _delimited(document, flavour, tally)
            tally.tokens += len(ids) - len(document.ids)  # as the file has them
            tally.labels += len(ids) - len(document.ids)
            count += len(ids)
            if count >= 2**31:
                refuse(out, f"would have more than {2**31 - 1} tokens, which a file of llm.c cannot; convert fewer inputs "
                       "to a file")
            put(file, out, ids.astype(flavour.dtype).tobytes())
        with named(out):
            file.seek(0)  # writes what waits
        put(file, out, np.asarray([flavour.magic, flavour.version, count], "<i4").tobytes())
        settle(file, out)
    finally:
        discard(file)


def _delimited(document: Document, flavour: Flavour, tally: Tally) -> Ids:
    ids, delimiter = document.ids, flavour.delimiter
    if ids.max() >= flavour.vocab_size:
        refuse(document.place, f"has the id {ids.max()}; this format is for a vocabulary of {flavour.vocab_size} ids")
    begins, ends = ids[0] == delimiter, flavour.at_end and ids[-1] == delimiter and len(ids) > 1
    body = ids[1 if begins else 0:len(ids) - 1 if ends else len(ids)]
    if (body == delimiter).any():
        refuse(document.place, f"has the delimiter {delimiter} within it, where llm.c begins another document; split it")
    if begins and ends:
        tally.left_out(f"one of two delimiters {delimiter} around a document", document.place, unit="token")
    if not begins and not ends:
        tally.note(f"the delimiter {delimiter} was added before each document", document.place)
    return np.concatenate((np.asarray([delimiter], np.int64), body))
