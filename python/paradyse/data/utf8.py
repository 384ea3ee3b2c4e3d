"""Text from outside: UTF-8, or a refusal that says which byte is not.

Python keeps bytes that are not UTF-8 in names of files and in words of the command line, each as one of the code points
U+DC80 to U+DCFF, which are no text (os.fsdecode).
"""

from __future__ import annotations

import os

from .refusal import refuse

CONVERT = "convert it: iconv -f latin1 -t utf-8"


def text_in(content: bytes, where: object, more: str = "") -> str:
    """`more`: what else there is to do, after "convert it"."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        refuse(where, f"is not UTF-8 (byte 0x{content[error.start]:02x} at {error.start}); {CONVERT}{more}")


def is_text(text: str) -> bool:
    try:
        text.encode()
        return True
    except UnicodeEncodeError:
        return False


def word(text: str, option: str) -> str:
    """A word of the command line that is text, and not the name of a file."""
    return text if is_text(text) else text_in(os.fsencode(text), option)


def escaped(text: str) -> str:
    """For people: such bytes as \\xff."""
    return text if is_text(text) else text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
