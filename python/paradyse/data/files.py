"""Which files are read, by the rules of docs/reference/data.md, and as what."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from .folder import is_prepared
from .refusal import refuse
from .streams import PACKED, UTF8_BOM, inner_suffix, opened
from .tally import Tally
from .utf8 import is_text

LINES, PARQUET, FASTA, FASTQ, TEXT = "JSONL", "Parquet", "FASTA", "FASTQ", "text"
KINDS = {".jsonl": LINES, ".ndjson": LINES, ".parquet": PARQUET, ".txt": TEXT,
         **dict.fromkeys((".fa", ".fasta", ".fna", ".faa", ".ffn", ".frn", ".fas"), FASTA),
         **dict.fromkeys((".fq", ".fastq"), FASTQ)}

ROWS = 'write its rows as JSONL or Parquet (datasets: to_json("data.jsonl"))'
IDS = "it holds numbers, not text; convert token ids with paradyse-data convert"
ITS_TEXT = "give its text, as .txt or JSONL"
TABLES = {".csv": ROWS, ".tsv": ROWS, ".arrow": ROWS, ".feather": ROWS, ".orc": ROWS, ".avro": ROWS,
          ".tfrecord": ROWS, ".tfrecords": ROWS, ".mds": ROWS}  # hold documents: refused in folders, too
OTHERS = {".bz2": "unpack it: bunzip2", ".xz": "unpack it: unxz", ".lz4": "unpack it: lz4 -d", ".zip": "unpack it: unzip",
          ".tar": "unpack it: tar -xf", ".tgz": "unpack it: tar -xf", ".7z": "unpack it: 7z x",
          **dict.fromkeys((".bin", ".idx", ".npy", ".npz", ".pt", ".pth", ".pkl", ".pickle", ".safetensors", ".h5",
                           ".hdf5"), IDS),
          **dict.fromkeys((".db", ".sqlite", ".xls", ".xlsx"), ROWS),
          **dict.fromkeys((".pdf", ".doc", ".docx", ".odt", ".epub"), ITS_TEXT)}
MAGIC = {b"\x1f\x8b": "is packed by gzip, but its name does not end in .gz; rename it",
         b"\x28\xb5\x2f\xfd": "is packed by zstd, but its name does not end in .zst; rename it",
         b"PAR1": "is a Parquet file, but its name does not end in .parquet; rename it",
         b"ARROW1": "is an Arrow file, which is not read; " + ROWS,
         b"BZh9": "is packed, which is not read; unpack it: bunzip2", b"\xfd7zXZ": "is packed, which is not read; unpack "
         "it: unxz", b"PK\x03\x04": "is an archive, which is not read; unpack it: unzip",
         b"\xff\xfe": "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
         b"\xfe\xff": "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8", b"%PDF-": "is a PDF; give its text",
         b"\x89PNG": "is a picture; give text", b"\xff\xd8\xff": "is a picture; give text", b"GIF8": "is a picture; give "
         "text"}
PACKED_TABLE = "is Parquet that is packed as a whole, which is not read; unpack it: gunzip, or unzstd"
DOCUMENT_KEYS = {"text", "messages", "conversations", "prompt", "tokens", "input_ids"}
HEAD = 1 << 16  # bytes of a file that say what it is


def is_packed_table(path: Path) -> bool:
    """Parquet is read by its end first, which a packed file cannot be."""
    return path.suffix.lower() in PACKED and inner_suffix(path) == ".parquet"


@dataclass(frozen=True)
class DataFile:
    path: str
    kind: str
    given: bool  # by its own name, or .txt: surely meant as data


def names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder), key=os.fsencode)
    except OSError as error:
        refuse(folder, f"cannot be read: {error.strerror}")


def is_pattern(path: str) -> bool:
    return bool(set("*?[") & set(path))


def matches(pattern: Path) -> Iterator[Path]:
    """What a pattern matches, as a shell reads it; glob leaves out in silence what cannot be read."""
    if not is_pattern(str(pattern)):
        if is_there(pattern):
            yield pattern
        return
    for folder in matches(pattern.parent):
        if not is_pattern(pattern.name):
            if is_there(folder / pattern.name):
                yield folder / pattern.name
        elif folder.is_dir():
            yield from (folder / name for name in names_in(folder)
                        if fnmatchcase(name, pattern.name) and (pattern.name[0] == "." or name[0] != "."))


def is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        refuse(path, f"cannot be read: {error.strerror}")
    return True


class Finder:
    """Collects files in order; `ours` are folders and files that are no data, `keys` name a document's text."""

    def __init__(self, tally: Tally, ours: list[Path] | None = None, keys: set[str] | None = None) -> None:
        self.tally, self.keys = tally, DOCUMENT_KEYS | (keys or set())
        self.ours = {path.resolve() for path in ours or []}
        self.seen: set[Path] = set()
        self.files: list[DataFile] = []

    def take(self, given: str) -> None:
        """What a user named: a file, a folder or a pattern."""
        path = Path(given)
        if path.is_dir():
            if path.resolve() in self.ours or is_prepared(path):
                refuse(given, "is a prepared folder, or the tokenizer's; give the text that it was made of")
            self._take_sorted(self._walk(path))
        elif path.exists():
            if path.is_file() and self._is_new(path):
                self.files.append(self._named(path))
            elif not path.is_file():
                refuse(given, "is a pipe or a device, which cannot be read twice; write it to a file")
        elif is_pattern(given):
            if "**" in given:
                refuse(given, "** is not supported; give the folder, which is read with its subfolders")
            found = sorted(matches(path))
            if not found:
                refuse(given, "matches no file; give a file, a folder, or a pattern as in 'data/*.jsonl'")
            self._take_sorted([inner for one in found for inner in self._met_by_name(one)])
        else:
            refuse(given, "is not there; give a file, a folder, or a pattern as in 'data/*.jsonl'")

    def _walk(self, folder: Path) -> list[Path]:
        return [path for name in names_in(folder) for path in self._met_by_name(folder / name)]

    def _met_by_name(self, path: Path) -> list[Path]:
        """In a folder, or by a pattern: the files there."""
        if path.name.startswith("."):
            self._left_out("hidden", path)
        elif path.resolve() in self.ours or (path.is_dir() and is_prepared(path)):
            self._left_out("output, tokenizer or prepared data", path)
        elif path.is_file():
            return [path]
        elif path.is_symlink():  # left out in silence, training would see less
            refuse(path, "is a link to a folder or to nothing, which is not followed; link files, or remove it")
        elif path.is_dir():
            return self._walk(path)
        else:
            self._left_out("pipe or socket", path)
        return []

    def _take_sorted(self, paths: list[Path]) -> None:
        files = []
        for path in sorted(paths, key=os.fsencode):
            if not self._is_new(path):
                continue
            kind = self._met(path)
            if kind is None:
                self._left_out("binary", path)
            else:
                files.append(DataFile(str(path), kind, inner_suffix(path) == ".txt"))
        rows = any(file.kind != TEXT for file in files)
        for file in files:
            if rows and file.kind == TEXT and not file.given:
                self._left_out("text beside JSONL, Parquet or FASTA (name it .txt, or name the file itself)", file.path)
            else:
                self.files.append(file)

    def _is_new(self, path: Path) -> bool:
        if not is_text(str(path)):
            refuse(path, "has a name that is not UTF-8, which data.json cannot hold; rename it")
        real = path.resolve()
        if real in self.seen:
            self._left_out("read already", path)
            return False
        self.seen.add(real)
        return True

    def _left_out(self, why: str, path: object) -> None:
        self.tally.left_out(f"files, {why}", path, unit="file")

    def _named(self, path: Path) -> DataFile:
        suffix = inner_suffix(path)
        remedy = TABLES.get(suffix) or OTHERS.get(suffix)
        if remedy:
            refuse(path, f"is {suffix}, which is not read; {remedy}")
        if is_packed_table(path):
            refuse(path, PACKED_TABLE)
        kind = KINDS.get(suffix) or self._sniffed(path)
        if kind is None:
            refuse(path, "is not text, or of a format that is not known; " + ITS_TEXT)
        return DataFile(str(path), kind, True)

    def _met(self, path: Path) -> str | None:
        """The kind of a file of a folder; None: it is binary, and may be anything."""
        suffix = inner_suffix(path)
        if suffix in TABLES:
            refuse(path, f"is {suffix}, which is not read; {TABLES[suffix]}, or move it out of the folder")
        if is_packed_table(path):
            refuse(path, f"{PACKED_TABLE}, or move it out of the folder")
        if suffix in KINDS:
            return KINDS[suffix]
        if suffix in OTHERS:
            inner = Path(path.stem).suffix.lower()
            if inner in KINDS or inner in TABLES:  # packed data
                refuse(path, f"is {suffix}, which is not read; {OTHERS[suffix]}, or move it out of the folder")
            return None
        return self._sniffed(path, strict=False)

    def _sniffed(self, path: Path, strict: bool = True) -> str | None:
        with opened(path) as stream:
            head = stream.read(HEAD)
            line = head.removeprefix(UTF8_BOM).lstrip()
            if line.startswith(b"{"):
                line = line.split(b"\n", 1)[0] + (stream.readline() if b"\n" not in line else b"")
        for magic, what in MAGIC.items():
            if head.startswith(magic):
                if strict or magic in (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"ARROW1", b"\xff\xfe", b"\xfe\xff"):
                    refuse(path, what)
                return None
        if b"\0" in head:
            return None
        if line.startswith(b"{") and self._is_document(line):
            return LINES
        if inner_suffix(path) == ".json" and line.startswith(b"[") and any(
                f'"{key}"'.encode() in line for key in self.keys):
            refuse(path, f"is one JSON list; write one document a line: jq -c '.[]' {path.name} > "
                   f"{path.with_suffix('.jsonl').name}")
        if inner_suffix(path) == ".json" and strict:
            refuse(path, "holds no documents; a .json file takes a line a document, an object with text, messages, or "
                   "prompt and completion (another key of text: --text-key)")
        return TEXT

    def _is_document(self, line: bytes) -> bool:
        try:
            return bool(self.keys & json.loads(line).keys())
        except (ValueError, RecursionError):
            return False


def data_files(inputs: list[str], tally: Tally, ours: list[Path], keys: set[str]) -> list[DataFile]:
    finder = Finder(tally, ours, keys)
    for given in inputs:
        finder.take(given)
    if not finder.files:
        refuse(", ".join(inputs), "has no file to read; " + ("; ".join(tally.lines()) or "it is empty"))
    return finder.files
