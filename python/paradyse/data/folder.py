"""A prepared folder: data.json, and for each shard a pair of ids, maybe one of label masks, and the sources.

docs/reference/data.md has the format.  data.json is written last: a folder without it is not finished.
"""

from __future__ import annotations

import array
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .container import PARTIAL, Pair, PairWriter, beside, named, replace_file
from .document import Document, Ids, Place, dtype_for, expect_ids
from .json_file import json_file
from .refusal import refuse

HEAD_FILE = "data.json"
FORMAT = "paradyse-data"
ENDINGS = (".bin", ".idx", ".labels.bin", ".labels.idx", ".sources.bin")


class ShardWriter:
    """Writes documents as FOLDER/NAME.*; what it writes has names that end in .partial until finish()."""

    def __init__(self, prefix: Path, vocab_size: int, sources: bool = True) -> None:
        self.prefix, self.vocab_size = prefix, vocab_size
        self.documents = self.tokens = self.labels = 0
        self._ids = PairWriter(prefix, dtype_for(vocab_size))
        self._masks: PairWriter | None = None
        self._lengths = array.array("i")
        self._sources = array.array("Q") if sources else None

    def add(self, document: Document) -> None:
        expect_ids(document, self.vocab_size)
        if document.mask is not None and self._masks is None and not document.mask[1:].all():
            self._masks = PairWriter(beside(self.prefix, ".labels"), "uint8")
            for length in self._lengths:  # those before it count whole
                self._masks.add(np.ones(length, np.uint8))
        self._ids.add(document.ids)
        if self._masks is not None:
            self._masks.add(np.ones(len(document.ids), np.uint8) if document.mask is None else document.mask)
        self._lengths.append(len(document.ids))
        if self._sources is not None:
            self._sources.extend((document.place.source, document.place.line))
        self.documents += 1
        self.tokens += len(document.ids)
        self.labels += document.labels

    def finish(self) -> dict[str, Any] | None:
        """The shard's entry in data.json; None, and no file, if it has no document.  Its .idx comes last."""
        for ending in ENDINGS:  # of an attempt that had masks where this one has none
            beside(self.prefix, ending).unlink(missing_ok=True)
        if not self.documents:
            self.discard()
            return None
        if self._masks is not None:
            self._masks.finish()
        if self._sources is not None:
            replace_file(beside(self.prefix, ".sources.bin"), np.asarray(self._sources, "<u8").tobytes())
        digest = self._ids.finish()
        return {"name": self.prefix.name, "documents": self.documents, "tokens": self.tokens, "labels": self.labels,
                "sha256": digest}

    def discard(self) -> None:
        self._ids.discard()
        if self._masks is not None:
            self._masks.discard()


class Shard:
    """Reads PREFIX.*: a prefix of Megatron's, or a shard of ours."""

    def __init__(self, prefix: Path) -> None:
        self.prefix, self.ids = prefix, Pair(prefix)
        masks = beside(prefix, ".labels")
        self.masks = Pair(masks) if beside(masks, ".idx").exists() or beside(masks, ".bin").exists() else None
        if self.masks is not None and (self.masks.dtype != np.uint8
                                       or not np.array_equal(self.masks.lengths, self.ids.lengths)):
            refuse(beside(masks, ".idx"), f"does not have one byte for each token of {beside(prefix, '.idx').name}; the "
                   "two are not of one data set: write them anew")
        self.sources: npt.NDArray[np.uint64] | None = None
        sources = beside(prefix, ".sources.bin")
        if sources.exists():
            if sources.stat().st_size != 16 * len(self.ids):
                refuse(sources, f"has {sources.stat().st_size} bytes; {len(self.ids)} documents take "
                       f"{16 * len(self.ids)}: it is damaged; prepare the data anew")
            with named(sources):
                self.sources = np.memmap(sources, "<u8", "r").reshape(-1, 2) if len(self.ids) else np.zeros((0, 2), "<u8")

    def __len__(self) -> int:
        return len(self.ids)

    def document(self, index: int, sources: list[str]) -> Document:
        place = Place(0, f"{self.prefix}, document {index}")
        if self.sources is not None:
            source, line = map(int, self.sources[index])
            if source >= len(sources):
                refuse(beside(self.prefix, ".sources.bin"), f"names the source {source} of document {index}, but "
                       f"{HEAD_FILE} lists {len(sources)}; it is damaged: prepare the data anew")
            place = Place(source, sources[source], line)
        mask = None if self.masks is None else np.asarray(self.masks[index], np.uint8)
        if mask is not None and mask.max(initial=0) > 1:
            refuse(beside(self.prefix, ".labels.bin"), f"has the byte {mask.max()} in document {index}; a label counts "
                   "(1) or does not (0)")
        return Document(np.asarray(self.ids[index], np.int64), mask, place)


