# mypy: disable-error-code="import-untyped, import-not-found, misc"
"""Checkpoints of torch.distributed.checkpoint (DCP) from and to what paradyse reads and writes.

    python -m paradyse.torch.dcp to   MODEL_OR_CHECKPOINT DCP   a model folder, or checkpoints/000050 of a run
    python -m paradyse.torch.dcp from DCP MODEL                 a folder of safetensors, for --model; with
                                                                --optimizer also one for optimizer.path

    model.NAME                        weights, by their names in the model folder
    optimizer.state.NAME.exp_avg      with exp_avg_sq and step: of AdamW, by the names and in the shapes that
                                      torch.distributed.checkpoint.state_dict.get_optimizer_state_dict gives

One tensor is in memory at a time; of `from` a file of them.
"""

import argparse
import collections
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import save

from ..data.refusal import Refused, refuse
from .dcp_reader import Reader
from .dcp_stored import MOMENTS, Lazy, stored_checkpoint, stored_model

SHARD_BYTES = 4 << 30  # of a file of the model folder that `from` writes
LARGEST_COMPANION = 64 << 20  # bytes of a tokenizer's file
OPTIMIZERS = ("optimizer", "optim")  # first parts of names that are no weights


class LazyPlanner(DefaultSavePlanner):
    """Its state dict has shapes; a tensor is made when it is written."""

    def __init__(self, makers: dict[str, Callable[[], torch.Tensor]]) -> None:
        super().__init__()
        self.makers = makers

    def lookup_object(self, index: metadata.MetadataIndex) -> Any:
        return self.makers[index.fqn]()


@contextmanager
def alone() -> Iterator[None]:
    """Without a process group DCP warns that it is not distributed, and torch of its own parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def placed(out: Path) -> Iterator[Path]:
    """A folder that is `out`, which is not there yet, when all of it is written, and else is gone."""
    if out.exists() or out.is_symlink():
        refuse(out, "is there already; name a new folder (nothing is overwritten)")
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{out.name}.", suffix=".partial", dir=out.parent))
    try:
        yield unfinished
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(unfinished, 0o777 & ~mask)
        os.rename(unfinished, out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def to_dcp(source: Path, out: Path, prefix: str = "model") -> list[str]:
    """Writes the DCP folder `out` of a model folder, or a run's checkpoint; gives what to tell."""
    if not source.is_dir():
        refuse(source, "is not there")
    moments: dict[str, dict[str, Lazy]] = {}
    if (source / "state.json").is_file():
        weights, moments = stored_checkpoint(source)
    else:
        weights = stored_model(source)
    holders: dict[str, Any] = {name: one.holder for name, one in weights.items()}
    state = {prefix: holders} if prefix else holders
    makers = {f"{prefix}.{name}" if prefix else name: one.make for name, one in weights.items()}
    said = [f"{out}: {len(weights)} weights" + (f" as {prefix}.NAME" if prefix else "")]
    if moments:
        state["optimizer"] = {"state": {name: {what: one.holder for what, one in made.items()}
                                        for name, made in moments.items()}}
        makers |= {f"optimizer.state.{name}.{what}": one.make
                   for name, made in moments.items() for what, one in made.items()}
        said.append(f"{out}: the optimizer's state as optimizer.state.NAME.exp_avg, exp_avg_sq and step; its "
                    "parameter groups (learning rate, decay) are yours: load with "
                    "DefaultLoadPlanner(allow_partial_load=True)")
    with placed(out) as unfinished, alone():
        save(state, storage_writer=filesystem.FileSystemWriter(unfinished), planner=LazyPlanner(makers))
    return said


def weights_of(reader: Reader, prefix: str | None) -> dict[str, str]:
    """{key: name of the weight}."""
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
    if not chosen:
        refuse(reader.folder, f"has no tensor below {prefix!r}; it has {entries_of(reader, ())}: name one "
                              "with --prefix")
    if "__metadata__" in chosen.values():
        refuse(reader.folder, "has a tensor of the name __metadata__, which no file of safetensors can have")
    if len(set(chosen.values())) < len(chosen):
        refuse(reader.folder, f"has two tensors of one name below {prefix!r}; name one group with --prefix")
    return chosen


def entries_of(reader: Reader, taken: Container[str]) -> str:
    """"optimizer (7 entries)": what is not taken, by the first part of names."""
    names = reader.names()
    left = collections.Counter(names.get(key, (key,))[0].split(".")[0]
                               for key in reader.entries if key not in taken)
    return ", ".join(f"{name} ({count} {'entry' if count == 1 else 'entries'})"
                     for name, count in sorted(left.items()))


def moments_of(reader: Reader, weights: dict[str, str]) -> tuple[dict[str, dict[str, str]], int]:
    """{"exp_avg": {key: name of the weight}, "exp_avg_sq", "step": the same} of AdamW, and its steps."""
    states: dict[str, dict[str, str]] = collections.defaultdict(dict)  # name, what it is -> key
    for key, path in reader.names().items():
        if found := re.fullmatch(rf"(?:{'|'.join(OPTIMIZERS)})\.state\.(.+)\.([^.]+)", ".".join(path)):
            states[found[1]][found[2]] = key
    keys = {name: key for key, name in weights.items()}

    def refuse_state(what: str) -> NoReturn:
        refuse(reader.folder, f"optimizer.state {what}: leave --optimizer out, and moments begin as zeros")

    if not states:
        refuse_state("is not in it, as get_optimizer_state_dict gives it (optimizer.state.NAME.exp_avg)")
    for name, state in states.items():
        if set(state) != {*MOMENTS, "step"}:
            refuse_state(f"of {name} has {', '.join(sorted(state))}, but that of AdamW is exp_avg, "
                         "exp_avg_sq, step")
        if name not in keys:
            refuse_state(f"is of {name}, which is none of the weights that are taken (--prefix)")
        for what in MOMENTS:
            shape, wanted = (list(reader.entries[key].size) for key in (state[what], keys[name]))
            if shape != wanted:
                refuse_state(f"has {what} of {name} in the shape {shape}, but the weight has {wanted}")
        if (shape := list(reader.entries[state["step"]].size)) not in ([], [1]):
            refuse_state(f"has step of {name} in the shape {shape}, but it is one number")
    read = reader.tensors([state["step"] for state in states.values()])
    steps = {name: float(read[state["step"]].sum()) for name, state in states.items()}
    first, count = next(iter(steps.items()))
    for name, other in steps.items():
        if other != count:
            refuse_state(f"has {count:g} steps of {first}, but {other:g} of {name}; a run has one number")
    if not (count >= 1 and count.is_integer()):
        refuse_state(f"has {count:g} steps of {first}, which is no whole number from 1 on")
    return ({what: {state[what]: name for name, state in states.items()} for what in (*MOMENTS, "step")},
            int(count))


