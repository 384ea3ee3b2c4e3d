"""paradyse-data encode and decode: a text as ids, and ids as text, as `paradyse generate` takes and prints them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from .json_file import MOST
from .refusal import refuse
from .tokenizer import Tokenizer
from .utf8 import text_in

KEYS = ("tokens", "input_ids")
BLANKS = re.compile(r"\s*")
ACCEPTED = ('ids separated by blanks, a list a line; or JSON: lists of ids, or objects with them under "tokens" or '
            '"input_ids"')


def content_of(given: str) -> str:
    """Of a file, or, where it is "-", of standard input."""
    try:
        if given == "-":
            found = sys.stdin.buffer.read(MOST + 1)
        elif Path(given).is_dir():
            refuse(given, "is a folder; give a file, or - for standard input")
        else:
            with open(given, "rb") as file:
                found = file.read(MOST + 1)
    except OSError as error:
        refuse(given, f"cannot be read: {error.strerror}; give a file, or - for standard input")
    if len(found) > MOST:
        refuse(name_of(given), f"has more than {MOST} bytes; split it")
    return text_in(found, name_of(given)).removeprefix("\ufeff")


def name_of(given: str) -> str:
    return "standard input" if given == "-" else given


def encoded(tokenizer: Tokenizer, text: str, special: bool, as_json: bool) -> str:
    ids = tokenizer.texts([text])[0] if special else tokenizer.bare(text)
    return json.dumps({"tokens": ids}) if as_json else " ".join(map(str, ids))


def decoded(tokenizer: Tokenizer, content: str, where: str, skip_special: bool, as_json: bool) -> list[str]:
    """The text of each list of ids."""
    known, texts = frozenset(tokenizer.vocabulary.values()), []
    for place, ids in id_lists(content, where):
        for number, one in enumerate(ids):
            if one not in known:
                refuse(place, f"id {number} is {one}, for which the tokenizer of {tokenizer.folder} has no token (its "
                       f"ids: 0 to {tokenizer.vocab_size - 1}); give the tokenizer of the model that wrote it")
        text = tokenizer.text(ids, skip_special)
        texts.append(json.dumps({"text": text}) if as_json else text)
    return texts


def id_lists(content: str, where: str) -> list[tuple[str, list[int]]]:
    """Each with where it stands."""
    if content.lstrip()[:1] in ("{", "["):
        return [(place, ids_of(value, place)) for place, value in json_values(content, where)]
    found = []
    for number, line in enumerate(content.split("\n")[:-1] if content.endswith("\n") else content.split("\n"), 1):
        words = line.split()
        wrong = next((word for word in words if not (word.isascii() and word.isdecimal() and len(word) <= 18)), None)
        if wrong is not None:
            refuse(f"{where}:{number}", f"{wrong[:40]!r} is no id; accepted are {ACCEPTED}")
        found.append((f"{where}:{number}", [int(word) for word in words]))
    return found


def json_values(content: str, where: str) -> list[tuple[str, Any]]:
    """Values one after the other: of a line each, or of more as `generate --json` prints one."""
    decoder, at, line = json.JSONDecoder(), 0, 1
    found: list[tuple[str, Any]] = []
    while True:
        begin, at = at, BLANKS.match(content, at).end()  # type: ignore[union-attr]  # it always matches
        line += content.count("\n", begin, at)
        if at == len(content):
            return found
        place, begin = f"{where}:{line}", at
        try:
            value, at = decoder.raw_decode(content, at)
            line += content.count("\n", begin, at)
        except (ValueError, RecursionError) as error:
            refuse(place, f"is not JSON ({error}); accepted are {ACCEPTED}")
        found.append((place, value))


def ids_of(value: Any, place: str) -> list[int]:
    if isinstance(value, dict):
        value = next((value[key] for key in KEYS if value.get(key) is not None), None)
    if not isinstance(value, list) or any(type(one) is not int or one < 0 for one in value):
        refuse(place, f"has no list of ids; accepted are {ACCEPTED}")
    return value
