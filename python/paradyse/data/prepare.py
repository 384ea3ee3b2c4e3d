"""paradyse-data prepare: makes a prepared folder, shard by shard, in several processes, and goes on where it stopped.

A shard is finished when OUT/.prepare/NAME.json is there, which is written after the shard's .idx.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .container import replace_file
from .files import DataFile
from .folder import ShardWriter, remove_partial, write_head
from .json_file import json_file
from .maker import Maker, Options
from .plan import LOCK, WORK, Plan, keep, planned, state_of
from .progress import Progress
from .records import Unit
from .refusal import Refused, refuse
from .tally import Tally, number
from .tokenizer import Tokenizer, json_sha256

Load = Callable[[Options], Tokenizer]


def load(options: Options) -> Tokenizer:
    return Tokenizer(options.tokenizer, options.chat_template)


class Interrupted(Exception):
    """By Ctrl-C; the folder can be gone on with."""


def prepare(options: Options, out: Path, processes: int = 1, load: Load = load) -> list[str]:
    """Makes the folder `out`, or what is missing of it.  Returns lines that say what is in it."""
    tokenizer = load(options)  # its faults come first
    end_id = tokenizer.end_id(options.end_id)
    plan = planned(options, out)
    if plan is None:
        return [f"{out}: is prepared already, by these options from these files; nothing to do"]
    (out / WORK).mkdir(parents=True, exist_ok=True)
    with only_one(out):
        keep(plan, out)
        remove_partial(out)
        missing = [number for number in range(len(plan.shards)) if finished(out, number) is None]
        progress = Progress(plan.bytes, sum(size_of(plan, number) for number in set(range(len(plan.shards))) - {*missing}))
        try:
            if processes == 1 or len(missing) < 2:
                here(plan, options, out, missing, tokenizer, progress)
            else:
                apart(plan, options, out, missing, min(processes, len(missing)), load, progress)
        except KeyboardInterrupt:
            done = sum(finished(out, number) is not None for number in range(len(plan.shards)))
            raise Interrupted(f"interrupted: {out} has {done} of {number_of(plan)}; the same command continues") from None
        finally:
            remove_partial(out)  # of processes that were ended
            progress.end()
        return finish(plan, options, out, tokenizer, end_id)


@contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Of two commands that write the same folder the second is refused."""
    with open(out / WORK / LOCK, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refuse(out, "is being written by another paradyse-data prepare; wait for its end, or stop it")
        except OSError as error:  # a file system without locks
            print(f"paradyse-data: {out}: cannot be locked ({error.strerror}): take care that no other paradyse-data "
                  "prepare writes it at the same time, since nothing would stop it", file=sys.stderr)
        yield


def number_of(plan: Plan) -> str:
    return number(len(plan.shards), "shard")


def size_of(plan: Plan, shard: int) -> int:
    return sum(unit.size for unit in plan.shards[shard])


def name_of(shard: int) -> str:
    return f"{shard:05}"


def finished(out: Path, shard: int) -> dict[str, Any] | None:
    """The record of a finished shard."""
    path = out / WORK / f"{name_of(shard)}.json"
    if not path.is_file():
        return None
    record = json_file(path, "remove it: the shard is then written again")
    whole = record["shard"] is None or (out / f"{name_of(shard)}.idx").is_file()
    return record if whole else None


def make_shard(maker: Maker, units: list[Unit], out: Path, shard: int, progress: Callable[[int, int], None]) -> None:
    maker.tally = Tally()
    writer = ShardWriter(out / name_of(shard), maker.tokenizer.vocab_size)
    try:
        for unit in units:
            for document in maker.documents(unit, progress):
                writer.add(document)
        entry = writer.finish()
    except BaseException:
        writer.discard()
        raise
    record = {"shard": entry, "tally": maker.tally.to_json()}
    replace_file(out / WORK / f"{name_of(shard)}.json", json.dumps(record).encode())


def expect_unchanged(file: DataFile, state: list[Any]) -> None:
    if state_of(file.path) != state:
        refuse(file.path, "changed while it was prepared; remove the folder to begin anew")


def here(plan: Plan, options: Options, out: Path, missing: list[int], tokenizer: Tokenizer, progress: Progress) -> None:
    """Makes shards in this process."""
    maker = Maker(options, plan.files, tokenizer)
    bytes_done, tokens_done = progress.already, 0
    for shard in missing:
        made = 0

        def told(read: int, tokens: int) -> None:
            nonlocal bytes_done, made
            bytes_done, made = bytes_done + read, tokens
            progress.show(bytes_done, tokens_done + made)

        make_shard(maker, plan.shards[shard], out, shard, told)
        tokens_done += made


class Worker:
    """What a process of several has."""

    maker: Maker
    out: Path
    bytes_done: Any  # shared by all
    tokens_done: Any


def begin_worker(options: Options, files: list[DataFile], out: Path, load: Load, bytes_done: Any, tokens_done: Any) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes, not threads
    threading.Thread(target=end_with_parent, daemon=True).start()
    Worker.maker, Worker.out = Maker(options, files, load(options)), out
    Worker.bytes_done, Worker.tokens_done = bytes_done, tokens_done


def end_with_parent() -> None:
    """No orphan writes on."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def work(units: list[Unit], shard: int) -> None:
    before = 0

    def told(read: int, tokens: int) -> None:
        nonlocal before
        with Worker.bytes_done.get_lock():
            Worker.bytes_done.value += read
        with Worker.tokens_done.get_lock():
            Worker.tokens_done.value += tokens - before
        before = tokens

    make_shard(Worker.maker, units, Worker.out, shard, told)


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def apart(plan: Plan, options: Options, out: Path, missing: list[int], processes: int, load: Load,
          progress: Progress) -> None:
    """Makes shards in processes of their own."""
    context = multiprocessing.get_context("spawn")
    bytes_done, tokens_done = context.Value("q", progress.already), context.Value("q", 0)
    pool = ProcessPoolExecutor(processes, context, begin_worker,
                               (options, plan.files, out, load, bytes_done, tokens_done))
    try:
        with interrupts_ignored():  # processes inherit that; this one says what happens
            waiting = {pool.submit(work, plan.shards[shard], shard) for shard in missing}
        while waiting:
            done, waiting = wait(waiting, 0.5, FIRST_COMPLETED)
            for one in done:
                one.result()
            progress.show(bytes_done.value, tokens_done.value)
    except BrokenProcessPool:
        raise Refused(f"{out}: a process was ended from outside, maybe for want of memory; give fewer --processes. The "
                      "same command continues") from None
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def finish(plan: Plan, options: Options, out: Path, tokenizer: Tokenizer, end_id: int | None) -> list[str]:
    tally, shards = Tally(), []
    tally.add(plan.tally)
    for shard in range(len(plan.shards)):
        record = finished(out, shard)
        assert record is not None, f"shard {shard} was made, but its record is not there"
        tally.add(Tally.from_json(record["tally"]))
        if record["shard"] is not None:
            shards.append(record["shard"])
    for file, state in zip(plan.files, plan.asked["inputs"]):
        expect_unchanged(file, state)
    if not shards:
        raise Refused("\n  ".join([f"{', '.join(options.inputs)}: has no document to use; change the data or the options",
                                   *tally.lines()]))
    write_head(out, vocab_size=tokenizer.vocab_size, end_id=end_id,
               tokenizer={"name": tokenizer.name, "sha256": json_sha256(options.tokenizer),
                          "files_sha256": plan.asked["tokenizer_sha256"]},
               sources=[file.path for file in plan.files], shards=shards, counts=tally.to_json(), **plan.asked)
    shutil.rmtree(out / WORK)
    return summary(out, tally, shards, options, tokenizer, plan.files)


def summary(out: Path, tally: Tally, shards: list[dict[str, Any]], options: Options, tokenizer: Tokenizer,
            files: list[DataFile]) -> list[str]:
    lines = [f"{out}: {number(tally.documents, 'document')}, {number(tally.tokens, 'token')}, "
             f"{number(tally.labels, 'label')} in {number(len(shards), 'shard')} from {number(len(files), 'file')}"]
    if tally.labels < tally.tokens - tally.documents or options.loss != "assistant":
        how = {"all": "all tokens of chats (--loss all)", "last": "the last turn of the assistant (--loss last)"}.get(
            options.loss, "completions, and the assistant's turns by " + (
                "the template's generation marks" if tokenizer.marks else "differencing"))
        lines.append(f"loss: {how}")
    return [lines[0], *(f"  {line}" for line in [*lines[1:], *tally.lines()])]
