"""Files that may be packed, as streams of their contents.  A damaged or cut file is refused, never read in part."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

from .refusal import need, refuse
from .utf8 import text_in

PACKED = (".gz", ".zst")
BLOCK = 1 << 20
FEED = 1 << 9  # packed bytes at a time: zstd packs 128 KiB into as few as 4
MOST_UNPACKED = 1 << 30  # bytes of a line or a document that was packed: a few packed ones may have no end


class ZstdStream(io.RawIOBase):
    """The frames of a file, one after the other.

    Our own, since zstandard's stream_reader takes a cut frame for the end of the file.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        zstandard = need("zstandard", "zstandard", "a file that ends in .zst")
        self.raw, self.error = raw, zstandard.ZstdError
        self._new: Any = lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        self._frame: Any = None
        self._rest = self._out = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._out:
            self._rest = self._rest or memoryview(self.raw.read(BLOCK))
            if not self._rest:
                if self._frame is not None:
                    raise EOFError("a frame is not complete")
                return 0
            self._frame = self._frame or self._new()
            used = min(FEED, len(self._rest))
            self._out = memoryview(self._frame.decompress(self._rest[:used]))
            if self._frame.eof:
                used -= len(self._frame.unused_data)
                self._frame = None
            self._rest = self._rest[used:]
        count = min(len(buffer), len(self._out))
        buffer[:count], self._out = self._out[:count], self._out[count:]
        return count


class Unpacked(io.BufferedReader):
    """What was packed; a line of more than `most` bytes is refused, and so is more than that read at once."""

    def __init__(self, raw: io.RawIOBase, path: Path, most: int) -> None:
        super().__init__(raw, BLOCK)
        self.path, self.most, self.lines = path, most, 0

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(self.most + 1 if size is None or size < 0 else size)
        if len(content) > self.most:
            too_large(self.path, "unpacks to", self.most)
        return content

    def readline(self, size: int | None = -1) -> bytes:
        self.lines += 1
        line = super().readline(self.most + 1 if size is None or size < 0 else size)
        if len(line) > self.most:
            too_large(f"{self.path}:{self.lines}", "is a line of", self.most)
        return line

    def __next__(self) -> bytes:
        line = self.readline()
        if not line:
            raise StopIteration
        return line


def too_large(place: object, what: str, most: int) -> NoReturn:
    refuse(place, f"{what} more than {most >> 20} MiB, as no document has; split it, or unpack the file and look at it")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A stream of what a file holds, unpacked by the ending of its name."""
    ending = path.suffix.lower()
    damage: tuple[type[BaseException], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    try:
        with open(path, "rb") as raw:
            if ending == ".gz":
                with gzip.open(raw) as stream:
                    yield Unpacked(stream, path, MOST_UNPACKED)  # type: ignore[arg-type]
            elif ending == ".zst":
                packed = ZstdStream(raw)
                damage += (packed.error,)
                yield Unpacked(packed, path, MOST_UNPACKED)
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
