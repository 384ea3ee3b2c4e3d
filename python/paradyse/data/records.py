"""The records of a part of a file: lines of JSONL, rows of Parquet, sequences of FASTA and FASTQ, a whole text.

A *unit* is a part of a file that one process reads: bytes [begin, end) of an unpacked file that begin and end between
records, row groups [begin, end) of a Parquet file, or a whole file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .document import Place
from .files import FASTA, FASTQ, LINES, PARQUET, DataFile
from .keys import may_matter
from .refusal import need, refuse
from .streams import MOST_UNPACKED, PACKED, UTF8_BOM, Decoder, opened, too_large
from .tally import Tally

WHOLE = -1  # the end of a unit that is a whole file


@dataclass(frozen=True)
class Unit:
    source: int  # index into the list of files
    begin: int
    end: int
    line: int  # number of the first line or row of it
    size: int  # bytes of the file, about: for shards of like size, and for progress


@dataclass(frozen=True)
class Record:
    place: Place
    value: Any  # dict: a row of JSONL or Parquet; str: a text or a sequence
    bytes: int  # read of the file up to its end, since the record before it


class Reader:
    """Reads units.  `keys` are the columns of Parquet that are wanted."""

    def __init__(self, files: list[DataFile], replace: bool, keys: set[str], tally: Callable[[], Tally]) -> None:
        self.files, self.keys, self.tally, self.decoder = files, keys, tally, Decoder(replace)

    def records(self, unit: Unit) -> Iterator[Record]:
        file = self.files[unit.source]
        if file.kind == LINES:
            yield from self._json_lines(unit, file)
        elif file.kind == PARQUET:
            yield from self._rows(unit, file)
        elif file.kind == FASTA:
            yield from self._fasta(unit, file)
        elif file.kind == FASTQ:
            yield from self._fastq(unit, file)
        else:
            with opened(Path(file.path)) as stream:
                content = stream.read()
            place = Place(unit.source, file.path)
            yield Record(place, self._text(content.removeprefix(UTF8_BOM), place), unit.size)

    def _text(self, content: bytes, place: Place) -> str:
        if b"\0" in content:
            refuse(place, f"has a NUL byte (byte {content.index(0)}), which text does not have: it is binary, UTF-16 or "
                   "damaged; repair it, or leave it out")
        return self._decoded(content, place)

    def _decoded(self, content: bytes, place: Place) -> str:
        text = self.decoder.text(content, place)
        if self.decoder.replaced:
            self.tally().note("U+FFFD in place of bytes that are not UTF-8 (--invalid replace)", place,
                              self.decoder.replaced, "character")
        return text

    def _lines(self, unit: Unit, file: DataFile) -> Iterator[tuple[Place, bytes]]:
        with opened(Path(file.path)) as stream:
            if unit.end != WHOLE:
                stream.seek(unit.begin)
            at, number = unit.begin, unit.line
            while unit.end == WHOLE or at < unit.end:
                line = stream.readline()
                if not line:
                    break
                yield Place(unit.source, file.path, number), (line.removeprefix(UTF8_BOM) if number == 1 else line)
                at, number = at + len(line), number + 1

    def _json_lines(self, unit: Unit, file: DataFile) -> Iterator[Record]:
        packed = unit.end == WHOLE and file.path.lower().endswith(PACKED)
        for place, line in self._lines(unit, file):
            if line.strip():
                yield Record(place, json_object(self._text(line, place), place), 0 if packed else len(line))

    def _rows(self, unit: Unit, file: DataFile) -> Iterator[Record]:
        parquet = need("pyarrow.parquet", "pyarrow", "a Parquet file")
        types = need("pyarrow.types", "pyarrow", "a Parquet file")
        number = unit.line
        try:
            table = parquet.ParquetFile(file.path)
            names = table.schema_arrow.names
            for name in sorted({name for name in names if names.count(name) > 1}):
                refuse(file.path, f"has several columns {name!r}: give each a name of its own")
            read = self.keys | set(filter(may_matter, names))
            wanted = [name for name in names if name in read]
            unused: dict[str, Any] = {name: [] if types.is_nested(table.schema_arrow.field(name).type) else ""
                                      for name in names if name not in read}
            for batch in table.iter_batches(256, list(range(unit.begin, unit.end)), wanted):
                for row in self._values(batch, unit, file, number):
                    found = {**unused, **without_none(row, top=True)}
                    yield Record(Place(unit.source, file.path, number), {name: found[name] for name in names}, 0)
                    number += 1
        except (OSError, need("pyarrow", "pyarrow", "a Parquet file").ArrowException) as error:
            refuse(file.path, f"cannot be read as Parquet ({str(error).splitlines()[0]}); fetch or write it again")

    def _values(self, batch: Any, unit: Unit, file: DataFile, first: int) -> Iterator[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = batch.to_pylist()
        except (ValueError, OverflowError):  # text that is not UTF-8, a time that Python does not have
            for i in range(batch.num_rows):
                place = Place(unit.source, file.path, first + i)
                yield {name: self._value(column[i], name, place) for name, column in zip(batch.schema.names, batch.columns)}
        else:
            yield from rows

    def _value(self, scalar: Any, name: str, place: Place) -> Any:
        """Of a scalar of Arrow."""
        arrow = need("pyarrow", "pyarrow", "a Parquet file")
        if not scalar.is_valid:
            return None
        if isinstance(scalar, arrow.DictionaryScalar):
            return self._value(scalar.value, name, place)
        if isinstance(scalar, arrow.StringScalar):
            return self._decoded(scalar.as_buffer().to_pybytes(), place)
        if isinstance(scalar, arrow.StructScalar):
            return {field.name: self._value(scalar[i], name, place) for i, field in enumerate(scalar.type)}
        if isinstance(scalar, arrow.ListScalar) and not isinstance(scalar, arrow.MapScalar):
            return [self._value(one, name, place) for one in scalar.values]
        try:
            return scalar.as_py()
        except (ValueError, OverflowError) as error:
            refuse(place, f"has a value of {name} ({scalar.type}) that cannot be read ({str(error).splitlines()[0]}); write "
                   "the column in another type, or leave it out")

    def _fasta(self, unit: Unit, file: DataFile) -> Iterator[Record]:
        place, parts, size = Place(unit.source, file.path), list[str](), 0
        begun = False
        most = MOST_UNPACKED if file.path.lower().endswith(PACKED) else sys.maxsize
        for here, line in self._lines(unit, file):
            text = self._text(line, here).strip()
            if text.startswith(">"):
                if begun:
                    yield Record(place, "".join(parts), size)
                place, parts, size, begun = here, [], 0, True
            elif text and not text.startswith(";"):
                if not begun:
                    refuse(here, "is a sequence without a name; in FASTA a line that begins with '>' comes first")
                parts.append("".join(text.split()))
            size += len(line)
            if size > most:
                too_large(place, "is a sequence of", most)
        if begun:
            yield Record(place, "".join(parts), size)

    def _fastq(self, unit: Unit, file: DataFile) -> Iterator[Record]:
        lines = self._lines(unit, file)
        for place, name in lines:
            if not name.strip():
                continue
            rest = [self._text(line, here).strip() for here, line in (next(lines, (place, b"")) for _ in range(3))]
            sequence, plus, quality = rest
            if not name.startswith(b"@") or not plus.startswith("+") or len(sequence) != len(quality):
                refuse(place, "is not a record of FASTQ: four lines, which are @name, the sequence, + and as many "
                       "qualities as letters; repair it, or cut the file before it")
            yield Record(place, sequence, len(name) + sum(map(len, rest)) + 3)


LONG_NUMBER = "a number of more digits than Python reads"
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def json_object(line: str, place: Place) -> dict[str, Any]:
    """A line of JSONL; refused is what another reader might take for something else."""
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
            refuse(place, f"has the key {twice} twice; keep one")
        return found

    def constant(name: str) -> Any:
        refuse(place, f"has {name}, which is not JSON; write a number or null")

    try:
        value = json.loads(line, object_pairs_hook=once, parse_constant=constant)
    except json.JSONDecodeError as error:
        refuse(place, f"is not JSON ({error}); a line takes one object")
    except ValueError as error:
        refuse(place, f"has {LONG_NUMBER} ({error}); write it shorter, or as a string")
    except RecursionError:
        refuse(place, "is nested too deeply; a line takes an object with text, messages, or prompt and completion")
    if not isinstance(value, dict):
        refuse(place, f"is not an object ({line.strip()[:40]}); a line takes an object with text, messages, or prompt "
               "and completion")
    if SURROGATE.search(line):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            refuse(place, "has half of a surrogate pair (\\ud800 to \\udfff), which is not text; write the character "
                   "whole")
    return value


def without_none(value: Any, top: bool = False) -> Any:
    """Parquet gives every key to every message of a list; those that a message does not have are None."""
    if isinstance(value, dict):
        return {key: without_none(inner) for key, inner in value.items() if top or inner is not None}
    return [without_none(inner) for inner in value] if isinstance(value, list) else value


def units_of(source: int, file: DataFile, most: int) -> Iterator[Unit]:
    """Cuts a file into units of about `most` bytes."""
    path = Path(file.path)
    size = path.stat().st_size
    packed = path.suffix.lower() in PACKED
    if file.kind == PARQUET:
        parquet = need("pyarrow.parquet", "pyarrow", "a Parquet file")
        try:
            metadata = parquet.read_metadata(path)
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        except (OSError, need("pyarrow", "pyarrow", "a Parquet file").ArrowException) as error:
            refuse(path, f"cannot be read as Parquet ({str(error).splitlines()[0]}); fetch or write it again")
        row = 1
        for number, group in enumerate(groups):
            yield Unit(source, number, number + 1, row, max(1, size // len(groups)))
            row += group.num_rows
    elif packed or size <= most or file.kind not in (LINES, FASTA, FASTQ):
        yield Unit(source, 0, WHOLE, 1, size)
    else:
        with opened(path) as stream:
            cut = _cut_fastq(source, stream, size, most) if file.kind == FASTQ else _cut(source, file.kind, stream, size, most)
            yield from cut


def _cut(source: int, kind: str, stream: IO[bytes], size: int, most: int) -> Iterator[Unit]:
    begin = at = 0
    first = line = 1  # the lines at `begin` and `at`
    while at < size:
        while at < min(size, begin + most):
            block = stream.read(min(1 << 20, begin + most - at))
            if not block:
                break
            at, line = at + len(block), line + block.count(b"\n")
            last = block[-1:]
        if last != b"\n":
            at, line = at + len(stream.readline()), line + 1
        while at < size:  # to where a record begins
            here = stream.readline()
            if kind == LINES or (kind == FASTA and here.startswith(b">")):
                break
            at, line = at + len(here), line + 1
        stream.seek(at)
        yield Unit(source, begin, min(at, size), first, min(at, size) - begin)
        begin, first = at, line


def _cut_fastq(source: int, stream: IO[bytes], size: int, most: int) -> Iterator[Unit]:
    """At names alone: a blank line before a name is none of a record, but a sequence may be one."""
    begin = at = 0
    first = line = 1  # the lines at `begin` and `at`
    done = 0  # lines of the record at `at` that come before it
    while at < size:
        text = stream.readline()
        if not text:
            break
        if done == 0 and at - begin >= most:
            yield Unit(source, begin, at, first, at - begin)
            begin, first = at, line
        at, line = at + len(text), line + 1
        done = (done + 1) % 4 if done or text.strip() else 0
    yield Unit(source, begin, min(at, size), first, min(at, size) - begin)
