"""A folder's tokenizer, run by transformers: ids, chat templates, and which ids have a special meaning."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .container import named
from .document import Place
from .json_file import json_file
from .meaning import Chat
from .refusal import Refused, need, refuse
from .utf8 import is_text

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
NAMES = re.compile(r"^(tokenizer|vocab|merges|tekken|special_tokens_map|added_tokens|chat_template|"
                   r"additional_chat_templates|generation_config\.json$|config\.json$)|\.(model|tiktoken)$")


class Tokenizer:
    """What preparing needs of a tokenizer.  Tests have others with the same names."""

    def __init__(self, folder: str, chat_template: str | None = None) -> None:
        transformers = need("transformers", "transformers", "a tokenizer")
        need("tokenizers", "tokenizers", "a tokenizer")
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        transformers.logging.set_verbosity_error()  # texts longer than model_max_length are not cut
        self.folder = Path(folder)
        if not self.folder.is_dir():
            refuse(folder, "is not a folder; --tokenizer takes a folder with tokenizer.json, or a model's folder "
                   "(hf download NAME --local-dir DIR)")
        if not is_text(folder):
            refuse(folder, "has a name that is not UTF-8, which transformers cannot open; rename it")
        try:
            self._own: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # its own errors are of many types
            refuse(folder, f"has no tokenizer that transformers can load: {str(error).strip().splitlines()[0]}")
        if chat_template is not None:
            self._own.chat_template = chat_template
        vocabulary: dict[str, int] = self._own.get_vocab()
        self.vocabulary = vocabulary
        if not vocabulary:
            refuse(folder, "has a tokenizer without a vocabulary; give the folder of a whole tokenizer")
        self.vocab_size = max(len(self._own), max(vocabulary.values()) + 1)
        self.bos_id: int | None = self._own.bos_token_id
        self.unk_id: int | None = self._own.unk_token_id
        special = {int(i): str(token) for i, token in zip(self._own.all_special_ids, self._own.all_special_tokens)}
        special.update((int(i), str(token)) for i, token in self._own.added_tokens_decoder.items() if token.special)
        special.pop(-1 if self.unk_id is None else self.unk_id, None)
        self.special_ids, self.special_tokens = frozenset(special), tuple(special.values())
        self.before, self.after = self._added()
        self._arguments = frozenset(inspect.signature(self._own.apply_chat_template).parameters) - {"documents", "kwargs"}

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def _added(self) -> tuple[list[int], list[int]]:
        """The ids that the tokenizer adds before and after a text."""
        for text in ("a", "A", "M", *list(self.vocabulary)[:50]):
            bare, whole = self._ids(text, False), self._ids(text, True)
            for begin in range(len(whole) - len(bare) + 1):
                if bare and whole[begin:begin + len(bare)] == bare:
                    return whole[:begin], whole[begin + len(bare):]
        refuse(self.folder, "has a tokenizer that changes a text's own ids where it adds special tokens; which ids are "
               "the text's cannot be told: take another tokenizer")

    def _ids(self, text: str, special: bool) -> list[int]:
        return list(map(int, self._own(text, add_special_tokens=special)["input_ids"]))

    def end_id(self, asked: str) -> int | None:
        """Of --end-id: none, an id, or auto: eos_token, else eos_token_id of the configurations beside it."""
        if asked == "none":
            return None
        if asked != "auto":
            if not asked.isdecimal() or int(asked) >= self.vocab_size:
                refuse("--end-id", f"is {asked}; it takes auto, none, or an id from 0 to {self.vocab_size - 1}")
            return int(asked)
        if self._own.eos_token_id is not None:
            return int(self._own.eos_token_id)
        for name in ("generation_config.json", "config.json"):
            if (self.folder / name).is_file():
                found = json_file(self.folder / name, "repair it, or give --end-id").get("eos_token_id")
                found = found[0] if isinstance(found, list) and found else found
                if isinstance(found, int):
                    return found
        return None

    def texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each, with the special tokens that the tokenizer adds."""
        return [list(ids) for ids in self._own(list(texts), add_special_tokens=True)["input_ids"]] if texts else []

    def bare(self, text: str) -> list[int]:
        """Ids of a text to which nothing is added: a rendered chat has its own special tokens."""
        return self._ids(text, False) if text else []

    def text(self, ids: Sequence[int], skip_special: bool) -> str:
        """What ids stand for together."""
        return str(self._own.decode(list(ids), skip_special_tokens=skip_special))

    @property
    def template(self) -> str | None:
        """The source of the chat template; of several, all of them."""
        found = self._own.chat_template
        return "\n".join(found.values()) if isinstance(found, dict) else found

    @property
    def marks(self) -> bool:
        """Whether the chat template says what the assistant generates, and positions of tokens are known."""
        return self.template is not None and GENERATION.search(self.template) is not None and bool(self._own.is_fast)

    def render(self, chat: Chat, count: int, template_args: dict[str, Any], place: Place, prompt: bool = False) -> str:
        """The first `count` turns as text; `prompt`: and what asks for the next."""
        return str(self._apply(chat, count, template_args, place, add_generation_prompt=prompt, tokenize=False))

    def marked(self, chat: Chat, template_args: dict[str, Any], place: Place) -> tuple[list[int], list[int]]:
        """Ids and mask of a whole chat by the template's marks."""
        found = self._apply(chat, len(chat.messages), template_args, place, return_dict=True,
                            return_assistant_tokens_mask=True)
        return list(map(int, found["input_ids"])), list(map(int, found["assistant_masks"]))

    def _expect_variables(self, names: dict[str, Any], where: object) -> None:
        """Refuses names that apply_chat_template takes for itself, as truncation: it would cut a chat in silence."""
        if wrong := sorted(self._arguments.intersection(names)):
            refuse(where, f"has {', '.join(wrong)} among the variables of the chat template, which transformers takes as "
                   "an argument of apply_chat_template; remove it (tools are a key of a row, and a limit of length is "
                   "--max-tokens)")

    def _apply(self, chat: Chat, count: int, template_args: dict[str, Any], place: Place, **how: Any) -> Any:
        self._expect_variables(template_args, "--template-args")
        self._expect_variables(chat.template_args, place)
        try:
            return self._own.apply_chat_template(chat.messages[:count], tools=chat.tools,
                                                 **{**template_args, **chat.template_args}, **how)
        except Refused:
            raise
        except ImportError as error:
            need("jinja2", "jinja2", "a chat template")
            refuse(place, f"the chat template cannot be applied: {error}")
        except Exception as error:  # of Jinja, or raised by the template itself
            refuse(place, f"the chat template does not take this chat: {str(error).strip() or type(error).__name__}; "
                   "change the chat, or give a template that takes it with --chat-template FILE")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id stands for, decoded by itself."""
        return [str(self._own.decode([int(i)], skip_special_tokens=False, clean_up_tokenization_spaces=False))
                for i in ids]


def json_sha256(folder: str | Path) -> str | None:
    """SHA-256 of tokenizer.json, by which the program knows a tokenizer; None: there is none."""
    path = Path(folder) / "tokenizer.json"
    with named(path):
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def digest(folder: str, chat_template: str | None = None) -> str:
    """SHA-256 over the names and contents of a tokenizer's files."""
    found = hashlib.sha256()
    if Path(folder).is_dir():
        for path in sorted(Path(folder).rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and NAMES.search(name):
                found.update(os.fsencode(name) + f"\0{path.stat().st_size}\0".encode())
                with named(path):
                    found.update(path.read_bytes())
    found.update((chat_template or "").encode())
    return found.hexdigest()
