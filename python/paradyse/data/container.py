"""Megatron-core's indexed data set: PREFIX.bin (ids) and PREFIX.idx (lengths, offsets, documents), memory-mapped.

Source: NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py.  All numbers are little-endian:

    .idx: "MMIDIDX\\0\\0", u64 version 1, u8 code of the dtype, u64 sequences S, u64 documents + 1 = D,
          i32 lengths[S] in tokens, i64 offsets[S] in bytes of .bin, i64 documents[D]: first sequence of each, and S

A document that we write is one sequence.
"""

from __future__ import annotations

import array
import hashlib
import os
import secrets
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from .document import Ids
from .refusal import refuse

MAGIC = b"MMIDIDX\x00\x00"
CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}  # 6, 7: floats, which are no ids
HEAD = struct.Struct("<QBQQ")  # version, code, sequences, documents + 1
PARTIAL = ".partial"  # ends the names of files that are being written


def beside(prefix: Path, ending: str) -> Path:
    """PREFIX.ending; a prefix may have dots."""
    return prefix.with_name(prefix.name + ending)


def new_file(path: Path) -> IO[bytes]:
    """A file beside `path` of a name that nobody has, so that nobody's file is written over; to settle or to discard."""
    while True:
        try:
            return open(beside(path, f".{secrets.token_hex(4)}{PARTIAL}"), "xb")
        except FileExistsError:
            continue


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors of an open file name none; here they name this one."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def put(file: IO[bytes], path: Path, content: bytes) -> None:
    """Writes to a new file that is to become `path`."""
    with named(path):
        file.write(content)


def settle(file: IO[bytes], path: Path) -> None:
    """Gives a new file, now complete, its name."""
    with named(path):
        file.flush()
        os.fsync(file.fileno())
        os.replace(file.name, path)


def discard(file: IO[bytes]) -> None:
    """Removes a new file, unless it has got its name."""
    with suppress(OSError):  # of what it still had to write, where the disk is full
        file.close()
    Path(file.name).unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file so that it is there whole, or not at all, also when power fails.  A link stays one, to the new
    content, a file keeps its mode, and a device or a pipe takes the content and stays what it is."""
    if path.exists() and not path.is_file():  # asked before links are followed: /dev/stdout may lead to a pipe
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))
    file = new_file(path)
    try:
        if path.exists():
            os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
        put(file, path, content)
        settle(file, path)
    finally:
        discard(file)


class PairWriter:
    """Writes a pair, one sequence a document.  The names are given by finish(), the index's last."""

    def __init__(self, prefix: Path, dtype: str) -> None:
        self.prefix, self.dtype = prefix, np.dtype(dtype)
        self._bin = new_file(beside(prefix, ".bin"))
        self._hash = hashlib.sha256()
        self._lengths = array.array("i")

    def add(self, values: npt.NDArray[Any]) -> None:
        limits = np.iinfo(self.dtype) if self.dtype.kind in "iu" else None
        if limits and len(values) and not (limits.min <= int(values.min()) and int(values.max()) <= limits.max):
            refuse(self.prefix, f"document {len(self._lengths)} has an id from {values.min()} to {values.max()}, and "
                   f"the file's type {self.dtype} holds {limits.min} to {limits.max}")
        content = values.astype(self.dtype.newbyteorder("<")).tobytes()
        put(self._bin, beside(self.prefix, ".bin"), content)
        self._hash.update(content)
        self._lengths.append(len(values))

    def finish(self) -> str:
        """SHA-256 of .bin."""
        settle(self._bin, beside(self.prefix, ".bin"))
        self._bin.close()
        lengths = np.asarray(self._lengths, "<i4")
        offsets = np.zeros(len(lengths), "<i8")
        np.cumsum(lengths[:-1], dtype=np.int64, out=offsets[1:])
        code = next(code for code, name in CODES.items() if name == self.dtype.name)
        replace_file(beside(self.prefix, ".idx"), b"".join((
            MAGIC, HEAD.pack(1, code, len(lengths), len(lengths) + 1), lengths.tobytes(),
            (offsets * self.dtype.itemsize).astype("<i8").tobytes(), np.arange(len(lengths) + 1, dtype="<i8").tobytes())))
        return self._hash.hexdigest()

    def discard(self) -> None:
        discard(self._bin)


class Pair:
    """Reads a pair, Megatron's own as well: its documents may have several sequences."""

    def __init__(self, prefix: Path) -> None:
        index, data = beside(prefix, ".idx"), beside(prefix, ".bin")
        for path in (index, data):
            if not path.is_file():
                refuse(path, "is not there; an indexed data set of Megatron has a .idx and a .bin of the same name")
        head, size = len(MAGIC) + HEAD.size, index.stat().st_size
        with named(index), open(index, "rb") as file:
            begin = file.read(head)
        if len(begin) < head or not begin.startswith(MAGIC):
            refuse(index, "is not an index of Megatron's indexed data sets (it does not begin with MMIDIDX); the older "
                   "format TNTIDX is not read: write the data anew with Megatron's tools/preprocess_data.py")
        version, code, sequences, documents = HEAD.unpack(begin[len(MAGIC):])
        if version != 1 or code not in CODES:
            refuse(index, f"has version {version} and the code {code} of a dtype; read are version 1 and the codes "
                   + ", ".join(f"{key} ({name})" for key, name in CODES.items()))
        whole = head + 12 * sequences + 8 * documents
        if sequences and size == whole + sequences:
            refuse(index, "has modes of sequences, so it is multimodal, which is not read; give the text alone")
        if size != whole or documents < 1:
            refuse(index, f"has {size} bytes, but its {sequences} sequences and {documents} bounds of documents take "
                   f"{whole}; the file is damaged: write it anew")
        self.dtype = np.dtype(CODES[code]).newbyteorder("<")
        with named(index):
            content = np.memmap(index, np.uint8, "r")[head:]
        self._lengths = content[:4 * sequences].view("<i4")
        self._offsets = content[4 * sequences:12 * sequences].view("<i8")
        self._bounds = content[12 * sequences:].view("<i8")
        size = data.stat().st_size
        ends = self._offsets + self._lengths.astype(np.int64) * self.dtype.itemsize
        if sequences and (int(self._lengths.min()) < 0 or int(self._offsets.min()) < 0 or int(ends.max()) > size):
            refuse(data, f"has {size} bytes, but its index asks for {int(ends.max())}; the pair is damaged or of two "
                   "different data sets: write it anew")
        if int(self._bounds[0]) != 0 or int(self._bounds[-1]) != sequences or (np.diff(self._bounds) < 0).any():
            refuse(index, f"has bounds of documents that do not go up from 0 to {sequences}; the file is damaged: "
                   "write it anew")
        with named(data):
            self._bytes = np.memmap(data, np.uint8, "r") if size else np.zeros(0, np.uint8)
        sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(self._lengths, dtype=np.int64)))
        self.lengths: Ids = np.diff(sums[self._bounds])  # tokens of each document

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, document: int) -> npt.NDArray[Any]:
        parts = []
        for sequence in range(int(self._bounds[document]), int(self._bounds[document + 1])):
            begin = int(self._offsets[sequence])
            end = begin + int(self._lengths[sequence]) * self.dtype.itemsize
            parts.append(np.frombuffer(self._bytes[begin:end], self.dtype))
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, self.dtype), *parts])
