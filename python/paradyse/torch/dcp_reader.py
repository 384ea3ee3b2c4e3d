# mypy: disable-error-code="import-untyped, import-not-found, misc"
"""Reads a stranger's folder of torch.distributed.checkpoint: nothing of it runs, no file beside it is opened.

It has `.metadata`, a pickle, and files whose tensors torch.save wrote.  Of the pickle only what describes
tensors is read, and of the files only tensors (weights_only).
"""

import collections
import math
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load

from ..data.refusal import refuse


@contextmanager
def alone() -> Iterator[None]:
    """Without a process group DCP warns that it is not distributed, and torch of its own parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Unpickler(pickle.Unpickler):
    """Of a .metadata: descriptions of tensors, and nothing that runs."""

    KNOWN = {
        **{("torch.distributed.checkpoint.metadata", one): getattr(metadata, one) for one in (
            "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
            "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING") if hasattr(metadata, one)},
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
        ("torch", "Size"): torch.Size,
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("pathlib", "PosixPath"): lambda *parts: "/".join(map(str, parts)),  # of who wrote it, for nobody
        ("pathlib._local", "PosixPath"): lambda *parts: "/".join(map(str, parts)),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.KNOWN:
            return self.KNOWN[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in (("torch.serialization", "_get_layout"), ("torch", "strided")):
            return torch.strided if module == "torch" else lambda _: torch.strided
        raise pickle.UnpicklingError(f"it names {module}.{name}, which describes no tensor")


def is_whole(entry: Any) -> bool:
    """Of a tensor, whose chunks lie in it and are as many elements (DCP itself looks for no hole)."""
    try:
        chunks = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks]
        size = tuple(entry.size)
        inside = all(len(offsets) == len(sizes) == len(size) and
                     all(0 <= o and 0 <= n and o + n <= most for o, n, most in zip(offsets, sizes, size))
                     for offsets, sizes in chunks)
        return (isinstance(entry.properties.dtype, torch.dtype) and inside and len(set(chunks)) == len(chunks)
                and sum(math.prod(sizes) for _, sizes in chunks) == math.prod(size))
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False


class Reader(filesystem.FileSystemReader):
    """Names and tensors of such a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        file = folder / ".metadata"
        if not file.is_file():
            refuse(folder, "has no .metadata: it is no folder of torch.distributed.checkpoint, or was not "
                           "written to its end")
        try:
            with open(file, "rb") as stream:
                self.found: metadata.Metadata = Unpickler(stream).load()
            self.entries = dict(self.found.state_dict_metadata)
            self.storage = dict(self.found.storage_data)
            self.paths = dict(self.found.planner_data or {})
        except Exception as error:  # whatever bytes of a stranger make of it
            refuse(file, f"cannot be read: {error}")
        if not isinstance(self.found, metadata.Metadata):
            refuse(file, "describes no checkpoint")
        for key, entry in self.entries.items():
            if not isinstance(entry, metadata.BytesStorageMetadata) and not is_whole(entry):
                refuse(file, f"does not say of all elements of {key} where they are")
        for index, info in self.storage.items():
            path = getattr(info, "relative_path", None)
            if not isinstance(path, str) or Path(path).name != path:
                refuse(file, f"says that {getattr(index, 'fqn', index)} is in {path!r}, which is no file of "
                             "this folder")

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        if getattr(self.found, "storage_meta", None) is None:
            self.found.storage_meta = metadata.StorageMeta()
        return self.found

    def names(self) -> dict[str, tuple[str, ...]]:
        """Key of each tensor -> the path to it in the state dict, whose parts may have dots."""
        return {key: tuple(map(str, self.paths.get(key, (key,)))) for key, entry in self.entries.items()
                if isinstance(entry, metadata.TensorStorageMetadata)}

    def tensors(self, keys: list[str]) -> dict[str, torch.Tensor]:
        try:
            made = {key: torch.empty(entry.size, dtype=entry.properties.dtype)
                    for key, entry in ((key, self.entries[key]) for key in keys)}
            with alone():
                load(made, storage_reader=self, planner=DefaultLoadPlanner(flatten_state_dict=False))
        except CheckpointException as error:
            first = next(iter(error.failures.values()))[0] if error.failures else error
            refuse(self.folder, f"cannot be read: {first}")
        except RuntimeError as error:  # of a size that no memory has
            refuse(self.folder, f"cannot be read: {error}")
        return made
