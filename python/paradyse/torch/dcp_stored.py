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

from ..data.json_file import json_file
from ..data.refusal import refuse

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


def stored_model(folder: Path) -> dict[str, Lazy]:
    found = {}
    for file in model_files(folder):
        with opened(file) as tensors:
            for name in tensors.keys():
                mapped = tensors.get_tensor(name)  # which reads nothing yet
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
                    said = json.loads(text)
                    pieces[key[:key.rindex("[")]].append(
                        Piece(range(*said["rows"]), file, key, said["transposed"], tuple(said["shape"])))
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


def stored_checkpoint(folder: Path) -> tuple[dict[str, Lazy], dict[str, dict[str, Lazy]]]:
    try:
        state = json.loads((folder / "state.json").read_text())
        files = [folder / Path(one["name"]).name for one in state["files"]]
        steps = float(state["optimizer"]["steps"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        refuse(folder / "state.json", f"is not the state of a checkpoint ({error!r})")
    weights, moments = {}, {}
    for name, parts in stored_pieces(folder, files).items():
        with opened(parts[0].file) as tensors:
            made = {what: lazy(tensors.get_tensor(f"{what}:{parts[0].key}").dtype, parts[0].whole,
                               partial(put_together, what, parts)) for what in ("master", *MOMENTS)}
        weights[name] = made.pop("master")
        moments[name] = {**made, "step": lazy(torch.float32, (), lambda: torch.tensor(steps))}
    return weights, moments
