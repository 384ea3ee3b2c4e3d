"""What became of all that was read: totals, what was left out and why, and what a user should know.

A line of it is "reason: count unit, tokens, labels; first PLACE".  Tallies of shards add up to that of a folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LEFT_OUT = "left out"  # of the result: documents, files, letters
NOTE = "note"  # what is in the result, but not as one might think

JSON_KEYS = {LEFT_OUT: "left_out", NOTE: "notes"}
UNUSED = "key not used, "  # begins the note of each key of rows that says nothing here


@dataclass
class Entry:
    unit: str
    count: int = 0
    tokens: int = 0
    labels: int = 0
    first: str = ""  # place of the first

    def text(self, reason: str) -> str:
        parts = [number(self.count, self.unit)]
        if self.tokens:
            parts.append(number(self.tokens, "token"))
        if self.labels:
            parts.append(number(self.labels, "label"))
        return f"{reason}: {', '.join(parts)}" + (f"; first {self.first}" if self.first else "")


@dataclass
class Tally:
    documents: int = 0
    tokens: int = 0
    labels: int = 0
    entries: dict[str, dict[str, Entry]] = field(default_factory=lambda: {LEFT_OUT: {}, NOTE: {}})

    def left_out(self, reason: str, first: object, count: int = 1, unit: str = "document", tokens: int = 0,
                 labels: int = 0) -> None:
        self._add(LEFT_OUT, reason, Entry(unit, count, tokens, labels, str(first)))

    def note(self, reason: str, first: object, count: int = 1, unit: str = "document", tokens: int = 0,
             labels: int = 0) -> None:
        self._add(NOTE, reason, Entry(unit, count, tokens, labels, str(first)))

    def unused(self, key: str, first: object) -> None:
        self.note(f"{UNUSED}{key}", first, unit="row")

    def _add(self, kind: str, reason: str, entry: Entry) -> None:
        mine = self.entries[kind].setdefault(reason, Entry(entry.unit, first=entry.first))
        mine.count += entry.count
        mine.tokens += entry.tokens
        mine.labels += entry.labels

    def add(self, other: Tally) -> None:
        """What came after."""
        self.documents += other.documents
        self.tokens += other.tokens
        self.labels += other.labels
        for kind, reasons in other.entries.items():
            for reason, entry in reasons.items():
                self._add(kind, reason, entry)

    def lines(self) -> list[str]:
        keys = [reason.removeprefix(UNUSED) for reason in self.entries[NOTE] if reason.startswith(UNUSED)]
        more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
        return [*(f"{kind}: {entry.text(reason)}" for kind, reasons in self.entries.items()
                  for reason, entry in reasons.items() if not reason.startswith(UNUSED)),
                *([f"{NOTE}: keys not used: {', '.join(keys[:8])}{more}"] if keys else [])]

    def to_json(self) -> dict[str, Any]:
        return {"documents": self.documents, "tokens": self.tokens, "labels": self.labels,
                **{JSON_KEYS[kind]: {reason: vars(entry) for reason, entry in reasons.items()}
                   for kind, reasons in self.entries.items()}}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Tally:
        return Tally(value["documents"], value["tokens"], value["labels"],
                     {kind: {reason: Entry(**entry) for reason, entry in value[key].items()}
                      for kind, key in JSON_KEYS.items()})


def number(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"
