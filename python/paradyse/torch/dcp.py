# mypy: disable-error-code="import-untyped, import-not-found, misc"
"""PyTorch's distributed checkpoints (torch.distributed.checkpoint, DCP) from and to what paradyse reads and writes.

    python -m paradyse.torch.dcp to    MODEL_OR_CHECKPOINT  DCP      a model folder, or checkpoints/000050 of a run
    python -m paradyse.torch.dcp from  DCP  MODEL                    a folder of safetensors, for --model

A DCP folder has `.metadata`, a pickle, and files whose tensors torch.save wrote.  Of the pickle only what describes
tensors is read (no code of a stranger runs), and of the files only tensors (weights_only).

    model.NAME                        weights, by their names in the model folder
    optimizer.state.NAME.exp_avg      of a run's checkpoint, with exp_avg_sq and step, by the names and in the shapes
                                      that torch.distributed.checkpoint.state_dict.get_optimizer_state_dict gives

One tensor is in memory at a time; of `from` a file of them.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pickle
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ..data.refusal import Refused, refuse

SHARD_BYTES = 4 << 30  # of a file of the model folder that `from` writes
LARGEST_COMPANION = 64 << 20  # bytes of a tokenizer's file
OPTIMIZERS = ("optimizer", "optim")  # first parts of names that are no weights


# --- what we read: model folders, and checkpoints of runs ---------------------------------------------------------


class Stored:
    """Tensors by name, each made when it is asked for."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        self.makers: dict[str, Callable[[], torch.Tensor]] = {}

    def add(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], make: Callable[[], torch.Tensor]) -> None:
        self.shapes[name], self.makers[name] = (dtype, shape), make


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        refuse(file, f"cannot be read as safetensors: {error}")


DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
          "BOOL": torch.bool}


def dtype_of(file: Path, name: str, stored: str) -> torch.dtype:
    return DTYPES[stored] if stored in DTYPES else refuse(
        file, f"tensor {name} has the dtype {stored}; accepted are {', '.join(DTYPES)}")


def model_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if not index.is_file():
        refuse(folder, "has neither state.json (a checkpoint of a run) nor model.safetensors, nor its index; give the "
                       "folder of a model, or RUN/checkpoints/STEP")
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        refuse(index, f"is no index of safetensors files ({error!r})")
    for name in names:
        if not isinstance(name, str) or "/" in name or not (folder / name).is_file():
            refuse(index, f"names {name!r}, which is no file beside it; fetch it")
    return [folder / name for name in sorted(names)]


def stored_model(folder: Path) -> dict[str, Stored]:
    found = Stored()
    for file in model_files(folder):
        with opened(file) as tensors:
            for name in tensors.keys():
                piece = tensors.get_slice(name)

                def make(file: Path = file, name: str = name) -> torch.Tensor:
                    with opened(file) as again:
                        tensor: torch.Tensor = again.get_tensor(name)
                        return tensor.clone()

                found.add(name, dtype_of(file, name, piece.get_dtype()), tuple(piece.get_shape()), make)
    return {"model": found}


WHATS = {"master": ("model", ""), "exp_avg": ("optimizer", "exp_avg"), "exp_avg_sq": ("optimizer", "exp_avg_sq")}


