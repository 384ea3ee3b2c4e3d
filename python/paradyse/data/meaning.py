"""What a row is: a text, or a chat.  What could be read in two ways is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .document import Place
from .keys import PREFERRED, lost_meaning, untrained, untrained_turn
from .refusal import refuse
from .tally import Tally

CHAT_KEYS = ("tools", "chat_template_kwargs")
PAIR = ("prompt", "completion")
ACCEPTED = "a row takes text, messages, or prompt and completion (another key of text: --text-key)"
IDS = ("tokens", "input_ids")
REMEDIES = {
    "conversations": 'is a chat in "conversations"; name the key with --messages-key conversations if its turns have '
                     "role and content; turns of from and value (ShareGPT) must be renamed first",
    "chosen": "is of preferences (chosen, rejected), which are not prepared; give messages, or prompt and completion",
    "instruction": "has an instruction; write prompt and completion, in the words with which the model will be asked",
}


@dataclass(frozen=True)
class Chat:
    """`first`: turns from this one on may count (prompt and completion of messages)."""

    messages: list[dict[str, Any]]
    first: int = 0
    tools: list[Any] | None = None
    template_args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """A prompt and a completion, both text."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Keys:
    """Where a user says that documents are; None: by the usual names."""

    text: str | None = None
    messages: str | None = None

    def wanted(self) -> set[str]:
        return {self.text or "text", self.messages or "messages", *PAIR, *CHAT_KEYS, *IDS, *REMEDIES}


def meaning_of(row: dict[str, Any], keys: Keys, place: Place, tally: Tally) -> str | Chat | Prompt:
    given = {key: value for key, value in row.items() if value is not None}
    if not given.keys() & keys.wanted():  # null: a document of nothing, which is counted as such
        if (keys.text or "text") in row:
            return ""
        if (keys.messages or "messages") in row:
            return Chat([])
        if row.keys() & {*PAIR}:
            return Prompt("", "")
    row = given
    found, used = _meaning(row, keys, place)
    for key, value in row.items():
        if key not in used:
            if why := lost_meaning(key, value) or untrained(key, value):
                refuse(place, f"has {'the list ' * isinstance(value, list)}{key} = {json.dumps(value, default=str)[:40]}: "
                       f"{why}")
            tally.unused(key, place)
    return found


def _meaning(row: dict[str, Any], keys: Keys, place: Place) -> tuple[str | Chat | Prompt, tuple[str, ...]]:
    text, messages = keys.text or "text", keys.messages or "messages"
    ways = [key for key in (text, messages) if key in row]
    if keys.text is not None or keys.messages is not None:  # said, so no other counts
        ways = [key for key in (keys.text, keys.messages) if key is not None and key in row]
    elif all(key in row for key in PAIR):
        ways.append("prompt and completion")
    if len(ways) > 1:
        refuse(place, f"has {' and '.join(ways)}, and one of them is the document; name it with --text-key or "
               "--messages-key")
    if not ways:
        _refuse_row(row, keys, place)
    way = ways[0]
    if way == text:
        return string(row[text], text, place), (text,)
    for key in PREFERRED:
        if isinstance(row.get(key), bool):
            refuse(place, f"has {key} = {json.dumps(row[key])} beside {way}, which says whether the answer is preferred (KTO) "
                   "and is not prepared; keep the rows whose answers are to be learned, and remove the key")
    used = CHAT_KEYS if way == messages else (*PAIR, *CHAT_KEYS)
    tools, args = parsed(row.get("tools"), list, "tools", place), parsed(
        row.get("chat_template_kwargs"), dict, "chat_template_kwargs", place)
    if way == messages:
        turns = messages_of(row[messages], messages, place)
        return Chat(turns, 0, tools or None, args or {}), (messages, *used)
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        if tools:
            refuse(place, "has tools beside a prompt of text, where nothing can use them; give prompt and completion as "
                   "messages")
        return Prompt(prompt, completion), used
    if isinstance(prompt, str) or isinstance(completion, str):
        refuse(place, "has one of prompt and completion as text and the other not; give both as text, or both as "
               "messages")
    before, after = messages_of(prompt, "prompt", place), messages_of(completion, "completion", place)
    return Chat(before + after, len(before), tools or None, args or {}), used


def _refuse_row(row: dict[str, Any], keys: Keys, place: Place) -> NoReturn:
    if any(key in row for key in IDS):
        refuse(place, "has token ids, which need no tokenizer; convert them: paradyse-data convert FILE --to prepared "
               "--out DIR")
    for key, remedy in REMEDIES.items():
        if key in row:
            refuse(place, remedy)
    wanted = [key for key in (keys.text, keys.messages) if key is not None]
    has = ", ".join(list(row)[:8]) or "nothing"
    refuse(place, f"has no {' or '.join(wanted)}; it has {has}" if wanted else f"has no document; it has {has}; {ACCEPTED}")


def string(value: Any, key: str, place: Place) -> str:
    if not isinstance(value, str):
        refuse(place, f"has {key} that is {json.dumps(value, default=str)[:40]}; it takes a string")
    return value


def parsed(value: Any, kind: type, key: str, place: Place) -> Any:
    """A list or an object, or the text of one: rows of tables hold it so."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            refuse(place, f"has {key} that is text and not JSON ({error})")
    if value is not None and not isinstance(value, kind):
        refuse(place, f"has {key} that is {json.dumps(value, default=str)[:40]}; it takes "
               f"{'a list' if kind is list else 'an object'}")
    return value


def messages_of(value: Any, key: str, place: Place) -> list[dict[str, Any]]:
    turns: list[Any] = parsed(value, list, key, place) or []
    for number, turn in enumerate(turns):
        which = f"has {key}[{number}]"
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
            refuse(place, f"{which} without a role; a turn is an object with role and content (turns of from and value, "
                   "as in ShareGPT, must be renamed)")
        content = turn.get("content")
        if isinstance(content, list):
            for part in content:
                if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                    kind = part.get("type") if isinstance(part, dict) else part
                    refuse(place, f"{which} with a part of content that is not text ({kind}); only text is prepared: "
                           "leave out chats with pictures or sound")
        elif content is not None and not isinstance(content, str):
            refuse(place, f"{which} whose content is {json.dumps(content, default=str)[:40]}; it takes a string, or a "
                   "list of parts")
        for said, value in turn.items():
            if why := untrained_turn(said, value):
                refuse(place, f"{which} with {said}: {json.dumps(value, default=str)[:40]}: {why}; split the chat so that "
                       "it ends with the turn that counts, and give --loss last")
    return turns
