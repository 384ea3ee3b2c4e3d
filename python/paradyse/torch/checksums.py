"""The checks of a run's checkpoint: XXH64 of its files, and SHA-256 of its state (src/run/train/checkpoint_state.cc)."""

import ctypes
import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

BLOCK = 1 << 20  # bytes, whole stripes of 32
SLOW = 1 << 29  # bytes of a file
_P1, _P2, _P3, _P4, _P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                           0x27D4EB2F165667C5)
_M = (1 << 64) - 1


class Number(float):
    """A number of JSON as it is written: writers differ in the digits that they choose."""

    text: str

    def __new__(cls, text: str) -> "Number":
        found = super().__new__(cls, text)
        found.text = text
        return found


def compact(value: Any) -> str:
    """JSON without spaces, its keys in order, as the program takes SHA-256 of it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{compact(key)}:{compact(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact, value)) + "]"
    return value.text if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)


def sha256_of(value: Any) -> str:
    return hashlib.sha256(compact(value).encode("utf-8", "surrogatepass")).hexdigest()


class Library:
    """XXH64 of libxxhash, which many systems have."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libxxhash.so.0")
        for name, result, arguments in (
                ("createState", ctypes.c_void_p, []), ("freeState", ctypes.c_int, [ctypes.c_void_p]),
                ("reset", ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64]),
                ("update", ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]),
                ("digest", ctypes.c_uint64, [ctypes.c_void_p])):
            function = getattr(self.library, f"XXH64_{name}")
            function.restype, function.argtypes = result, arguments
        self.state = self.library.XXH64_createState()
        self.library.XXH64_reset(self.state, 0)

    def __del__(self) -> None:
        if getattr(self, "state", None):
            self.library.XXH64_freeState(self.state)

    def update(self, content: bytes) -> None:
        self.library.XXH64_update(self.state, content, len(content))

    def hexdigest(self) -> str:
        return f"{self.library.XXH64_digest(self.state):016x}"


def quick_xxh64() -> Any:
    """With update() and hexdigest(): of the package xxhash, or of libxxhash; None: neither is there."""
    try:
        return importlib.import_module("xxhash").xxh64()
    except ImportError:
        pass
    try:
        return Library()
    except (OSError, AttributeError):
        return None


def file_xxh64(path: Path) -> str:
    """16 digits."""
    check = quick_xxh64()
    with open(path, "rb") as file:
        if check is None:
            if (size := path.stat().st_size) > SLOW:
                print(f"{path}: checking {size >> 20} MiB takes minutes without the Python package xxhash: pip install "
                      "xxhash", file=sys.stderr)
            return f"{xxh64(file):016x}"
        while block := file.read(BLOCK):
            check.update(block)
        digest: str = check.hexdigest()
        return digest


def xxh64(file: BinaryIO) -> int:
    """https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, seed 0."""
    a, b, c, d = (_P1 + _P2) & _M, _P2, 0, -_P1 & _M
    total, rest = 0, b""
    while block := file.read(BLOCK):
        total += len(block)
        while len(block) < BLOCK and (more := file.read(BLOCK - len(block))):
            total, block = total + len(more), block + more
        whole = len(block) & ~31
        rest = block[whole:]
        stripes = np.frombuffer(block, "<u8", whole // 8) * np.uint64(_P2)
        for i, j, k, m in stripes.reshape(-1, 4).tolist():
            a, b, c, d = (a + i) & _M, (b + j) & _M, (c + k) & _M, (d + m) & _M
            a, b = (a << 31 | a >> 33) * _P1 & _M, (b << 31 | b >> 33) * _P1 & _M
            c, d = (c << 31 | c >> 33) * _P1 & _M, (d << 31 | d >> 33) * _P1 & _M
    found = _P5
    if total >= 32:
        found = (_turned(a, 1) + _turned(b, 7) + _turned(c, 12) + _turned(d, 18)) & _M
        for lane in (a, b, c, d):
            found = ((found ^ _round(lane)) * _P1 + _P4) & _M
    found = (found + total) & _M
    while len(rest) >= 8:
        found = (_turned(found ^ _round(int.from_bytes(rest[:8], "little")), 27) * _P1 + _P4) & _M
        rest = rest[8:]
    if len(rest) >= 4:
        found = (_turned(found ^ (int.from_bytes(rest[:4], "little") * _P1 & _M), 23) * _P2 + _P3) & _M
        rest = rest[4:]
    for byte in rest:
        found = _turned(found ^ (byte * _P5 & _M), 11) * _P1 & _M
    found = (found ^ found >> 33) * _P2 & _M
    found = (found ^ found >> 29) * _P3 & _M
    return found ^ found >> 32


def _turned(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _M


def _round(value: int) -> int:
    return _turned(value * _P2 & _M, 31) * _P1 & _M
