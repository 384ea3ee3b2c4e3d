"""Makes documents of the records of a unit: the tokenizer's ids, the loss's mask, within the limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .chat import ChatReader
from .document import Document, Place, document_of, one_bos
from .files import FASTA, FASTQ, TEXT, DataFile
from .limits import limited
from .meaning import Chat, Keys, Prompt, meaning_of
from .records import Reader, Unit
from .refusal import refuse
from .sequences import SequenceReader
from .tally import Tally
from .tokenizer import Tokenizer

BATCH_TEXTS, BATCH_LETTERS = 1000, 1 << 20  # handed to the tokenizer at once


@dataclass(frozen=True)
class Options:
    """What decides on the result.  docs/reference/data.md says what each means."""

    tokenizer: str
    inputs: tuple[str, ...]
    text_key: str | None = None
    messages_key: str | None = None
    loss: str = "assistant"
    chat_template: str | None = None  # its source
    template_args: dict[str, Any] = field(default_factory=dict)
    end_id: str = "auto"
    letters: int = 0  # of a token of FASTA and FASTQ: 1 for letters, K for k-mers, 0: they are refused
    stride: int = 0  # 0: as `letters`
    upper: bool = False
    max_tokens: int = 0
    too_long: str = "cut"
    invalid: str = "refuse"
    shard_bytes: int = 64 << 20

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    @property
    def keys(self) -> Keys:
        return Keys(self.text_key, self.messages_key)


class Maker:
    """One for a process.  `tally` counts since it was last replaced."""

    def __init__(self, options: Options, files: list[DataFile], tokenizer: Tokenizer) -> None:
        self.options, self.files, self.tokenizer, self.tally = options, files, tokenizer, Tally()
        self.end_id = tokenizer.end_id(options.end_id)
        self.chats = ChatReader(tokenizer, options.loss, self.end_id, options.template_args)
        self.sequences = SequenceReader(tokenizer, options.letters, options.stride or options.letters, options.upper,
                                        self.end_id)
        self.reader = Reader(files, options.invalid == "replace", options.keys.wanted(), lambda: self.tally)

    def documents(self, unit: Unit, progress: Callable[[int, int], None]) -> Iterator[Document]:
        """Of a unit, in order; progress(bytes, tokens) is told what was read and made."""
        kind, read = self.files[unit.source].kind, 0
        waiting: list[tuple[Place, str | Chat | Prompt]] = []
        letters = told = 0
        for record in self.reader.records(unit):
            read = min(read + record.bytes, unit.size)
            if kind in (FASTA, FASTQ):
                if not self.options.letters:
                    refuse(record.place, "is a biological sequence; say what its tokens are: --letters, or --kmers K")
                made = self.sequences.document(record.value, record.place, self.tally)
                yield from self._kept(made)
            else:
                found = record.value if kind == TEXT else meaning_of(record.value, self.options.keys, record.place,
                                                                     self.tally)
                waiting.append((record.place, found))
                letters += len(found) if isinstance(found, str) else 0
                if len(waiting) >= BATCH_TEXTS or letters >= BATCH_LETTERS:
                    yield from self._made(waiting)
                    waiting, letters = [], 0
            if read - told >= BATCH_LETTERS:
                progress(read - told, self.tally.tokens)
                told = read
        yield from self._made(waiting)
        progress(unit.size - told, self.tally.tokens)

    def _made(self, waiting: list[tuple[Place, str | Chat | Prompt]]) -> Iterator[Document]:
        texts = iter(self.tokenizer.texts([found for _, found in waiting if isinstance(found, str)]))
        for place, found in waiting:
            if isinstance(found, str):
                yield from self._kept(self._text(next(texts), found, place))
            elif isinstance(found, Prompt):
                yield from self._kept(self.chats.prompt(found, place, self.tally))
            else:
                yield from self._kept(self.chats.document(found, place, self.tally))

    def _text(self, ids: list[int], text: str, place: Place) -> Document | None:
        tokenizer = self.tokenizer
        own = ids[len(tokenizer.before):len(ids) - len(tokenizer.after)]
        if not own:
            self.tally.left_out("empty texts", place, unit="text")
            return None
        if tokenizer.special_ids.intersection(own):
            self.tally.note("texts with the text of special tokens, which became those tokens", place, unit="text")
        if self.end_id is not None and ids[-1] != self.end_id:
            ids.append(self.end_id)
        return document_of(ids, None, place)

    def _kept(self, document: Document | None) -> Iterator[Document]:
        if document is None:
            return
        once = one_bos(document, self.tokenizer.bos_id)
        if len(once.ids) < len(document.ids):
            self.tally.note("a BOS token before that of the document itself, which is left out", document.place)
        unk = self.tokenizer.unk_id
        if unk is not None and self.files[document.place.source].kind not in (FASTA, FASTQ):
            count = int(np.count_nonzero(once.ids == unk))
            if count:
                self.tally.note("text that the tokenizer does not know became "
                                + self.tokenizer.pieces([unk])[0], document.place, count, "token")
        yield from limited(once, self.options.max_tokens, self.options.too_long, self.tally)