def companions(like: Path) -> list[Path]:
    """config.json, and what lies beside weights."""
    if not (like / "config.json").is_file():
        refuse(like, "has no config.json; give --like the folder of a model")
    skipped = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
    return [file for file in sorted(like.iterdir()) if file.is_file() and not file.name.startswith(".") and
            not file.name.endswith(skipped) and file.stat().st_size <= LARGEST_COMPANION]


def write_tensors(folder: Path, reader: Reader, chosen: dict[str, str], shard_bytes: int,
                  **says: str) -> None:
    """Safetensors of {key: name}, with an index where files are several; `says`: in their metadata."""
    shards: list[list[str]] = [[]]
    room, total = shard_bytes, 0
    for key in chosen:
        entry = reader.entries[key]
        size = entry.bytes
        if shards[-1] and size > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(key)
        room, total = room - size, total + size
    index: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for number, keys in enumerate(shards, 1):
        part = f"-{number:05}-of-{len(shards):05}" if len(shards) > 1 else ""
        name = f"model{part}.safetensors"
        found = {chosen[key]: tensor for key, tensor in reader.tensors(keys).items()}
        try:
            save_file(found, folder / name, metadata={"format": "pt", **says})
        except SafetensorError as error:
            refuse(folder, f"{name} cannot be written: {error}")
        index |= dict.fromkeys(found, name)
    if len(shards) > 1:
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2) + "\n")


def from_dcp(source: Path, out: Path, prefix: str | None = None, like: Path | None = None,
             shard_bytes: int = SHARD_BYTES, optimizer: bool = False) -> list[str]:
    """Writes the model folder `out` of the weights of a DCP folder, and with `optimizer` out/optimizer of the
    moments of AdamW, for optimizer.path; gives what to tell."""
    if not source.is_dir():
        refuse(source, "is not there")
    reader = Reader(source)
    chosen = weights_of(reader, prefix)
    moments, steps = moments_of(reader, chosen) if optimizer else ({}, 0)
    beside = companions(like) if like else []
    with placed(out) as unfinished:
        write_tensors(unfinished, reader, chosen, shard_bytes)
        for what in MOMENTS if optimizer else ():
            write_tensors(unfinished / "optimizer" / what, reader, moments[what], shard_bytes,
                          optimizer="AdamW", steps=str(steps))
        for file in beside:
            shutil.copyfile(file, unfinished / file.name)
    said = [f"{out}: {len(chosen)} weights"]
    if moments:
        said.append(f"{out}/optimizer: moments of {len(moments['step'])} weights after {steps} steps of AdamW"
                    f": train with optimizer.path = {out}/optimizer, and the learning rate, betas, eps and "
                    "weight decay that they had")
    if left := entries_of(reader, {*chosen, *(key for of_weights in moments.values() for key in of_weights)}):
        said.append(f"left out of {reader.folder}: {left}")
    if not like:
        said.append(f"{out}: has no config.json, which a model folder needs: copy that of the model, or give "
                    "--like")
    return said


def main(arguments: list[str] | None = None) -> int:
    """0: done; 2: refused, and the message says what to do."""
    command = argparse.ArgumentParser(prog="python -m paradyse.torch.dcp", description=__doc__,
                                      formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = command.add_subparsers(dest="way", required=True)
    one = ways.add_parser("to", help="write a folder of torch.distributed.checkpoint")
    one.add_argument("source", type=Path, help="a model folder with safetensors, or RUN/checkpoints/STEP")
    one.add_argument("out", type=Path, help="the new DCP folder")
    one.add_argument("--prefix", default="model",
                     help="what stands before the weights' names (default: model; \"\": nothing, as "
                          "torchtitan's are)")
    one = ways.add_parser("from", help="read one")
    one.add_argument("source", type=Path, help="a DCP folder")
    one.add_argument("out", type=Path, help="the new model folder")
    one.add_argument("--prefix",
                     help="what stands before the weights' names (default: model where the state dict has "
                          "that; else nothing, and what is not the optimizer's is a weight)")
    one.add_argument("--like", type=Path, help="a model folder whose config.json and tokenizer are copied")
    one.add_argument("--optimizer", action="store_true",
                     help="also write MODEL/optimizer: the moments of AdamW, for optimizer.path of a run")
    found = command.parse_args(arguments)
    try:
        if found.way == "to":
            said = to_dcp(found.source, found.out, found.prefix)
        else:
            said = from_dcp(found.source, found.out, found.prefix, found.like, optimizer=found.optimizer)
        print("\n".join(said))
    except Refused as error:
        print(f"paradyse.torch.dcp: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"paradyse.torch.dcp: {error.filename or found.out}: {error.strerror}; make room, or name "
              "another place", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