def is_prepared(folder: Path) -> bool:
    """Whether data.json names its format at its begin: others may have a file of that name."""
    path = folder / HEAD_FILE
    if not path.is_file():
        return False
    with named(path), open(path, "rb") as file:
        return f'"{FORMAT}"'.encode() in file.read(4096)


def read_head(folder: Path) -> dict[str, Any]:
    path = folder / HEAD_FILE
    if not path.exists():
        refuse(folder, f"has no {HEAD_FILE}, so it is not a prepared folder, or not finished; run the command that "
               "makes it to its end: paradyse-data prepare")
    head = json_file(path, "prepare the data anew")
    if head.get("format") != FORMAT:
        refuse(path, f'is not of paradyse-data (it has no "format": "{FORMAT}"); give a folder that paradyse-data made')
    if head.get("version") != 1:
        refuse(path, f"has version {head.get('version')}; this program reads version 1: prepare the data anew, or "
               "update paradyse")
    expect_head(path, head)
    return head


def expect_head(path: Path, head: dict[str, Any]) -> None:
    """Refuses what read_head()'s callers could not take, and names that lead out of the folder."""
    def is_count(value: object, least: int = 0) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 63

    def expect(key: str, fine: bool, what: str) -> None:
        if not fine:
            refuse(path, f"{key}: {what}; it is damaged: copy the whole folder again, or prepare the data anew")

    shards, sources = head.get("shards"), head.get("sources")
    expect("vocab_size", is_count(head.get("vocab_size"), 1), "is no whole number from 1 on")
    expect("end_id", head.get("end_id") is None or is_count(head["end_id"]), "is neither null nor an id")
    expect("sources", isinstance(sources, list) and all(isinstance(one, str) for one in sources),
           "is no list of names")
    expect("shards", isinstance(shards, list) and all(isinstance(one, dict) for one in shards),
           "is no list of objects")
    for i, shard in enumerate(shards or []):
        name = shard.get("name")
        expect(f"shards[{i}].name", isinstance(name, str) and bool(name) and not set(name) & set("/\0"),
               "is no name of a file in this folder")
        for key in ("documents", "tokens", "labels"):
            expect(f"shards[{i}].{key}", is_count(shard.get(key)), "is no whole number from 0 on")


def write_head(folder: Path, *, vocab_size: int, end_id: int | None, tokenizer: dict[str, str | None] | None,
               sources: list[str], shards: list[dict[str, Any]], **more: Any) -> None:
    """Ends the making of a folder."""
    head = {"format": FORMAT, "version": 1, "vocab_size": vocab_size, "end_id": end_id,
            **{key: sum(shard[key] for shard in shards) for key in ("documents", "tokens", "labels")},
            "tokenizer": tokenizer, "dtype": dtype_for(vocab_size), "sources": sources, "shards": shards, **more}
    replace_file(folder / HEAD_FILE, json.dumps(head, ensure_ascii=False, indent=1).encode() + b"\n")


class Shards:
    """Reads shards one after the other."""

    def __init__(self, name: str, shards: list[Shard], sources: list[str], vocab_size: int | None,
                 end_id: int | None) -> None:
        self.name, self.shards, self.sources, self.vocab_size, self.end_id = name, shards, sources, vocab_size, end_id
        self.lengths: Ids = np.concatenate([np.zeros(0, np.int64), *(shard.ids.lengths for shard in shards)])

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[Document]:
        for shard in self.shards:
            for index in range(len(shard)):
                yield shard.document(index, self.sources)

    def document(self, index: int) -> Document:
        for shard in self.shards:
            if index < len(shard):
                return shard.document(index, self.sources)
            index -= len(shard)
        raise IndexError(index)


class Prepared(Shards):
    """Reads a finished folder."""

    def __init__(self, folder: Path) -> None:
        self.head = read_head(folder)
        shards = [Shard(folder / entry["name"]) for entry in self.head["shards"]]
        for entry, shard in zip(self.head["shards"], shards):
            if (len(shard), int(shard.ids.lengths.sum())) != (entry["documents"], entry["tokens"]):
                refuse(shard.prefix, f"has {len(shard)} documents and {int(shard.ids.lengths.sum())} tokens, but "
                       f"{HEAD_FILE} says {entry['documents']} and {entry['tokens']}; prepare the data anew")
            if shard.masks is None and entry["labels"] != entry["tokens"] - entry["documents"]:
                refuse(shard.prefix, f"has no .labels.bin and .labels.idx, but {HEAD_FILE} says that {entry['labels']} "
                       f"labels of {entry['tokens']} tokens count; copy the whole folder, or prepare the data anew")
        super().__init__(str(folder), shards, self.head["sources"], self.head["vocab_size"], self.head.get("end_id"))


def remove_partial(folder: Path) -> None:
    """What an attempt that was killed left."""
    for path in folder.glob(f"*{PARTIAL}"):
        path.unlink()
