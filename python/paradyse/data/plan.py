"""What a prepare will do, decided before it begins and kept beside its shards, so that another can go on.

Shards are runs of units in the order of the input, of about Options.shard_bytes each.  They do not depend on how many
processes make them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .container import PARTIAL, replace_file
from .files import FASTA, FASTQ, DataFile, data_files
from .folder import FORMAT, HEAD_FILE, is_prepared, read_head
from .json_file import json_file
from .maker import Options
from .records import Unit, units_of
from .refusal import refuse
from .tally import Tally
from .tokenizer import digest

WORK = ".prepare"  # a folder in the result, until it is finished
LOCK = "lock"  # a file of it


@dataclass(frozen=True)
class Plan:
    asked: dict[str, Any]  # options, tokenizer and inputs: what must be the same to go on
    files: list[DataFile]
    shards: list[list[Unit]]
    tally: Tally  # files that are left out

    @property
    def bytes(self) -> int:
        return sum(unit.size for shard in self.shards for unit in shard)

    def to_json(self) -> dict[str, Any]:
        return {"asked": self.asked, "files": [asdict(file) for file in self.files],
                "shards": [[list(asdict(unit).values()) for unit in shard] for shard in self.shards],
                "tally": self.tally.to_json()}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Plan:
        return Plan(value["asked"], [DataFile(**file) for file in value["files"]],
                    [[Unit(*unit) for unit in shard] for shard in value["shards"]], Tally.from_json(value["tally"]))


def state_of(path: str) -> list[Any]:
    """By which a file is known to be the same."""
    found = Path(path).stat()
    return [path, found.st_size, found.st_mtime_ns]


def planned(options: Options, out: Path) -> Plan | None:
    """A new plan, or that of the interrupted prepare in `out`; None: it is finished.  Others are refused."""
    tally = Tally()
    files = data_files(list(options.inputs), tally, [out, Path(options.tokenizer)], {*options.keys.wanted()})
    for file in files:
        if file.kind in (FASTA, FASTQ) and not options.letters:
            refuse(file.path, f"is {file.kind}; say what its tokens are: --letters, or --kmers K")
        if file.kind not in (FASTA, FASTQ) and options.letters:
            refuse(file.path, f"is {file.kind}, and --letters and --kmers are for FASTA and FASTQ; prepare it by itself")
    asked = {"options": options.to_json(), "tokenizer_sha256": digest(options.tokenizer, options.chat_template),
             "inputs": [state_of(file.path) for file in files]}
    kept = out / WORK / "plan.json"
    if is_prepared(out):
        head = read_head(out)
        expect_same({key: head.get(key) for key in asked}, asked, out, "was made")
        return None
    if kept.is_file():
        plan = Plan.from_json(json_file(kept, "remove the folder and prepare anew"))
        expect_same(plan.asked, asked, out, "was begun")
        return plan
    if out.exists() and (not out.is_dir() or any(path.name != WORK for path in out.iterdir()) or (
            (out / WORK).exists() and not is_begun(out / WORK))):
        refuse(out, f"is there and is not of paradyse-data ({HEAD_FILE} of {FORMAT}); give another --out, or an empty "
               "folder")
    plan = Plan(asked, files, list(shards_of(files, options.shard_bytes)), tally)
    if not plan.shards:
        refuse(", ".join(options.inputs), "has no row to read: its files are empty")
    return plan


def is_begun(work: Path) -> bool:
    """Whether a prepare that was ended before it had a plan left it."""
    return work.is_dir() and all(path.name == LOCK or path.name.endswith(PARTIAL) for path in work.iterdir())


def keep(plan: Plan, out: Path) -> None:
    if not (out / WORK / "plan.json").is_file():
        replace_file(out / WORK / "plan.json", json.dumps(plan.to_json()).encode())


def shards_of(files: list[DataFile], most: int) -> Iterator[list[Unit]]:
    shard: list[Unit] = []
    size = 0
    for source, file in enumerate(files):
        for unit in units_of(source, file, most):
            if shard and size + unit.size > most:
                yield shard
                shard, size = [], 0
            shard.append(unit)
            size += unit.size
    if shard:
        yield shard


def expect_same(before: dict[str, Any], now: dict[str, Any], out: Path, how: str) -> None:
    """Refuses to mix two sets of documents, and says in what they differ."""
    differ = []
    old, new = before.get("options") or {}, now["options"]
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            differ.append(f"--{key.replace('_', '-')} {excerpt(old.get(key))}, now {excerpt(new.get(key))}")
    if before.get("tokenizer_sha256") != now["tokenizer_sha256"]:
        differ.append("a tokenizer with other files")
    files = {one[0]: one for one in before.get("inputs") or []}
    for one in now["inputs"]:
        if files.pop(one[0], None) != one:
            differ.append(f"{one[0]}, which is new or was changed since")
    differ += [f"{path}, which is not among the inputs now" for path in files]
    if differ:
        more = f" and {len(differ) - 4} more" if len(differ) > 4 else ""
        refuse(out, f"{how} with {'; '.join(differ[:4])}{more}; give the same again, or another --out, or remove the "
               "folder to begin anew")


def excerpt(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
