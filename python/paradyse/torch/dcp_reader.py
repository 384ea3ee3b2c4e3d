# mypy: disable-error-code="import-untyped, import-not-found, misc"
"""Reads a stranger's folder of torch.distributed.checkpoint: nothing of it runs, no file beside it is opened.

It has `.metadata`, a pickle that says which tensors there are, in which chunks, and where in which file each of
these is; there is what torch.save writes of a tensor: a ZIP with another pickle and its bytes.  Both pickles are
read as descriptions (dcp_pickle.py), and what they say is checked before memory is taken for it.
"""

import io
import math
import os
import pickle
import stat
import struct
import sys
import zipfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..data.refusal import refuse
from .dcp_pickle import Made, Name, described

LARGEST_METADATA = 256 << 20  # bytes; of some million chunks
LARGEST_DESCRIPTION = 1 << 16  # bytes; of one tensor in a file
LONGEST_NAME = 1024
MOST_DIMS = 64
# What a file of safetensors may have.
DTYPES = {name: getattr(torch, name) for name in (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8",
    "uint64", "uint32", "uint16", "uint8", "bool")}
STORAGES = {f"{name}Storage": DTYPES[dtype] for name, dtype in (
    ("Double", "float64"), ("Float", "float32"), ("Half", "float16"), ("BFloat16", "bfloat16"), ("Long", "int64"),
    ("Int", "int32"), ("Short", "int16"), ("Char", "int8"), ("Byte", "uint8"), ("Bool", "bool"))}
