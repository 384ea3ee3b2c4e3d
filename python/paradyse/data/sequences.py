"""Sequences of FASTA and FASTQ as letters or k-mers, each a token of the tokenizer's vocabulary."""

from __future__ import annotations

from .document import Document, Place, document_of
from .refusal import refuse
from .tally import Tally
from .tokenizer import Tokenizer


class SequenceReader:
    """size: letters of a token; stride: letters from the begin of one to that of the next."""

    def __init__(self, tokenizer: Tokenizer, size: int, stride: int, upper: bool, end_id: int | None) -> None:
        self.tokenizer, self.size, self.stride, self.upper, self.end_id = tokenizer, size, stride, upper, end_id

    def document(self, sequence: str, place: Place, tally: Tally) -> Document | None:
        if self.upper:
            sequence = sequence.upper()
        words = [sequence[at:at + self.size] for at in range(0, len(sequence) - self.size + 1, self.stride)]
        if not words:
            tally.left_out(f"sequences shorter than {self.size} letters" if sequence else "sequences without a letter",
                           place, unit="sequence")
            return None
        covered = (len(words) - 1) * self.stride + self.size
        if covered < len(sequence):
            tally.left_out(f"letters at the ends of sequences, too few for {self.size}", place, len(sequence) - covered,
                           "letter")
        vocabulary, unk = self.tokenizer.vocabulary, self.tokenizer.unk_id
        ids = [vocabulary.get(word, -1) for word in words]
        if -1 in ids:
            word = words[ids.index(-1)]
            kind = "letter" if self.size == 1 else f"{self.size}-mer"
            known = word.upper() in vocabulary
            hint = "; --upper converts lower-case letters to upper case" if known else ""
            if unk is None:
                remedy = hint or "; take the tokenizer of the model that is to be trained, or leave out such sequences"
                refuse(place, f"has the {kind} {word!r}, which is no token of the tokenizer, and there is no token for "
                       f"unknown ones{remedy}")
            tally.note(f"{kind}s that are no token of the tokenizer became {self.tokenizer.pieces([unk])[0]}{hint}", place,
                       ids.count(-1), kind)
            ids = [unk if i < 0 else i for i in ids]
        ids = [*self.tokenizer.before, *ids, *self.tokenizer.after]
        if self.end_id is not None and ids[-1] != self.end_id:
            ids.append(self.end_id)
        return document_of(ids, None, place)
