"""Chats as ids and a mask: the loss is on the assistant's turns, by the template's marks or by differencing.

Differencing.  Of a turn i, *before* is the chat up to it with the prompt that asks for it, *after* the chat with it.
The turn is what of the whole lies between the ends of the two, if both begin the whole, as text and as ids.  Where they
do not, the template shows a turn in other words when more follow, or a token spans the border, or the model would be
asked by other tokens than it was trained on: then the chat is refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from .document import Document, Place, document_of
from .meaning import Chat, Prompt
from .refusal import refuse
from .tally import Tally
from .tokenizer import Tokenizer

ASSISTANT, LAST, ALL = "assistant", "last", "all"
LOSSES = (ASSISTANT, LAST, ALL)
SPOKEN = ("content", "tool_calls", "function_call", "reasoning_content", "thinking", "reasoning")
TAIL = 20  # letters of the end of a turn: templates may show it without its thinking, but not without these
REMEDY = ("give a template with {% generation %} marks (--chat-template FILE), or count the last turn alone (--loss "
          "last), or all tokens (--loss all)")


class ChatReader:
    def __init__(self, tokenizer: Tokenizer, loss: str, end_id: int | None, template_args: dict[str, Any]) -> None:
        self.tokenizer, self.loss, self.end_id, self.template_args = tokenizer, loss, end_id, template_args

    def document(self, chat: Chat, place: Place, tally: Tally) -> Document | None:
        """None: left out, and counted in the tally."""
        turns = [i for i, turn in enumerate(chat.messages) if i >= chat.first and turn["role"] == ASSISTANT]
        spoken = [i for i in turns if any(chat.messages[i].get(key) for key in SPOKEN)]
        if not spoken:
            why = "with empty turns of the assistant alone" if turns else "without a turn of the role assistant"
            tally.left_out(f"chats {why}", place, unit="chat")
            return None
        if self.tokenizer.template is None:
            refuse(place, f"is a chat, and the tokenizer of {self.tokenizer.folder} has no chat template; give one with "
                   "--chat-template FILE")
        text = self.tokenizer.render(chat, len(chat.messages), self.template_args, place)
        self._expect_content(chat, text, place, tally)
        self._expect_calls(chat, text, place)
        if self.loss == ALL:
            ids, mask = self.tokenizer.bare(text), None
        elif self.tokenizer.marks:
            ids, mask = self._marked(chat, place)
        else:
            ids, mask = self._differenced(chat, text, turns, place)
        if mask is not None:
            self._expect_end(ids, mask, place, tally)
        return document_of(ids, mask, place)

    def prompt(self, pair: Prompt, place: Place, tally: Tally) -> Document | None:
        """A prompt and its completion, both text: the loss is on the completion and its end."""
        if not pair.completion:
            tally.left_out("empty completions", place)
            return None
        tokenizer = self.tokenizer
        ids, = tokenizer.texts([pair.prompt + pair.completion])
        own = len(ids) - len(tokenizer.after)
        before, = tokenizer.texts([pair.prompt])
        before = before[:len(before) - len(tokenizer.after)]
        if self.loss != ALL and (ids[:len(before)] != before or len(before) >= own):
            refuse(place, "has a prompt whose last token continues into the completion, so that nothing says where the "
                   "completion begins; move spaces from the prompt's end to the completion's begin, or count all tokens "
                   "(--loss all)")
        if self.end_id is not None and ids[-1] != self.end_id:
            ids = [*ids, self.end_id]
        mask = None if self.loss == ALL else [0] * len(before) + [1] * (len(ids) - len(before))
        return document_of(ids, mask, place)

    def _marked(self, chat: Chat, place: Place) -> tuple[list[int], list[int]]:
        ids, mask = self.tokenizer.marked(chat, self.template_args, place)
        if chat.first:  # turns of the prompt do not count
            before = self.tokenizer.bare(self.tokenizer.render(chat, chat.first, self.template_args, place))
            if ids[:len(before)] != before:
                refuse(place, f"has a prompt that the chat template shows in other words before the completion; {REMEDY}")
            mask = [0] * len(before) + mask[len(before):]
        if self.loss == LAST:
            begin, end = last_run(mask)
            mask = [0] * begin + mask[begin:end] + [0] * (len(mask) - end)
        return ids, mask

    def _expect_end(self, ids: list[int], mask: list[int], place: Place, tally: Tally) -> None:
        begin, end = last_run(mask)
        if begin < end and not self.tokenizer.special_ids.intersection(ids[begin:end]):
            tally.note("chats whose last turn that counts has no special token at its end, so that a model does not learn "
                       "to end it", place, unit="chat")

    def _differenced(self, chat: Chat, text: str, turns: list[int], place: Place) -> tuple[list[int], list[int]]:
        ids = self.tokenizer.bare(text)
        mask = [0] * len(ids)
        for turn in turns[-1:] if self.loss == LAST else turns:
            begin = self._border(chat, turn, True, text, ids, place)
            last = turn + 1 == len(chat.messages)
            end = len(ids) if last else self._border(chat, turn + 1, False, text, ids, place)
            if end <= begin:
                refuse(place, f"has a turn of the assistant (turn {turn}) that the chat template does not show; {REMEDY}")
            mask[begin:end] = [1] * (end - begin)
        return ids, mask

    def _border(self, chat: Chat, count: int, prompt: bool, text: str, ids: list[int], place: Place) -> int:
        """How many of a chat's ids its first `count` turns take."""
        which = f"turn {count if prompt else count - 1}"
        if count == 0:
            refuse(place, f"begins with a turn of the assistant, where nothing asks for it; put a turn of the user or the "
                   f"system before it, or {REMEDY}")
        before = self.tokenizer.render(chat, count, self.template_args, place, prompt)
        if not text.startswith(before):
            refuse(place, f"has a turn of the assistant ({which}) that the chat template shows in other words when others "
                   f"follow or precede it, so that which tokens count cannot be told; {REMEDY}")
        found = self.tokenizer.bare(before)
        if ids[:len(found)] != found:
            refuse(place, f"has a turn of the assistant ({which}) at whose border the chat has other tokens than its begin "
                   f"alone, so that which tokens count cannot be told; {REMEDY}")
        return len(found)

    def _expect_calls(self, chat: Chat, text: str, place: Place) -> None:
        """Refuses calls of tools that a template does not show: another name, or arguments, must change the text."""
        for number, turn in enumerate(chat.messages):
            for key in ("tool_calls", "function_call"):
                if not turn.get(key):
                    continue
                for what in ("name", "arguments"):
                    other = with_other(turn[key], what)
                    if other == turn[key]:
                        continue  # without arguments
                    turns = [*chat.messages[:number], {**turn, key: other}, *chat.messages[number + 1:]]
                    if self.tokenizer.render(replace(chat, messages=turns), len(turns), self.template_args, place) == text:
                        refuse(place, f"has turn {number} with {key} whose {what} the chat template does not show, so that "
                               "a model would learn to call nothing; give a template that shows calls "
                               "(--chat-template FILE), or write the call as content")

    def _expect_content(self, chat: Chat, text: str, place: Place, tally: Tally) -> None:
        """Refuses what a template shows as the source text of a list, and notes what it does not show."""
        template = self.tokenizer.template or ""
        for number, turn in enumerate(chat.messages):
            content = turn.get("content")
            if isinstance(content, list) and content and str(content) in text:
                refuse(place, f"has turn {number} with a list of parts, which the chat template shows as the source text "
                       "of a list; write its content as one string, or give a template that takes parts "
                       "(--chat-template FILE)")
            parts = content if isinstance(content, list) else [{"text": content or ""}]
            ends = [part["text"].strip()[-TAIL:] for part in parts]
            if turn["role"] == ASSISTANT and any(end not in text for end in ends):
                refuse(place, f"has a turn of the assistant (turn {number}) whose content the chat template does not show; "
                       "if it takes lists of parts, write content as [{\"type\": \"text\", \"text\": ...}], or give another "
                       "template with --chat-template FILE")
            if any(part["text"].strip() not in text for part in parts):
                tally.note(f"chats with content that the template does not show whole, role {turn['role']}", place,
                           unit="chat")
            if any(token in part["text"] for part in parts for token in self.tokenizer.special_tokens):
                tally.note("chats with the text of special tokens in a turn's content, which became those tokens", place,
                           unit="chat")
            for call in turn.get("tool_calls") or []:
                given = (call.get("function") or call).get("arguments") if isinstance(call, dict) else None
                if isinstance(given, str) and given and json.dumps(given, ensure_ascii=False) in text:
                    refuse(place, f"has turn {number} with a tool call whose arguments are a string, which the chat "
                           "template shows as JSON in JSON; write the arguments as an object")
            for key in ("reasoning_content", "thinking", "reasoning"):
                if isinstance(turn.get(key), str) and turn[key].strip() and turn[key].strip() not in text:
                    tally.note(f"chats with {key} that the template does not show", place, unit="chat")
        if chat.tools and "tools" not in template:
            tally.note("chats with tools that the template does not show", place, unit="chat")


def with_other(calls: Any, what: str) -> Any:
    """Calls of tools with another name, or with other arguments where they have some."""
    if isinstance(calls, list):
        return [with_other(call, what) for call in calls]
    if not isinstance(calls, dict):
        return calls
    if isinstance(calls.get("function"), dict):
        return {**calls, "function": with_other(calls["function"], what)}
    value = calls.get(what)
    if not value:
        return calls
    if isinstance(value, dict):
        return {**calls, what: {**value, "other": "other"}}
    return {**calls, what: value.rstrip("}") + ', "other": "other"}' if what == "arguments" and value.endswith("}")
            else value + "other"} if isinstance(value, str) else calls


def last_run(mask: list[int]) -> tuple[int, int]:
    """Bounds of the last run of ones; equal if there is none."""
    end = len(mask) - mask[::-1].index(1) if 1 in mask else 0
    begin = end
    while begin and mask[begin - 1]:
        begin -= 1
    return begin, end
