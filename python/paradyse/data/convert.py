"""paradyse-data convert: token ids from one format into another.  What the other cannot hold is refused or told."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from .container import beside, discard, new_file, put, settle
from .corpus import IGNORED, Corpus, keeps_labels, largest_id, opened_corpus
from .document import Document, expect_ids
from .folder import ENDINGS, Prepared, ShardWriter, write_head
from .limits import labelled
from .llmc import FLAVOURS, write_llmc
from .refusal import refuse
from .tally import Tally, number

TARGETS = ("prepared", "jsonl", "megatron", *FLAVOURS)
SHARD_TOKENS = 1 << 26  # of a prepared folder


def convert(inputs: list[str], to: str, out: Path, vocab_size: int | None = None, drop_labels: bool = False,
            shard_tokens: int = SHARD_TOKENS) -> list[str]:
    """Writes `out`: a folder, a file, or the prefix of a pair.  Returns lines that say what is in it."""
    tally = Tally()
    written = [beside(out, ending) for ending in (".bin", ".idx", *ENDINGS)] if to == "megatron" else [out]
    for path in written:
        if os.path.lexists(path):
            refuse(path, "is there already; give another --out, or remove it")
    corpora = [opened_corpus(given, tally) for given in inputs]
    vocabulary = vocab_size or vocabulary_of(inputs, corpora, tally)
    out.parent.mkdir(parents=True, exist_ok=True)
    documents = checked(corpora, to, vocabulary, drop_labels, tally)
    if to == "prepared":
        write_folder(documents, corpora, vocabulary, out, shard_tokens)
    elif to == "jsonl":
        write_jsonl(documents, out)
    elif to == "megatron":
        write_pair(documents, vocabulary, out, tally)
    else:
        write_llmc(documents, to, out, tally)
    if not tally.documents:
        for path in written:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        refuse(", ".join(inputs), "; ".join(["has no document to convert", *tally.lines()]))
    return [f"{out}: {number(tally.documents, 'document')}, {number(tally.tokens, 'token')}, "
            f"{number(tally.labels, 'label')}", *(f"  {line}" for line in tally.lines())]


def vocabulary_of(inputs: list[str], corpora: list[Corpus], tally: Tally) -> int:
    """The largest of the inputs; of those that do not say it, by the ids that they have."""
    known = [corpus.vocab_size for corpus in corpora if corpus.vocab_size is not None]
    unknown = [(given, corpus.name) for given, corpus in zip(inputs, corpora) if corpus.vocab_size is None]
    if not unknown:
        return max(known)
    largest = max([*known, largest_id(opened_corpus(given, Tally()) for given, _ in unknown) + 1])
    tally.note(f"the vocabulary is taken to have {largest} ids, by the largest id (--vocab-size says another)",
               unknown[0][1], len(unknown), "input")
    return largest


def checked(corpora: list[Corpus], to: str, vocab_size: int, drop_labels: bool, tally: Tally) -> Iterator[Document]:
    """Documents of all corpora, whose sources are numbered over all of them."""
    begin = 0
    for corpus in corpora:
        for document in corpus:
            expect_ids(document, vocab_size)
            if to in FLAVOURS and not keeps_labels(document):
                if not drop_labels:
                    refuse(document.place, "has labels that do not count, which this format cannot say: all tokens would "
                           "count; give --drop-labels to accept that, or another format")
                tally.note("documents all of whose labels count now (--drop-labels)", document.place)
                document = replace(document, mask=None)
            if document.place.source or begin:
                document = replace(document, place=replace(document.place, source=document.place.source + begin))
            yield from labelled(document, "without a label", tally)
        begin += len(sources_of(corpus))


def sources_of(corpus: Corpus) -> list[str]:
    return corpus.sources or [corpus.name]


def write_folder(documents: Iterator[Document], corpora: list[Corpus], vocab_size: int, out: Path,
                 shard_tokens: int) -> None:
    out.mkdir()
    shards, writer = [], ShardWriter(out / "00000", vocab_size)
    try:
        for document in documents:
            writer.add(document)
            if writer.tokens >= shard_tokens:
                shards.append(writer.finish())
                writer = ShardWriter(out / f"{len(shards):05}", vocab_size)
        shards.append(writer.finish())
    except BaseException:
        writer.discard()
        shutil.rmtree(out)
        raise
    ends = {corpus.end_id for corpus in corpora}
    tokenizers = [corpus.head["tokenizer"] if isinstance(corpus, Prepared) else None for corpus in corpora]
    same = all(tokenizer == tokenizers[0] for tokenizer in tokenizers)
    if not same and all(tokenizers):
        shutil.rmtree(out)
        refuse(", ".join(corpus.name for corpus in corpora), "were prepared with different tokenizers, so that the same "
               "ids mean different tokens; convert them to folders of their own")
    write_head(out, vocab_size=vocab_size, end_id=ends.pop() if len(ends) == 1 else None,
               tokenizer=tokenizers[0] if same else None,
               sources=[source for corpus in corpora for source in sources_of(corpus)],
               shards=[shard for shard in shards if shard is not None], converted_from=[c.name for c in corpora])


def write_jsonl(documents: Iterator[Document], out: Path) -> None:
    file = new_file(out)
    try:
        for document in documents:
            row = {"tokens": document.ids.tolist()}
            if document.mask is not None and not document.mask.all():
                row["labels"] = np.where(document.mask, document.ids, IGNORED).tolist()
            put(file, out, json.dumps(row).encode() + b"\n")
        settle(file, out)
    finally:
        discard(file)


def write_pair(documents: Iterator[Document], vocab_size: int, out: Path, tally: Tally) -> None:
    writer = ShardWriter(out, vocab_size, sources=False)
    try:
        for document in documents:
            writer.add(document)
        writer.finish()
    except BaseException:
        writer.discard()
        raise
    if beside(out, ".labels.idx").exists():
        tally.note("Megatron does not read the label masks, which are in", beside(out, ".labels.bin"), tally.documents)
