"""Long documents cut, split, left out or refused, as docs/reference/data.md says; and none that has no label."""

from __future__ import annotations

from collections.abc import Iterator

from .document import Document
from .refusal import refuse
from .tally import Tally

CUT, SPLIT, SKIP, REFUSE = "cut", "split", "skip", "refuse"
TOO_LONG = (CUT, SPLIT, SKIP, REFUSE)


def limited(document: Document, most: int, too_long: str, tally: Tally) -> Iterator[Document]:
    """What is kept of a document, each piece with a label that counts.  most: 0 means no limit."""
    length = len(document.ids)
    if not most or length <= most:
        yield from labelled(document, "without a label", tally)
    elif too_long == CUT:
        begin = document.part(0, most)
        tally.note(f"cut to {most} tokens, which loses", document.place, tokens=length - most,
                   labels=document.labels - begin.labels)
        yield from labelled(begin, f"without a label after the cut to {most} tokens" if document.labels else
                            "without a label", tally)
    elif too_long == SPLIT:
        tally.note(f"split into pieces of at most {most} tokens", document.place)
        for at in range(0, length - 1, most - 1):  # a piece begins with the last token of the one before it
            yield from labelled(document.part(at, min(at + most, length)), "pieces of split documents without a label",
                                tally)
    elif too_long == SKIP:
        tally.left_out(f"longer than {most} tokens", document.place, tokens=length, labels=document.labels)
    else:
        refuse(document.place, f"has {length} tokens, more than the {most} allowed; raise --max-tokens, or let long "
               "documents be cut, split or left out: --too-long cut, split or skip")


def labelled(document: Document, why: str, tally: Tally) -> Iterator[Document]:
    if not document.labels:
        tally.left_out(why, document.place, tokens=len(document.ids))
        return
    tally.documents += 1
    tally.tokens += len(document.ids)
    tally.labels += document.labels
    yield document
