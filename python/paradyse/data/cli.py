"""The command paradyse-data."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any, TextIO

from .chat import LOSSES
from .container import named, replace_file
from .convert import TARGETS, convert
from .corpus import opened_corpus
from .document import expect_ids
from .folder import Prepared
from .histogram import FIRST, svg_of
from .ids import content_of, decoded, encoded, name_of
from .limits import TOO_LONG
from .maker import Options
from .prepare import Interrupted, prepare
from .refusal import Refused, refuse
from .show import document_at, shown
from .stats import stats_of
from .tally import Tally
from .tokenizer import Tokenizer, digest
from .utf8 import CONVERT, escaped, is_text, text_in, word

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


REMEDIES = {**dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "; make room, or name another place"),
            **dict.fromkeys((errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EROFS), "; name another place")}


def main(arguments: list[str] | None = None) -> int:
    """0: done; 2: refused, and the message says what to do; 130: interrupted."""
    command = parser()
    found = command.parse_args(arguments)
    try:
        for line in found.run(found):
            if "verbatim" in found:  # a terminal, though, does not do what is in a text
                tell(printable(line) if sys.stdout.isatty() else line)
            else:
                tell(line if "json" in found and found.json else fitted(escaped(line), sys.stdout))
        with named(Path("standard output")):
            sys.stdout.flush()
    except Refused as error:
        print(fitted(f"paradyse-data: {printable(str(error))}", sys.stderr), file=sys.stderr)
        return 2
    except (Interrupted, KeyboardInterrupt) as error:
        again = shlex.join(["paradyse-data", *(sys.argv[1:] if arguments is None else arguments)])
        print(f"paradyse-data: {error or 'interrupted'}" + (f":\n  {again}" if str(error) else ""), file=sys.stderr)
        return 130
    except BrokenPipeError:  # as by `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk, a folder that must not be written
        remedy = REMEDIES.get(error.errno or 0, "")
        print(f"paradyse-data: {error.filename or found.__dict__.get('out')}: {error.strerror}{remedy}", file=sys.stderr)
        return 2
    return 0


def tell(line: str) -> None:
    try:
        with named(Path("standard output")):
            print(line)
    except UnicodeEncodeError as error:
        refuse("standard output", f"takes {error.encoding}, which has no {error.object[error.start]!a}; set "
               "PYTHONIOENCODING=utf-8")


def printable(text: str) -> str:
    """With control characters as \\x1b, so that no name of a stranger moves the cursor or hides a line."""
    return "".join(letter if letter in "\n\t" or not (letter < " " or "\x7f" <= letter < "\xa0")
                   else f"\\x{ord(letter):02x}" for letter in escaped(text))


def fitted(text: str, to: TextIO) -> str:
    """In lines that fit where a terminal shows them."""
    if not to.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(line if len(line) <= width else textwrap.fill(
        line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n"))


def parser() -> argparse.ArgumentParser:
    command = argparse.ArgumentParser("paradyse-data", description="Text, chats and sequences as token ids with label "
                                      "masks, memory-mapped. docs/reference/data.md has the format.")
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    add_prepare(commands)
    one = commands.add_parser("stats", help="lengths of documents", description="Lengths of documents, as a histogram.")
    one.add_argument("inputs", nargs="+", metavar="DIR|FILE", help="prepared folder, .jsonl of tokens, prefix of "
                     "Megatron's .bin and .idx, .bin of llm.c")
    one.add_argument("--limit", type=whole(2), metavar="TOKENS", help="say what this limit would cut")
    one.add_argument("--svg", metavar="FILE", help="write the histogram as a picture")
    one.add_argument("--force", action="store_true", help="let --svg replace a file that is no such picture")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=run_stats)
    one = commands.add_parser("inspect", help="the tokens of a document", description="The tokens of a document; an "
                              "asterisk is at each whose label counts.")
    one.add_argument("input", metavar="DIR|FILE", help="as stats takes it")
    one.add_argument("--document", type=whole(0), default=0, metavar="I", help="number of the document, from 0")
    one.add_argument("--from", type=whole(0), default=0, dest="begin", metavar="TOKEN", help="first token shown")
    one.add_argument("--count", type=whole(1), default=200, metavar="TOKENS", help="tokens shown (default 200)")
    one.add_argument("--tokenizer", metavar="DIR", help="decodes the ids (default: the folder that prepared them)")
    one.set_defaults(run=run_inspect)
    add_ids(commands)
    one = commands.add_parser("convert", help="token ids from one format into another", description="Token ids from one "
                              "format into another.")
    one.add_argument("inputs", nargs="+", metavar="DIR|FILE", help="as stats takes it")
    one.add_argument("--to", required=True, choices=TARGETS)
    one.add_argument("--out", required=True, metavar="PATH", help="a folder, a file, or the prefix of a pair")
    one.add_argument("--vocab-size", type=whole(1), metavar="IDS", help="ids of the vocabulary (default: what the input "
                     "says, or the largest id)")
    one.add_argument("--drop-labels", action="store_true", help="let all labels count where a format has no masks")
    one.set_defaults(run=lambda found: convert(found.inputs, found.to, Path(found.out), found.vocab_size,
                                               found.drop_labels))
    return command


def add_ids(commands: Any) -> None:
    for name, what, how, run in (
            ("encode", "a text as ids", "A text as token ids on one line, as paradyse generate --tokens takes them.",
             run_encode),
            ("decode", "ids as text", "The text of each list of token ids: lines of ids, as paradyse generate prints them, "
             "or JSON, as it prints with --json, or JSONL of ids.", run_decode)):
        one = commands.add_parser(name, help=what, description=how)
        one.add_argument("--tokenizer", required=True, metavar="DIR", help="folder of a tokenizer, or of a model with one")
        if name == "encode":
            one.add_argument("--text", metavar="TEXT", help="this text, in place of FILE")
            one.add_argument("--no-special-tokens", action="store_true", help="without those that the tokenizer adds, such "
                             "as BOS")
            one.add_argument("--json", action="store_true", help='print {"tokens": [...]}')
        else:
            one.add_argument("--skip-special-tokens", action="store_true", help="leave out BOS, EOS and the like")
            one.add_argument("--json", action="store_true", help='print {"text": "..."}, a line each')
        one.add_argument("file", nargs="?", metavar="FILE", help="file to read; - (default): standard input")
        one.set_defaults(run=run, verbatim=True)


def add_prepare(commands: Any) -> None:
    one = commands.add_parser("prepare", help="text, chats and sequences into a prepared folder", description="Makes "
                              "memory-mapped token ids and label masks. The same command continues after an interruption.")
    one.add_argument("--tokenizer", required=True, metavar="DIR", help="folder of a tokenizer, or of a model with one")
    one.add_argument("--input", required=True, nargs="+", metavar="PATH", help="files, folders and patterns of text, JSONL, "
                     "Parquet, FASTA and FASTQ; .gz and .zst of all but Parquet")
    one.add_argument("--out", required=True, metavar="DIR")
    one.add_argument("--processes", type=whole(1), default=1, metavar="N", help="the result does not depend on it "
                     "(default 1)")
    one.add_argument("--text-key", metavar="KEY", help="key of a row's text (default text)")
    one.add_argument("--messages-key", metavar="KEY", help="key of a row's chat (default messages)")
    one.add_argument("--loss", choices=LOSSES, default="assistant", help="of chats: on all turns of the assistant "
                     "(default), on its last one, on all tokens")
    one.add_argument("--chat-template", metavar="FILE", help="a Jinja template instead of the tokenizer's")
    one.add_argument("--template-args", type=json_object, default={}, metavar="JSON",
                     help='given to the chat template, as in {"enable_thinking": false}')
    one.add_argument("--end-id", default="auto", metavar="ID", help="after each text, completion and sequence: an id, none, "
                     "or auto, the tokenizer's eos_token (default)")
    kind = one.add_mutually_exclusive_group()
    kind.add_argument("--letters", action="store_true", help="FASTA and FASTQ: each letter is a token")
    kind.add_argument("--kmers", type=whole(1), metavar="K", help="FASTA and FASTQ: each K letters are a token")
    one.add_argument("--stride", type=whole(1), metavar="S", help="letters from one k-mer to the next (default K)")
    one.add_argument("--upper", action="store_true", help="FASTA and FASTQ: convert to upper case")
    one.add_argument("--max-tokens", type=whole(2), default=0, metavar="N", help="the longest document (default: no limit)")
    one.add_argument("--too-long", choices=TOO_LONG, default="cut", help="what happens to longer ones (default cut)")
    one.add_argument("--invalid", choices=("refuse", "replace"), default="refuse", help="bytes that are not UTF-8: an error "
                     "(default), or U+FFFD")
    one.add_argument("--shard-size", type=size, default=64 << 20, metavar="SIZE", help="of input for a shard (default 64MiB)")
    one.set_defaults(run=run_prepare)


def run_prepare(found: argparse.Namespace) -> list[str]:
    if found.stride and not found.kmers:
        refuse("--stride", "is for --kmers; give both or none")
    if found.upper and not (found.kmers or found.letters):
        refuse("--upper", "is for --letters and --kmers; give one of them, or none of both")
    for option in ("text_key", "messages_key", "end_id"):
        if getattr(found, option) is not None:
            word(getattr(found, option), f"--{option.replace('_', '-')}")
    if found.chat_template is not None:
        found.chat_template = text_of(found.chat_template)
    options = Options(found.tokenizer, tuple(found.input), found.text_key, found.messages_key, found.loss,
                      found.chat_template, found.template_args, found.end_id, 1 if found.letters else found.kmers or 0,
                      found.stride or 0, found.upper, found.max_tokens, found.too_long, found.invalid, found.shard_size)
    return prepare(options, Path(found.out), found.processes)


def run_stats(found: argparse.Namespace) -> list[str]:
    tally = Tally()
    if found.svg is not None:
        expect_ours(Path(found.svg), found.inputs, found.force)
    elif found.force:
        refuse("--force", "is for --svg; give both or none")
    stats = stats_of([opened_corpus(given, tally) for given in found.inputs], found.limit)
    if found.svg is not None:
        try:
            replace_file(Path(found.svg), svg_of(stats).encode())
        except OSError as error:
            refuse(found.svg, f"cannot be written: {error.strerror}")
    return [json.dumps(stats.to_json(), indent=1) if found.json else stats.text()]


def expect_ours(svg: Path, inputs: list[str], force: bool) -> None:
    """Refuses to replace an input, or what is no picture of stats."""
    if not os.path.lexists(svg):
        return
    if svg.exists() and any(svg.samefile(path) for one in inputs for path in (
            Path(one), Path(f"{one}.bin"), Path(f"{one}.idx")) if path.exists()):
        refuse(svg, "is an input, which --svg would replace; give another FILE")
    if force and not svg.is_dir():
        return
    begin = b""
    if svg.is_file():
        with named(svg), open(svg, "rb") as file:
            begin = file.read(len(FIRST))
    if begin != FIRST.encode():
        refuse(svg, "is there already, and is no picture of paradyse-data stats; give another FILE, or --force to replace "
               "it")


def run_inspect(found: argparse.Namespace) -> list[str]:
    corpus = opened_corpus(found.input, Tally())
    document = document_at(corpus, found.document)
    folder, says = found.tokenizer, []
    made_by = corpus.head if isinstance(corpus, Prepared) else {}
    if folder is None and made_by.get("options"):
        folder = made_by["options"]["tokenizer"] if Path(made_by["options"]["tokenizer"]).is_dir() else None
    if folder is not None and made_by.get("tokenizer"):
        template = (made_by.get("options") or {}).get("chat_template")
        if digest(folder, template) != made_by["tokenizer"]["files_sha256"]:
            if found.tokenizer is not None:
                refuse(folder, f"is another tokenizer than the one that made {found.input}: its files differ; give that of "
                       f"{made_by['tokenizer']['name']}")
            folder = None
    if folder is None:
        says = ["ids only: give --tokenizer DIR to see what they stand for"]
    pieces = None
    if folder is not None:
        tokenizer = Tokenizer(folder)
        expect_ids(document.part(found.begin, found.begin + found.count), tokenizer.vocab_size,
                   f"give the tokenizer that made the ids (--tokenizer; this is that of {folder})")
        pieces = tokenizer.pieces
    return [*says, *shown(document, found.document, pieces, found.begin, found.count)]


def run_encode(found: argparse.Namespace) -> list[str]:
    if found.text is not None and found.file is not None:
        refuse("--text", f"is given with the file {found.file}; give one of them")
    tokenizer = Tokenizer(found.tokenizer)
    text = content_of("-" if found.file is None else found.file) if found.text is None else word(found.text, "--text")
    return [encoded(tokenizer, text, not found.no_special_tokens, found.json)]


def run_decode(found: argparse.Namespace) -> list[str]:
    given = "-" if found.file is None else found.file
    return decoded(Tokenizer(found.tokenizer), content_of(given), name_of(given), found.skip_special_tokens, found.json)


def text_of(path: str) -> str:
    try:
        return text_in(Path(path).read_bytes(), path).replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        refuse(path, f"cannot be read: {error.strerror}; give the file of a template")


def whole(least: int) -> Any:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is no whole number from {least} on")
        return int(text)
    return parse


def size(text: str) -> int:
    number, unit = next(((text.removesuffix(unit), factor) for unit, factor in UNITS.items() if text.endswith(unit)),
                        (text, 1))
    if not number.isdecimal() or not int(number):
        raise argparse.ArgumentTypeError(f"{text} is no size; give bytes, or as in 64MiB")
    return int(number) * unit


def json_object(text: str) -> dict[str, Any]:
    if not is_text(text):
        raise argparse.ArgumentTypeError(f"{escaped(text)} is not UTF-8; {CONVERT}")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not JSON ({error})") from None
    if not is_text(json.dumps(found, ensure_ascii=False)):
        raise argparse.ArgumentTypeError(f"{text} has half of a surrogate pair (\\ud800 to \\udfff), which is not text")
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text} is no object of JSON")
    return found
