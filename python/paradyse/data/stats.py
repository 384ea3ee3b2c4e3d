"""paradyse-data stats: how long documents are, and what a limit would cut or leave without labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .corpus import Corpus
from .document import Ids
from .folder import Shards
from .refusal import refuse
from .tally import number

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Bin:
    """Documents of begin <= tokens < end."""

    begin: int
    end: int
    documents: int
    tokens: int


@dataclass(frozen=True)
class Limited:
    """What --max-tokens and --too-long cut would do."""

    limit: int
    documents: int  # longer than it
    tokens: int  # that would be lost
    labels: int
    unlabelled: int  # documents that have labels, and would have none


@dataclass(frozen=True)
class Stats:
    name: str
    lengths: Ids
    labels: Ids  # of each document
    limited: Limited | None

    @property
    def bins(self) -> list[Bin]:
        """Bounds are powers of two, from that of the shortest document to that of the longest."""
        found = []
        first, last = int(self.lengths.min()).bit_length(), int(self.lengths.max()).bit_length()
        for bits in range(first, last + 1):
            begin, end = (1 << bits) >> 1, 1 << bits
            inside = self.lengths[(self.lengths >= begin) & (self.lengths < end)]
            found.append(Bin(begin, end, len(inside), int(inside.sum())))
        return found

    @property
    def percentiles(self) -> dict[str, int]:
        """The length that so many of a hundred documents do not exceed (nearest rank)."""
        ordered = np.sort(self.lengths)
        return {**{f"p{p}": int(ordered[math.ceil(p / 100 * len(ordered)) - 1]) for p in PERCENTILES},
                "max": int(ordered[-1])}

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "documents": len(self.lengths), "tokens": int(self.lengths.sum()),
                "labels": int(self.labels.sum()), "without_labels": int((self.labels == 0).sum()),
                **self.percentiles, "histogram": [vars(one) for one in self.bins],
                "limit": None if self.limited is None else vars(self.limited)}

    def text(self) -> str:
        tokens = int(self.lengths.sum())
        lines = [f"{self.name}: {number(len(self.lengths), 'document')}, {number(tokens, 'token')}, "
                 f"{number(int(self.labels.sum()), 'label')}",
                 "  " + ", ".join(f"{name} {value}" for name, value in self.percentiles.items()) + " tokens"]
        without = int((self.labels == 0).sum())
        if without:
            lines.append(f"  {number(without, 'document')} without a label")
        bins = self.bins
        most = max(one.documents for one in bins)
        lines.append(f"{'tokens':>21} {'documents':>10}  {'':30} {'% of tokens':>11}")
        for one in bins:
            bar = "#" * math.ceil(30 * one.documents / most)
            lines.append(f"{one.begin:>10}-{one.end - 1:<10} {one.documents:>10}  {bar:30} "
                         f"{100 * one.tokens / max(1, tokens):>11.1f}")
        if self.limited is not None:
            cut = self.limited
            lines.append(f"limit {cut.limit}: {number(cut.documents, 'document')} longer; cutting them loses "
                         f"{number(cut.tokens, 'token')} ({100 * cut.tokens / max(1, tokens):.1f} %) and "
                         f"{number(cut.labels, 'label')}, and leaves {number(cut.unlabelled, 'document')} without a label")
        return "\n".join(lines)


def stats_of(corpora: list[Corpus], limit: int | None) -> Stats:
    lengths, labels, within = [], [], []
    for corpus in corpora:
        if isinstance(corpus, Shards) and all(shard.masks is None for shard in corpus.shards):
            lengths.append(corpus.lengths)  # the index says it all
            labels.append(np.maximum(corpus.lengths - 1, 0))
            within.append(np.maximum(np.minimum(corpus.lengths, limit or 1) - 1, 0))
        else:
            found = [(len(one.ids), one.labels, one.part(0, limit or 0).labels) for one in corpus]
            for column, to in zip(np.asarray(found, np.int64).reshape(-1, 3).T, (lengths, labels, within)):
                to.append(column)
    length, label, left = (np.concatenate(parts) for parts in (lengths, labels, within))
    names = ", ".join(corpus.name for corpus in corpora)
    if not len(length):
        refuse(names, "has no document")
    limited = None
    if limit is not None:
        long = length > limit
        limited = Limited(limit, int(long.sum()), int((length[long] - limit).sum()), int((label - left)[long].sum()),
                          int((long & (label > 0) & (left == 0)).sum()))
    return Stats(names, length, label, limited)