NAMES = {
    **dict.fromkeys(("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
                     "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
                    "torch.distributed.checkpoint.metadata"),
    "_StorageInfo": "torch.distributed.checkpoint.filesystem", "_get_layout": "torch.serialization",
    "Size": "torch", "OrderedDict": "collections", "_rebuild_tensor_v2": "torch._utils",
    "_rebuild_tensor_v3": "torch._utils", "UntypedStorage": "torch.storage",
    **dict.fromkeys(STORAGES, "torch")}


def found(module: str, name: str) -> Any:
    """What describes tensors."""
    if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
        return dtype
    if NAMES.get(name) == module or (module, name) == ("torch", "strided") or (
            name == "PosixPath" and module in ("pathlib", "pathlib._local")):  # of who wrote it, for nobody
        return Name(name)
    raise pickle.UnpicklingError(f"it names {module}.{name}, which describes no tensor")


def state_of(made: Any, name: str) -> Any:
    if not isinstance(made, Made) or made.name != name:
        has = made.name if isinstance(made, Made) else type(made).__name__
        raise ValueError(f"{name} is expected where it has {has}")
    return made.state


def sizes_of(numbers: Any) -> tuple[int, ...]:
    """Of a torch.Size, or a tuple: whole numbers from 0 on."""
    if isinstance(numbers, Made) and numbers.name == "Size" and len(numbers.args) == 1:
        numbers = numbers.args[0]
    if not isinstance(numbers, tuple) or len(numbers) > MOST_DIMS or not all(
            type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise ValueError("a shape or an offset is none")
    return numbers


def name_of(text: Any) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST_NAME or not text.isprintable():
        raise ValueError(f"{ascii(text)[:80] if isinstance(text, str) else 'what is no text'} is no name of a tensor")
    return text


def reason_of(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it does not say {ascii(error.args[0])[:80]}"
    text = str(error)[:300] or type(error).__name__  # which may quote the file
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


@dataclass
class Place:
    """Of a chunk in a file."""

    file: str
    offset: int
    length: int


@dataclass
class Entry:
    """A tensor; its chunks by their offsets in it.  Other entries than tensors have no dtype."""

    size: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    chunks: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    places: dict[tuple[int, ...], Place] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return math.prod(self.size) * (self.dtype.itemsize if self.dtype else 0)


def entry_of(made: Any, most_chunks: int) -> Entry:
    if isinstance(made, Made) and made.name == "BytesStorageMetadata":
        return Entry()
    state = state_of(made, "TensorStorageMetadata")
    properties = state_of(state["properties"], "TensorProperties")
    dtype = properties["dtype"] if isinstance(properties, dict) else properties[0]
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor has no dtype")
    entry = Entry(sizes_of(state["size"]), dtype)
    if math.prod(max(1, size) for size in entry.size) >= 2**60:  # torch counts bytes in 64 bits
        raise ValueError(f"a tensor of {entry.size} is larger than any memory")
    if len(state["chunks"]) > most_chunks:
        raise ValueError("it has more chunks than it says where they are")
    for chunk in state["chunks"]:
        its = state_of(chunk, "ChunkStorageMetadata")
        offsets, sizes = sizes_of(its["offsets"]), sizes_of(its["sizes"])
        if not len(offsets) == len(sizes) == len(entry.size) or any(
                o + n > most for o, n, most in zip(offsets, sizes, entry.size)):
            raise ValueError(f"a chunk at {offsets} of {sizes} is outside of a tensor of {entry.size}")
        entry.chunks[offsets] = sizes
    return entry


def is_whole(entry: Entry) -> bool:
    """Each element is in one chunk (DCP itself looks for no hole)."""
    chunks = {o: n for o, n in entry.chunks.items() if math.prod(n)}
    if sum(map(math.prod, chunks.values())) != math.prod(entry.size):
        return False
    if len(chunks) < 2:
        return True
    if all(o[1:] == (0,) * len(o[1:]) and n[1:] == entry.size[1:] for o, n in chunks.items()):  # of rows
        ends = sorted((o[0], o[0] + n[0]) for o, n in chunks.items())
        return all(end == begin for (_, end), (begin, _) in zip(ends, ends[1:]))
    seen = torch.zeros(entry.size, dtype=torch.bool)
    for o, n in chunks.items():
        seen[tuple(slice(begin, begin + count) for begin, count in zip(o, n))] = True
    return bool(seen.all())


class Part(io.RawIOBase):
    """Bytes of a file, as a file of their own."""

    def __init__(self, stream: BinaryIO, place: Place) -> None:
        self.stream, self.begin, self.length, self.at = stream, place.offset, place.length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.length}[whence]
        if at < 0:
            raise ValueError("before the begin")
        self.at = at
        return at

    def read(self, size: int = -1) -> bytes:
        most = max(self.length - self.at, 0)
        content = bytearray(most if size < 0 else min(size, most))
        return bytes(content[:self.readinto(content)])

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[:max(self.length - self.at, 0)]
        self.stream.seek(self.begin + self.at)
        got = 0
        while got < len(view):
            now = self.stream.readinto(view[got:])  # type: ignore[attr-defined]
            if not now:
                break
            got += now
        self.at += got
        return got


def stored_tensor(part: Part) -> torch.Tensor:
    """Of what torch.save wrote there of a tensor.  Takes as much memory as there are bytes."""
    with zipfile.ZipFile(part) as archive:
        records = {info.filename: info for info in archive.infolist()}
    if any(info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size
           for info in records.values()) or sum(info.file_size for info in records.values()) > part.length:
        raise ValueError("it is compressed, or longer than its file")

    def content_of(name: str, most: int) -> bytearray:
        info = records[name]
        part.seek(info.header_offset)
        head = part.read(30)
        begin = info.header_offset + 30 + sum(struct.unpack("<HH", head[26:30]))
        if not head.startswith(b"PK\3\4") or info.file_size > most or begin + info.file_size > part.length:
            raise ValueError(f"{name} is not where it is said to be")
        part.seek(begin)
        content = bytearray(info.file_size)
        part.readinto(content)
        return content

    (pickled,) = (name for name in records if name.endswith("/data.pkl") and name.count("/") == 1)
    root = pickled[:-len("data.pkl")]
    if root + "byteorder" in records and content_of(root + "byteorder", 16).decode() != sys.byteorder:
        raise ValueError("it was written by a machine with another order of bytes")
    made = described(bytes(content_of(pickled, LARGEST_DESCRIPTION)), found)
    if not isinstance(made, Made) or made.name not in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
        raise ValueError("it is no tensor")
    storage, offset, size, stride = made.args[:4]
    if not isinstance(storage, Made) or storage.name != "persistent" or len(made.args) != 6 + made.name.endswith("3"):
        raise ValueError("it is no plain tensor")
    kind, cls, key = storage.args[:3]
    if not isinstance(cls, Name):
        raise ValueError("it is no plain tensor")
    dtype: Any = made.args[6] if made.name.endswith("3") else STORAGES.get(cls)
    size, stride = sizes_of(size), sizes_of(stride)
    (offset,) = sizes_of((offset,))
    if kind != "storage" or dtype not in DTYPES.values() or len(stride) != len(size) or not isinstance(key, str):
        raise ValueError("it is no plain tensor")
    if not math.prod(size):
        return torch.empty(size, dtype=dtype)
    content = content_of(f"{root}data/{key}", part.length)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride))
    if (last + 1) * dtype.itemsize > len(content):
        raise ValueError("it has fewer bytes than elements")
    flat = torch.frombuffer(content, dtype=dtype, count=len(content) // dtype.itemsize)
    return torch.as_strided(flat, size, stride, offset)


class Reader:
    """Names and tensors of such a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = folder / ".metadata"
        if not file.is_file():
            refuse(folder, "has no .metadata: it is no folder of torch.distributed.checkpoint, or was not "
                           "written to its end")
        if file.stat().st_size > LARGEST_METADATA:
            refuse(file, f"has {file.stat().st_size} bytes; a .metadata of up to {LARGEST_METADATA} is read")
        self.entries: dict[str, Entry] = {}
        self.paths: dict[str, tuple[str, ...]] = {}
        try:
            self.describe(described(file.read_bytes(), found))
        except OSError:
            raise
        except Exception as error:  # whatever bytes of a stranger make of it
            refuse(file, f"cannot be read: {reason_of(error)}")
        self.expect_files(file)
        for key, entry in self.entries.items():
            try:
                whole = not entry.dtype or set(entry.chunks) <= set(entry.places) and all(
                    math.prod(sizes) * entry.dtype.itemsize <= entry.places[offsets].length
                    for offsets, sizes in entry.chunks.items()) and is_whole(entry)
            except RuntimeError as error:
                refuse(file, f"has {key} of {entry.size}, for which there is no memory: {reason_of(error)}")
            if not whole:
                refuse(file, f"does not say of all elements of {key} where they are")

    def describe(self, made: Any) -> None:
        state = state_of(made, "Metadata")
        places = state["storage_data"]
        most_chunks = len(places)
        for key, described_as in state["state_dict_metadata"].items():
            entry = self.entries[name_of(key)] = entry_of(described_as, most_chunks)
            most_chunks -= len(entry.chunks)
            path = (state.get("planner_data") or {}).get(key, (key,))
            if not isinstance(path, tuple) or len(path) > MOST_DIMS or not all(
                    type(part) is int and 0 <= part < 1 << 62 or isinstance(part, str) for part in path):
                raise ValueError(f"the path to {key} is none")
            if entry.dtype:
                self.paths[key] = tuple(map(str, path))
                name_of(".".join(self.paths[key]) if sum(map(len, self.paths[key])) <= LONGEST_NAME else "")
        for index, info in places.items():
            its, where = state_of(index, "MetadataIndex"), state_of(info, "_StorageInfo")
            place = Place(where.get("relative_path"), *sizes_of((where["offset"], where["length"])))
            if where.get("transform_descriptors"):
                raise ValueError("its tensors are compressed: save it without extensions of DCP")
            if not isinstance(place.file, str) or place.file in ("", "..") or Path(place.file).name != place.file:
                raise ValueError(f"it says that {name_of(its['fqn'])} is in {ascii(place.file)[:80]}, which is no "
                                 "file of this folder")
            if name_of(its["fqn"]) not in self.entries:
                raise ValueError(f"it says where {its['fqn']} is, but not what")
            self.entries[its["fqn"]].places[sizes_of(its["offset"]) if its.get("offset") is not None else ()] = place

    def expect_files(self, metadata: Path) -> None:
        """Each place is in a file, and none is twice in it: what is read is no more than what is there."""
        of_file: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for key, entry in self.entries.items():
            for place in entry.places.values():
                of_file[place.file].append((place.offset, place.offset + place.length, key))
        for name, places in of_file.items():
            try:
                status = os.stat(self.folder / name)
            except (OSError, ValueError) as error:
                refuse(self.folder, f"{name!r} cannot be read: {error}")
            if not stat.S_ISREG(status.st_mode):
                refuse(self.folder / name, "cannot be read: it is no file")
            places.sort()
            for (_, end, key), (begin, _, other) in zip(places, places[1:]):
                if begin < end:
                    refuse(metadata, f"cannot be read: it says that {key} and {other} are at the same place of {name}")
            _, end, key = max(places, key=lambda place: place[1])
            if end > status.st_size:
                refuse(self.folder / name, f"cannot be read: it has {status.st_size} bytes, but {key} ends at {end}: "
                                           "the file is not whole")

    def names(self) -> dict[str, tuple[str, ...]]:
        """Key of each tensor -> the path to it in the state dict, whose parts may have dots."""
        return self.paths

    def tensors(self, keys: list[str]) -> dict[str, torch.Tensor]:
        return {key: self.tensor(key) for key in keys}

    def tensor(self, key: str) -> torch.Tensor:
        entry = self.entries[key]
        if entry.dtype not in DTYPES.values():
            refuse(self.folder, f"has {key} in {entry.dtype}, which is not read")
        try:
            whole = torch.empty(entry.size, dtype=entry.dtype)
        except (RuntimeError, MemoryError) as error:
            refuse(self.folder, f"has {key} of {entry.size}, for which there is no memory: {reason_of(error)}")
        for offsets, sizes in entry.chunks.items():
            place = entry.places[offsets]
            with open(self.folder / place.file, "rb", buffering=0) as stream:
                try:
                    chunk = stored_tensor(Part(stream, place))
                    if chunk.dtype != entry.dtype or tuple(chunk.shape) != sizes:
                        raise ValueError(f"it has {chunk.dtype} of {tuple(chunk.shape)}, but .metadata says "
                                         f"{entry.dtype} of {sizes}")
                except OSError:
                    raise
                except Exception as error:  # as above
                    refuse(self.folder / place.file, f"{key} cannot be read: {reason_of(error)}")
            whole[tuple(slice(begin, begin + count) for begin, count in zip(offsets, sizes))] = chunk
        return whole
