"""Files that may be packed, as streams of their contents.  A damaged or cut file is refused, never read in part."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .refusal import need, refuse
from .utf8 import text_in

PACKED = (".gz", ".zst")
BLOCK = 1 << 20


class ZstdStream(io.RawIOBase):
    """The frames of a file, one after the other.

    Our own, since zstandard's stream_reader takes a cut frame for the end of the file.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        zstandard = need("zstandard", "zstandard", "a file that ends in .zst")
        self.raw, self.error = raw, zstandard.ZstdError
        self._new: Any = lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        self._frame: Any = None
        self._rest = self._out = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._out:
            block = self._rest or self.raw.read(BLOCK)
            if not block:
                if self._frame is not None:
                    raise EOFError("a frame is not complete")
                return 0
            self._frame = self._frame or self._new()
            self._out, self._rest = self._frame.decompress(block), b""
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._out))
        buffer[:count], self._out = self._out[:count], self._out[count:]
        return count


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A stream of what a file holds, unpacked by the ending of its name."""
    ending = path.suffix.lower()
    damage: tuple[type[BaseException], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    try:
        with open(path, "rb") as raw:
            if ending == ".gz":
                with gzip.open(raw) as stream:
                    yield stream  # type: ignore[misc]
            elif ending == ".zst":
                packed = ZstdStream(raw)
                damage += (packed.error,)
                yield io.BufferedReader(packed, BLOCK)
            else:
                yield raw
    except damage as error:
        refuse(path, f"cannot be unpacked ({error}); it is cut or damaged: fetch or pack it again")
    except OSError as error:
        refuse(path, f"cannot be read: {error.strerror or error}")


def inner_suffix(path: Path) -> str:
    """The ending of a name without that of a packer, in small letters."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in PACKED else suffix


UTF8_BOM = b"\xef\xbb\xbf"


class Decoder:
    """UTF-8, or a refusal; with `replace`, U+FFFD for what is none, and how often."""

    def __init__(self, replace: bool) -> None:
        self.replace, self.replaced = replace, 0

    def text(self, content: bytes, where: object) -> str:
        self.replaced = 0
        if not self.replace:
            return text_in(content, where, ", or put U+FFFD for such bytes with --invalid replace")
        text = content.decode("utf-8", "replace")
        self.replaced = text.count("\ufffd") - content.count("\ufffd".encode())
        return text
