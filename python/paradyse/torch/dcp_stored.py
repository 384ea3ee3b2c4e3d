# mypy: disable-error-code="import-untyped, import-not-found, misc"
"""Tensors of model folders and of a run's checkpoints, each made when it is asked for."""

import collections
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from .._plan import file_xxh64
from ..data.json_file import json_file
from ..data.refusal import refuse
from .checksums import Number, sha256_of

FORMAT, VERSION = "paradyse-checkpoint", 1  # of state.json and the ranks' files
MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW, beside `step`


class Lazy(NamedTuple):
    """A tensor that is made when it is asked for."""

    holder: torch.Tensor  # has its shape and dtype, and no memory
    make: Callable[[], torch.Tensor]


def lazy(dtype: torch.dtype, shape: tuple[int, ...], make: Callable[[], torch.Tensor]) -> Lazy:
    return Lazy(torch.empty((), dtype=dtype).expand(shape), make)


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        refuse(file, f"cannot be read as safetensors: {error}")


def tensor_in(file: Path, name: str) -> torch.Tensor:
    with opened(file) as tensors:
        tensor: torch.Tensor = tensors.get_tensor(name)
        return tensor.clone()


def model_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if not index.is_file():
        refuse(folder, "has neither state.json (a checkpoint of a run) nor model.safetensors, nor its index; "
                       "give the folder of a model, or RUN/checkpoints/STEP")
    weight_map = json_file(index, "fetch it again").get("weight_map")
    if not isinstance(weight_map, dict):
        refuse(index, "is no index of safetensors files; fetch it again")
    for name in weight_map.values():
        if not isinstance(name, str) or "/" in name or not (folder / name).is_file():
            refuse(index, f"names {name!r}, which is no file beside it; fetch it")
    return [folder / name for name in sorted(set(weight_map.values()))]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def stored_model(folder: Path) -> dict[str, Lazy]:
    found: dict[str, Lazy] = {}
    for file in model_files(folder):
        with opened(file) as tensors:
            for name in tensors.keys():
                mapped = tensors.get_tensor(name)  # which reads nothing yet
                if name in found and not same(found[name].make(), mapped):
                    refuse(file, f"has {name!r}, which another file of the folder has with other values; "
                                 "remove the wrong one, or fetch the files of one model")
                found[name] = lazy(mapped.dtype, mapped.shape, partial(tensor_in, file, name))
    return found


class Piece(NamedTuple):
    """Rows of a weight in a rank's file, or its columns (src/run/train/checkpoint_pieces.h)."""

    rows: range
    file: Path
    key: str
    columns: bool
    whole: tuple[int, ...]


def stored_pieces(folder: Path, files: list[Path]) -> dict[str, list[Piece]]:
    """Of each weight, which cover it."""
    pieces: dict[str, list[Piece]] = collections.defaultdict(list)
    for file in files:
        with opened(file) as tensors:
            for key, text in (tensors.metadata() or {}).items():
                if key.endswith("]"):
                    try:
                        said = json.loads(text)
                        begin, end = said["rows"]
                        piece = Piece(range(begin, end), file, key, bool(said["transposed"]), tuple(said["shape"]))
                        most, least = piece.whole[piece.columns], min(piece.whole)
                    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
                        refuse(file, f"has a piece {key[:60]!r} that cannot be read ({error!r:.80}): the checkpoint is "
                                     "damaged")
                    if not 0 <= begin <= end <= most or least < 0:
                        refuse(file, f"has rows of {key[:60]!r} that no weight has: the checkpoint is damaged")
                    pieces[key[:key.rindex("[")]].append(piece)
    for name, parts in pieces.items():
        parts.sort(key=lambda part: part.rows.start)
        held = 0  # rows from the first on that some piece has
        for part in parts:
            if part.whole != parts[0].whole or part.rows.start > held:
                break
            held = max(held, part.rows.stop)
        if held != parts[0].whole[parts[0].columns] or any(part.whole != parts[0].whole for part in parts):
            refuse(folder, f"no file has row {held} of {name}: the checkpoint is damaged")
    return pieces


def put_together(what: str, parts: list[Piece]) -> torch.Tensor:
    together = None
    for part in parts:
        piece = tensor_in(part.file, f"{what}:{part.key}")
        together = torch.empty(part.whole, dtype=piece.dtype) if together is None else together
        here = together.narrow(int(part.columns), part.rows.start, len(part.rows))
        here.copy_(piece.t() if part.columns else piece)
    assert together is not None
    return together


def state_of(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint, whole as the program reads it (checkpoint_state.cc), with all files of it."""
    file = folder / "state.json"
    remedy = "give RUN/checkpoints/STEP of a run, or the checkpoint before it"
    state = json_file(file, f"it is not the state of a checkpoint: {remedy}", Number)
    if state.get("format") != FORMAT:
        refuse(file, f"is not the state of a checkpoint ({FORMAT}); {remedy}")
    if state.get("version") != VERSION:
        refuse(file, f"has format version {state.get('version')!r}, but this reads {VERSION}")
    digest = state.pop("sha256", None)
    try:
        whole = digest == sha256_of(state)
    except RecursionError:
        whole = False
    if not whole:
        refuse(file, f"does not have the content that it was written with: the checkpoint is damaged; {remedy}")
    try:
        names = [one["name"] for one in state["files"]]
        sizes = [(one["bytes"], one["xxh64"]) for one in state["files"]]
        ranks, steps = state["weight_domain"], state["optimizer"]["steps"]
    except (KeyError, TypeError) as error:
        refuse(file, f"is not the state of a checkpoint ({error!r}); {remedy}")
    if type(ranks) is not int or ranks < 1 or type(steps) is not int or steps < 0:
        refuse(file, f"has {steps!r} steps of {ranks!r} ranks; {remedy}")
    if names != [f"rank-{rank:05}.safetensors" for rank in range(ranks)]:
        refuse(file, f"lists {len(names)} files of {ranks} ranks that share the weights: the checkpoint is damaged")
    for name, (size, check) in zip(names, sizes):
        path = folder / name
        if not path.is_file():
            refuse(path, "is no file that can be read: the checkpoint is damaged")
        if path.stat().st_size != size:
            refuse(path, f"has {path.stat().st_size} bytes, but was written with {size}: the checkpoint is damaged")
        if (found := file_xxh64(str(path))) != check:
            refuse(path, f"has XXH64 {found}, but was written with {check}: the checkpoint is damaged")
    return state


def stored_checkpoint(folder: Path) -> tuple[dict[str, Lazy], dict[str, dict[str, Lazy]]]:
    state = state_of(folder)
    files, steps = [folder / one["name"] for one in state["files"]], float(state["optimizer"]["steps"])
    weights, moments = {}, {}
    for name, parts in stored_pieces(folder, files).items():
        with opened(parts[0].file) as tensors:
            made = {what: lazy(tensors.get_tensor(f"{what}:{parts[0].key}").dtype, parts[0].whole,
                               partial(put_together, what, parts)) for what in ("master", *MOMENTS)}
        weights[name] = made.pop("master")
        moments[name] = {**made, "step": lazy(torch.float32, (), lambda: torch.tensor(steps))}
    if not weights:
        refuse(folder, "has no weight: the checkpoint is damaged")
    return weights, moments