def stored_checkpoint(folder: Path) -> dict[str, Stored]:
    """Pieces of ranks put together (src/run/train/checkpoint_pieces.h): rows, or columns where `transposed`."""
    try:
        state = json.loads((folder / "state.json").read_text())
        files = [folder / Path(one["name"]).name for one in state["files"]]
        steps = float(state["optimizer"]["steps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        refuse(folder / "state.json", f"is not the state of a checkpoint ({error!r})")
    pieces: dict[str, list[tuple[Path, str, dict[str, Any]]]] = collections.defaultdict(list)
    for file in files:
        with opened(file) as tensors:
            for key, text in (tensors.metadata() or {}).items():
                if key.endswith("]"):
                    pieces[key[:key.rindex("[")]].append((file, key, json.loads(text)))
    weights, optimizer = Stored(), Stored()
    for name, parts in pieces.items():
        whole = tuple(parts[0][2]["shape"])
        along = 1 if parts[0][2]["transposed"] else 0
        held = 0  # rows from the first on that some piece has
        for _, key, said in sorted(parts, key=lambda part: int(part[2]["rows"][0])):
            begin, end = said["rows"]
            if tuple(said["shape"]) != whole or begin > held:
                refuse(folder, f"no file has row {held} of {name} ({key}): the checkpoint is damaged")
            held = max(held, end)
        if held != whole[along]:
            refuse(folder, f"no file has row {held} of {name}: the checkpoint is damaged")
        for what, (_, state_name) in WHATS.items():
            with opened(parts[0][0]) as tensors:
                dtype = dtype_of(parts[0][0], name, tensors.get_slice(f"{what}:{parts[0][1]}").get_dtype())

            def make(what: str = what, parts: list[tuple[Path, str, dict[str, Any]]] = parts,
                     dtype: torch.dtype = dtype, whole: tuple[int, ...] = whole, along: int = along) -> torch.Tensor:
                together = torch.empty(whole, dtype=dtype)
                for file, key, said in parts:
                    with opened(file) as tensors:
                        begin, end = said["rows"]
                        piece = tensors.get_tensor(f"{what}:{key}")
                        together.narrow(along, begin, end - begin).copy_(piece.t() if along else piece)
                return together

            if what == "master":
                weights.add(name, dtype, whole, make)
            else:
                optimizer.add(f"state.{name}.{state_name}", dtype, whole, make)
        optimizer.add(f"state.{name}.step", torch.float32, (), lambda: torch.tensor(steps))
    return {"model": weights, "optimizer": optimizer}


def stored_in(folder: Path) -> dict[str, Stored]:
    if not folder.is_dir():
        refuse(folder, "is not there")
    return stored_checkpoint(folder) if (folder / "state.json").is_file() else stored_model(folder)


# --- to -----------------------------------------------------------------------------------------------------------


class LazyPlanner(DefaultSavePlanner):
    """Its state dict has shapes; a tensor is made when it is written."""

    def __init__(self, makers: dict[str, Callable[[], torch.Tensor]]) -> None:
        super().__init__()
        self.makers = makers

    def lookup_object(self, index: metadata.MetadataIndex) -> Any:
        return self.makers[index.fqn]()


def new_folder(out: Path) -> Path:
    """A folder beside `out`, which is not there yet, to be renamed when it is whole."""
    if out.exists() or out.is_symlink():
        refuse(out, "is there already; name a new folder (nothing is overwritten)")
    out.parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{out.name}.", suffix=".partial", dir=out.parent))


@contextmanager
def placed(out: Path) -> Iterator[Path]:
    """What is written in it is `out` when all of it is there, and else is gone."""
    partial = new_folder(out)
    try:
        yield partial
        os.chmod(partial, 0o777 & ~umask())
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def alone() -> Iterator[None]:
    """Without a process group DCP warns that it is not distributed, and torch of its own parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def to_dcp(source: Path, out: Path, prefix: str = "model") -> list[str]:
    """Writes the DCP folder `out` of a model folder, or a run's checkpoint; gives what to tell."""
    groups = stored_in(source)
    if prefix != "model":
        groups[prefix] = groups.pop("model")
    state: dict[str, Any] = {}
    makers: dict[str, Callable[[], torch.Tensor]] = {}
    for group, stored in groups.items():
        # A placeholder has a tensor's shape and dtype and no memory.
        holders = {name: torch.empty((), dtype=dtype).expand(shape) for name, (dtype, shape) in stored.shapes.items()}
        for name, make in stored.makers.items():
            makers[f"{group}.{name}" if group else name] = make
        if group:
            state[group] = nested(holders) if group == "optimizer" else holders
        else:
            state.update(holders)
    with placed(out) as partial, alone():
        save(state, storage_writer=filesystem.FileSystemWriter(partial), planner=LazyPlanner(makers))
    weights = len(groups[prefix].shapes)
    said = [f"{out}: {weights} weights" + (f" as {prefix}.NAME" if prefix else "")]
    if "optimizer" in groups:
        said.append(f"{out}: the optimizer's state as optimizer.state.NAME.exp_avg, exp_avg_sq and step; its parameter "
                    "groups (learning rate, decay) are yours: load with DefaultLoadPlanner(allow_partial_load=True)")
    return said


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """{"state": {NAME: {"exp_avg": ...}}} of "state.NAME.exp_avg"."""
    states: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for key, value in flat.items():
        name, _, what = key.removeprefix("state.").rpartition(".")
        states[name][what] = value
    return {"state": dict(states)}


# --- from ---------------------------------------------------------------------------------------------------------


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
    """A description of a tensor, whose chunks lie in it and are as many elements (DCP itself looks for no hole)."""
    try:
        chunks = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks]
        size = tuple(entry.size)
        inside = all(len(offsets) == len(sizes) == len(size) and
                     all(0 <= o and 0 <= n and o + n <= most for o, n, most in zip(offsets, sizes, size))
                     for offsets, sizes in chunks)
        return (isinstance(entry.properties.dtype, torch.dtype) and inside and len(set(chunks)) == len(chunks) and
                sum(torch.Size(sizes).numel() for _, sizes in chunks) == torch.Size(size).numel())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False


class Reader(filesystem.FileSystemReader):
    """Reads a stranger's folder: nothing of it runs, and no file beside it is opened."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        file = folder / ".metadata"
        if not file.is_file():
            refuse(folder, "has no .metadata: it is no folder of torch.distributed.checkpoint, or was not written to "
                           "its end")
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
                refuse(file, f"says that {getattr(index, 'fqn', index)} is in {path!r}, which is no file of this "
                             "folder")

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
            made = {key: torch.empty(self.entries[key].size, dtype=self.entries[key].properties.dtype) for key in keys}
            with alone():
                load(made, storage_reader=self, planner=DefaultLoadPlanner(flatten_state_dict=False))
        except CheckpointException as error:
            first = next(iter(error.failures.values()))[0] if error.failures else error
            refuse(self.folder, f"cannot be read: {first}")
        except RuntimeError as error:  # of a size that no memory has
            refuse(self.folder, f"cannot be read: {error}")
        return made


def weights_of(reader: Reader, prefix: str | None) -> tuple[dict[str, str], list[str]]:
    """{key: name of the weight}, and what is left out."""
    names = reader.names()
    if prefix is None:
        prefix = "model" if any(len(path) > 1 and path[0] == "model" for path in names.values()) else ""
    chosen: dict[str, str] = {}
    for key, path in names.items():
        if not prefix:
            if path[0].split(".")[0] not in OPTIMIZERS:
                chosen[key] = ".".join(path)
        elif len(path) > 1 and path[0] == prefix:
            chosen[key] = ".".join(path[1:])
        elif key.startswith(prefix + "."):
            chosen[key] = key[len(prefix) + 1:]
    left = collections.Counter(names[key][0].split(".")[0] for key in names if key not in chosen)
    left.update(key.split(".")[0] for key in reader.entries if key not in names)
    if not chosen:
        refuse(reader.folder, f"has no tensor below {prefix!r}; it has {list_of(left)}: name one with --prefix")
    if len(set(chosen.values())) < len(chosen):
        refuse(reader.folder, f"has two tensors of one name below {prefix!r}; name one group with --prefix")
    return chosen, [f"left out of {reader.folder}: {list_of(left)}"] if left else []


def list_of(counts: collections.Counter[str]) -> str:
    return ", ".join(f"{name} ({count} {'entry' if count == 1 else 'entries'})"
                     for name, count in sorted(counts.items()))


def companions(like: Path) -> list[Path]:
    """config.json, and what lies beside weights."""
    if not (like / "config.json").is_file():
        refuse(like, "has no config.json; give --like the folder of a model")
    skipped = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
    return [file for file in sorted(like.iterdir()) if file.is_file() and not file.name.startswith(".") and
            not file.name.endswith(skipped) and file.stat().st_size <= LARGEST_COMPANION]


def from_dcp(source: Path, out: Path, prefix: str | None = None, like: Path | None = None,
             shard_bytes: int = SHARD_BYTES) -> list[str]:
    """Writes the model folder `out` of the weights of a DCP folder; gives what to tell."""
    if not source.is_dir():
        refuse(source, "is not there")
    reader = Reader(source)
    chosen, said = weights_of(reader, prefix)
    beside = companions(like) if like else []
    shards: list[list[str]] = [[]]
    room, total = shard_bytes, 0
    for key in chosen:
        entry = reader.entries[key]
        size = entry.size.numel() * entry.properties.dtype.itemsize
        if shards[-1] and size > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(key)
        room, total = room - size, total + size
    one = len(shards) == 1
    with placed(out) as partial:
        index: dict[str, str] = {}
        for number, keys in enumerate(shards, 1):
            name = "model.safetensors" if one else f"model-{number:05}-of-{len(shards):05}.safetensors"
            found = reader.tensors(keys)
            try:
                save_file({chosen[key]: found[key] for key in keys}, partial / name, metadata={"format": "pt"})
            except SafetensorError as error:
                refuse(out, f"{name} cannot be written: {error}")
            index.update({chosen[key]: name for key in keys})
        if not one:
            (partial / "model.safetensors.index.json").write_text(
                json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2) + "\n")
        for file in beside:
            shutil.copyfile(file, partial / file.name)
    said.insert(0, f"{out}: {len(chosen)} weights")
    if not like:
        said.append(f"{out}: has no config.json, which a model folder needs: copy that of the model, or give --like")
    return said


def main(arguments: list[str] | None = None) -> int:
    """0: done; 2: refused, and the message says what to do."""
    command = argparse.ArgumentParser(prog="python -m paradyse.torch.dcp", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = command.add_subparsers(dest="way", required=True)
    one = ways.add_parser("to", help="write a folder of torch.distributed.checkpoint")
    one.add_argument("source", type=Path, help="a model folder with safetensors, or RUN/checkpoints/STEP")
    one.add_argument("out", type=Path, help="the new DCP folder")
    one.add_argument("--prefix", default="model", help="what stands before the weights' names (default: model; \"\": "
                                                       "nothing, as torchtitan's are)")
    one = ways.add_parser("from", help="read one")
    one.add_argument("source", type=Path, help="a DCP folder")
    one.add_argument("out", type=Path, help="the new model folder")
    one.add_argument("--prefix", help="what stands before the weights' names (default: model where the state dict has "
                                      "that; else nothing, and what is not the optimizer's is a weight)")
    one.add_argument("--like", type=Path, help="a model folder whose config.json and tokenizer are copied")
    found = command.parse_args(arguments)
    try:
        if found.way == "to":
            said = to_dcp(found.source, found.out, found.prefix)
        else:
            said = from_dcp(found.source, found.out, found.prefix, found.like)
        print("\n".join(said))
    except Refused as error:
        print(f"paradyse.torch.dcp: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"paradyse.torch.dcp: {error.filename or found.out}: {error.strerror}; make room, or name another place",
              file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
