"""Token ids of any format that is read: a prepared folder, JSONL, a pair of Megatron's, .bin files of llm.c."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .container import beside
from .document import Document, Place, document_of
from .folder import Prepared, Shard, Shards, is_prepared
from .keys import MASKS, lost_meaning, untrained
from .llmc import LlmC, is_llmc
from .records import json_object
from .refusal import refuse
from .streams import UTF8_BOM, Decoder, inner_suffix, opened
from .tally import Tally

READ = ("a prepared folder, a .jsonl file with tokens, the prefix of Megatron's .bin and .idx, or a .bin file of llm.c; "
        "text is prepared first: paradyse-data prepare")
IGNORED = -100


class Corpus(Protocol):
    name: str
    sources: list[str]
    vocab_size: int | None
    end_id: int | None

    def __iter__(self) -> Iterator[Document]: ...


def opened_corpus(given: str, tally: Tally) -> Corpus:
    """What a user named, by what it is."""
    path = Path(given)
    if path.is_dir():
        return Prepared(path)
    if inner_suffix(path) in (".jsonl", ".ndjson") and path.is_file():
        return JsonLines(given, tally)
    if path.is_file() and is_llmc(path):
        return LlmC(given, tally)
    prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    if beside(prefix, ".idx").is_file():
        if is_prepared(prefix.parent):
            refuse(given, f"is a shard of the prepared folder {prefix.parent}; give the folder")
        return Shards(given, [Shard(prefix)], [], None, None)
    refuse(given, f"is not there; read are {READ}" if not path.exists() else f"is of no format that is read: {READ}")


class JsonLines:
    """Reads {"tokens": [...], "labels": [...]} a line, by the keys of docs/reference/data.md."""

    def __init__(self, path: str, tally: Tally) -> None:
        self.name, self.sources, self.tally = path, [path], tally
        self.vocab_size: int | None = None
        self.end_id: int | None = None

    def __iter__(self) -> Iterator[Document]:
        decoder = Decoder(False)
        with opened(Path(self.name)) as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    place = Place(0, self.name, number)
                    yield self._document(json_object(decoder.text(line.removeprefix(UTF8_BOM), place), place), place)

    def _document(self, row: dict[str, Any], place: Place) -> Document:
        row = {key: value for key, value in row.items() if value is not None}
        keys = [key for key in ("tokens", "input_ids") if key in row]
        if len(keys) > 1:
            refuse(place, "has tokens and input_ids, and one of them is the document; remove the other")
        if not keys:
            refuse(place, f"has no tokens or input_ids; it has {', '.join(list(row)[:8]) or 'nothing'} (text and chats are "
                   "prepared: paradyse-data prepare)")
        ids = whole_numbers(row[keys[0]], keys[0], place)
        mask = [1] * len(ids)
        for other in ("labels", *MASKS, "attention_mask"):
            if other not in row:
                continue
            values = whole_numbers(row[other], other, place)
            if len(values) != len(ids):
                refuse(place, f"has {len(ids)} tokens and {len(values)} values of {other}; every token takes one")
            if other == "labels":
                wrong = [i for i, value in enumerate(values) if value not in (IGNORED, ids[i])]
                if wrong:
                    refuse(place, f"has the label {values[wrong[0]]} for the token {ids[wrong[0]]} at {wrong[0]}; labels "
                           f"are unshifted here: the token itself, or {IGNORED}. Shifted labels and those of masked "
                           "language models cannot be kept")
                mask = [int(m and value != IGNORED) for m, value in zip(mask, values)]
            elif set(values) - {0, 1}:
                refuse(place, f"has {other} with other values than 0 and 1; write those")
            elif other == "attention_mask" and 0 in values:
                refuse(place, "has attention_mask with zeros, which is padding; write the documents without padding")
            else:
                mask = [m & value for m, value in zip(mask, values)]
        for other, value in row.items():
            if other not in ("tokens", "input_ids", "labels", "attention_mask", "text", *MASKS):
                why = lost_meaning(other, value, len(ids)) or untrained(other, value)
                plain = other in ("token_type_ids", "segment_ids") and value == [0] * len(ids) or (
                    "seq" in other and value in ([len(ids)], [0, len(ids)]))
                if not why and isinstance(value, list) and len(value) == len(ids) and not plain:
                    why = "it has one value a token; remove it"
                if why:
                    refuse(place, f"has {'the list ' * isinstance(value, list)}{other} = {json.dumps(value)[:40]}, which "
                           f"would be lost: {why}")
                self.tally.unused(other, place)
        return document_of(ids, mask if 0 in mask else None, place)


def whole_numbers(value: Any, key: str, place: Place) -> list[int]:
    if not isinstance(value, list) or any(type(one) is not int for one in value):
        refuse(place, f"has {key} that is {json.dumps(value)[:40]}; it takes a list of whole numbers")
    if any(not -2**31 <= one < 2**31 for one in value):
        refuse(place, f"has {key} with a number beyond 32 bits; ids are from 0 to {2**31 - 1}")
    found: list[int] = value
    return found


def largest_id(corpora: Iterable[Corpus]) -> int:
    return max((int(document.ids.max()) for corpus in corpora for document in corpus if len(document.ids)), default=0)


def keeps_labels(document: Document) -> bool:
    """Whether every label of a document counts, so that a format without masks holds it."""
    return document.mask is None or bool(np.all(document.mask[1:]))
